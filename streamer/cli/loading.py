"""What commands share that look at a checkpoint: finding it, loading it, and showing what is in it to a person."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamer.cli.options import settings_options
from streamer.errors import CheckpointError
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import Learner

CHECKPOINT = ("checkpoint_dir", "data_dir")
"""Settings that say where checkpoints are."""
checkpoint_options = settings_options(RunSettings, only=CHECKPOINT, heading="Checkpoint")
"""Which checkpoints to look at, with the options that `streamer run` was given."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest checkpoint of a directory, as a learner on the CPU."""

    path: Path
    sequence: int
    meta: dict[str, Any]
    learner: Learner


def load(directory: Path) -> Loaded:
    """Load the newest valid checkpoint, beside a trainer that may go on writing.

    Raises:
        CheckpointError: there is none, or none that this version can read.
    """
    from streamer.checkpoint import CheckpointStore
    from streamer.learner import Learner

    checkpoint = CheckpointStore(directory, readonly=True).load()
    if checkpoint is None:
        raise CheckpointError(_nothing_in(directory))
    learner = Learner.from_checkpoint(checkpoint, device="cpu")
    return Loaded(checkpoint.path, checkpoint.sequence, checkpoint.meta, learner)


def _nothing_in(directory: Path) -> str:
    """Why nothing can be loaded, and what to try."""
    inside = directory / "checkpoints"
    if inside.is_dir():
        return f"there is no checkpoint in {directory}: try --checkpoint-dir {inside}"
    what = "there is no checkpoint in" if directory.is_dir() else "there is no directory"
    return (
        f"{what} {directory}: give the --checkpoint-dir or --data-dir of your `streamer run`; "
        "it writes its first checkpoint after --checkpoint-every seconds and when it stops"
    )


# for a person ---------------------------------------------------------------------------------------------------------


def shown(raw: str) -> str:
    """An id as it can be printed: what comes from a stream may hold line breaks or codes that move a cursor."""
    return raw if raw and raw.isprintable() else ascii(raw)


def size_shown(size_bytes: float) -> str:
    """A number of bytes.

    Examples:
        >>> size_shown(27_342_669)
        '27.3 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def age_shown(moment_s: float, now_s: float | None = None) -> str:
    """How long ago a time since the epoch was.

    Examples:
        >>> age_shown(1000.0, now_s=1150.0)
        '2 min ago'
    """
    seconds = max((time.time() if now_s is None else now_s) - moment_s, 0.0)
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def time_shown(moment_s: float) -> str:
    """A time since the epoch, in UTC."""
    return f"{datetime.datetime.fromtimestamp(moment_s, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def columns(rows: Sequence[Sequence[str]], align: str, indent: str = "  ") -> Iterator[str]:
    """Lines of a table; `align` has `<` or `>` for each column.

    Examples:
        >>> list(columns([("tea", "9"), ("milk", "10")], "<>"))
        ['  tea    9', '  milk  10']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True))
        yield f"{indent}{'  '.join(cells)}".rstrip()
