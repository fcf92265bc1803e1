"""`streamer checkpoint`: manage a directory of checkpoints, also beside the trainer
that writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamer.cli.loading import checkpoint_options, no_checkpoint
from streamer.cli.options import GroupedCommand, json_option, option
from streamer.cli.output import format_bytes, say, table
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.snapshot import SnapshotDirectory


@click.group()
def checkpoint() -> None:
    """Verify or copy the checkpoints of a directory, also while `streamer run` is
    running. `streamer inspect` shows them.

    A checkpoint is a base, which holds everything, or a delta, which holds what changed
    since the one before.
    """


@checkpoint.command(cls=GroupedCommand)
@json_option
@checkpoint_options
def verify(settings: RunSettings, as_json: bool) -> None:
    """Read every checkpoint, and check it and its chain against their checksums. The
    exit code is 1 if one is corrupt.
    """
    problems = _open(settings.checkpoints).verify()
    if not problems:
        raise no_checkpoint(settings.checkpoints)
    corrupt = sum(map(bool, problems.values()))
    rows = [{"path": str(path), "problem": why} for path, why in problems.items()]
    shown = [(path.name, why or "whole") for path, why in problems.items()]
    text = "\n".join(table(shown, indent=""))
    say({"checkpoints": rows, "corrupt": corrupt}, text, as_json)
    sys.exit(1 if corrupt else 0)


@checkpoint.command(cls=GroupedCommand)
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@option(
    "Checkpoint",
    "--checkpoint",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A .base or .delta file of the directory.",
    show_default="the newest that is whole",
)
@json_option
@checkpoint_options
def copy(
    settings: RunSettings, target: Path, checkpoint: Path | None, as_json: bool
) -> None:
    """Copy a checkpoint with its chain into the directory TARGET, which has no checkpoints
    yet.

    On the same disk files are linked, which takes no space; copy to another disk to be
    safe from this one's failure.
    """
    from streamer.snapshot.directory import number_of

    number = number_of(checkpoint) if checkpoint is not None else None
    found = _open(settings.checkpoints).copy(target, number)
    done = {
        "from": str(found.path),
        "to": str(target),
        "files": len(found.chain),
        "bytes": found.size_bytes,
    }
    size = f"{len(found.chain)} files, {format_bytes(found.size_bytes)}"
    text = f"copied {found.path.name} to {target}: {size}"
    say(done, text, as_json)


def _open(directory: Path) -> SnapshotDirectory:
    """The checkpoints of a directory, beside a trainer that may go on writing.

    Raises:
        CheckpointError: there is no such directory.
    """
    from streamer.snapshot import SnapshotDirectory

    if not directory.is_dir():
        raise no_checkpoint(directory)
    return SnapshotDirectory(directory)
