"""What commands share that read a checkpoint: finding it and loading it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from streamer.cli.options import settings_options
from streamer.errors import CheckpointError
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import OnlineLearner
    from streamer.snapshot import Checkpoint

CHECKPOINT = ("checkpoint_dir", "data_dir")
"""Settings that say where checkpoints are."""
checkpoint_options = settings_options(
    RunSettings, only=CHECKPOINT, heading="Checkpoint"
)
"""Which checkpoints to look at, with the options that `streamer run` was given."""


def load(directory: Path) -> tuple[Checkpoint, OnlineLearner]:
    """The newest valid checkpoint, and a learner on the CPU made of it, beside a
    trainer that may go on writing.

    Raises:
        CheckpointError: there is none, or none that this version can read.
    """
    from streamer.learner import OnlineLearner
    from streamer.snapshot import SnapshotDirectory

    checkpoint = SnapshotDirectory(directory).load()
    if checkpoint is not None:
        return checkpoint, OnlineLearner.from_checkpoint(checkpoint, device="cpu")
    raise no_checkpoint(directory)


def no_checkpoint(directory: Path) -> CheckpointError:
    """There is no checkpoint in a directory: what to try."""
    inside = directory / "checkpoints"
    if inside.is_dir():
        return CheckpointError(
            f"there is no checkpoint in {directory}: try --checkpoint-dir {inside}"
        )
    what = "checkpoint in" if directory.is_dir() else "directory"
    return CheckpointError(
        f"there is no {what} {directory}: give the --checkpoint-dir or --data-dir of your `streamer run`; "
        "it writes its first checkpoint after --checkpoint-every seconds and when it stops"
    )
