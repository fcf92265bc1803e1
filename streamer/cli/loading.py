"""What commands share that read a checkpoint: finding it and loading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamer.cli.options import settings_options
from streamer.errors import CheckpointError
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import Learner
    from streamer.snapshot import Checkpoint

CHECKPOINT = ("checkpoint_dir", "data_dir")
"""Settings that say where checkpoints are."""
checkpoint_options = settings_options(
    RunSettings, only=CHECKPOINT, heading="Checkpoint"
)
"""Which checkpoints to look at, with the options that `streamer run` was given."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest checkpoint of a directory, as a learner on the CPU."""

    checkpoint: Checkpoint
    learner: Learner

    @property
    def path(self) -> Path:
        """The newest file of the checkpoint."""
        return self.checkpoint.path

    @property
    def meta(self) -> dict[str, Any]:
        """What it says beside what was learned."""
        return self.checkpoint.meta


def load(directory: Path) -> Loaded:
    """Load the newest valid checkpoint, beside a trainer that may go on writing.

    Raises:
        CheckpointError: there is none, or none that this version can read.
    """
    from streamer.learner import Learner
    from streamer.snapshot import CheckpointStore

    checkpoint = CheckpointStore(directory, readonly=True).load()
    if checkpoint is not None:
        return Loaded(checkpoint, Learner.from_checkpoint(checkpoint, device="cpu"))
    inside = directory / "checkpoints"
    if inside.is_dir():
        raise CheckpointError(
            f"there is no checkpoint in {directory}: try --checkpoint-dir {inside}"
        )
    what = (
        "there is no checkpoint in" if directory.is_dir() else "there is no directory"
    )
    raise CheckpointError(
        f"{what} {directory}: give the --checkpoint-dir or --data-dir of your `streamer run`; "
        "it writes its first checkpoint after --checkpoint-every seconds and when it stops"
    )
