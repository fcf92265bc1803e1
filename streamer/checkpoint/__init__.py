"""Checkpoints: tensors and a description, written so that no crash can harm them.

    DIR/.lock                       held by the process that writes here
    DIR/trainer-id                  what tells this trainer's commits in Kafka from those of others
    DIR/ckpt-00000000000000000042/  one checkpoint; the highest number is the newest
        state.safetensors           every tensor and array
        meta.json                   everything else, as JSON
        manifest.json               format version; size and CRC-32 of the two files; CRC-32 of itself
    DIR/.tmp-...                    being written or removed; cleaned at the next start

A checkpoint is written under another name, synced, and then renamed: it is there completely or not at all.
What a disk or a person damages afterwards is found by the checksums; loading then goes back to the checkpoint
before. Nothing is ever unpickled, so a checkpoint from a stranger cannot run code.

CRC-32 because the checksums are there to find accidents: 500 MB take 0.15 s, a cryptographic hash 3 to 5
times as long.

Belongs here: the files of a checkpoint, saving them beside training, and `checkpointer`, which says what is in one.
May import: `errors`; `checkpointer` alone also `learner`, `sharing`, `ingest` and `accounting`.
"""

from streamer.checkpoint.files import Tensors
from streamer.checkpoint.store import Checkpoint, CheckpointStore
from streamer.checkpoint.strings import pack_strings, unpack_strings

__all__ = ["Checkpoint", "CheckpointStore", "Tensors", "pack_strings", "unpack_strings"]
