"""Checkpoints that cost what changed, written so that no crash can harm them.

    DIR/.lock                            held by the process that writes here
    DIR/trainer-id                       what tells this trainer's commits in Kafka from those of others
    DIR/ckpt-00000000000000000042.base   a point: every row of what was learned
    DIR/ckpt-00000000000000000043.delta  a point: the rows that changed since the one before, whose checksum it names
    DIR/ckpt-00000000000000000042.pin    keeps a point, with its chain, however old it is
    DIR/.tmp-...                         being written; cleaned at the next start

The state at a point is its base and the deltas after it, up to the point itself: its
chain. A point is written under another name, synced, and then renamed: it is there
completely or not at all. What a disk or a person damages afterwards is found by the
checksums; loading then goes back to the newest point whose chain is whole.

    frames         some rows as bytes, for files and messages
    points         a file of frames
    store          a directory of points
    capture        rows as of one step, copied while training goes on
    checkpointer   what is in a checkpoint, when it is saved, and how a run resumes from it

May import: `errors`; `checkpointer` alone also `learner`, `sharing`, `ingest` and
`accounting`.
"""

from streamer.snapshot.frames import Chunk, pack_chunk, unpack_chunk
from streamer.snapshot.store import Checkpoint, CheckpointStore
from streamer.snapshot.strings import pack_strings, unpack_strings

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Chunk",
    "pack_chunk",
    "pack_strings",
    "unpack_chunk",
    "unpack_strings",
]
