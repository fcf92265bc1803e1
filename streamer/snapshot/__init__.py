"""Snapshots of a learner: what a trainer resumes from, and what servers follow.

    frames         some rows as bytes, whole and checked
    capture        rows as of one step, copied while training goes on
    snapshot       a base or a delta: a run of frames with an end that seals it
    chain          which snapshots make a state; whether the next one is a base
    writer         the thread that writes beside training
    lease          which start may write into a directory: the newest generation
    directory      snapshots as files: whole or not at all, chains, checks, copies
    store          the directory of checkpoints: saving, what is kept
    checkpointer   when a checkpoint is saved, what is in it, and how a run resumes
    publisher      deltas for servers, without optimizer state
    places         where servers find them: a directory, published or of checkpoints
    topic          the same as a topic of Kafka

The state at a snapshot is its base and the deltas after it, up to the snapshot itself:
its chain. What a disk, a broker or a person damages is found by checksums; a trainer
then goes back to the newest whole chain, a server waits for the next base.

May import: `errors` and `sources`; `checkpointer` and `publisher` also `learner`, and
the first `sharing`, `ingest` and `accounting`.
"""

from streamer.snapshot.chain import Checkpoint
from streamer.snapshot.directory import SnapshotDirectory
from streamer.snapshot.frames import RowChunk, pack_chunk, unpack_chunk
from streamer.snapshot.store import CheckpointStore

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "RowChunk",
    "SnapshotDirectory",
    "pack_chunk",
    "unpack_chunk",
]
