"""`streamer checkpoint`: manage a directory of checkpoints, also beside the trainer
that writes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamer.cli.loading import CHECKPOINT
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.cli.output import format_bytes, table
from streamer.errors import CheckpointError
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.snapshot import CheckpointStore

json_option = option(
    "Report", "--json", "as_json", is_flag=True, help="Print one JSON object."
)
directory_options = settings_options(RunSettings, only=CHECKPOINT, heading="Checkpoint")


@click.group()
def checkpoint() -> None:
    """Manage a directory of checkpoints: verify, copy, pin, unpin, compact. `streamer
    inspect` shows it.

    A checkpoint is a base, which holds everything, or a delta, which holds what changed
    since the one before. CHECKPOINT is its number, its name or its path; without it, the
    newest that is whole. All but `compact` may be used while `streamer run` is running.
    """


@checkpoint.command(cls=GroupedCommand)
@json_option
@directory_options
def verify(settings: RunSettings, as_json: bool) -> None:
    """Read every checkpoint, and check it and its chain against their checksums. The
    exit code is 1 if one is corrupt.
    """
    found = _open(settings.checkpoints).verify()
    if not found:
        raise CheckpointError(f"there is no checkpoint in {settings.checkpoints}")
    if as_json:
        rows = [
            {"path": str(path), "problem": problem} for path, problem in found.items()
        ]
        click.echo(
            json.dumps({"checkpoints": rows, "corrupt": sum(map(bool, found.values()))})
        )
    else:
        click.echo(
            "\n".join(
                table(
                    [
                        (path.name, problem or "whole")
                        for path, problem in found.items()
                    ],
                    indent="",
                )
            )
        )
    if any(found.values()):
        sys.exit(1)


@checkpoint.command(cls=GroupedCommand)
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@option(
    "Checkpoint",
    "--checkpoint",
    "which",
    help="Number, name or path of a checkpoint.",
    show_default="the newest that is whole",
)
@json_option
@directory_options
def copy(settings: RunSettings, target: Path, which: str | None, as_json: bool) -> None:
    """Copy a checkpoint with its chain into the directory TARGET, which has no checkpoints
    yet.

    On the same disk files are linked, which takes no space; copy to another disk to be
    safe from this one's failure.
    """
    store = _open(settings.checkpoints)
    found = store.copy(target, _number(store, which) if which else None)
    done = {
        "from": str(found.path),
        "to": str(target),
        "files": len(found.chain),
        "bytes": found.size_bytes,
    }
    text = f"copied {found.path.name} to {target}: {len(found.chain)} files, {format_bytes(found.size_bytes)}"
    click.echo(json.dumps(done) if as_json else text)


@checkpoint.command(cls=GroupedCommand)
@click.argument("which", metavar="[CHECKPOINT]", required=False)
@json_option
@directory_options
def pin(settings: RunSettings, which: str | None, as_json: bool) -> None:
    """Keep a checkpoint, with the chain that it needs, however old it is: for `streamer run
    --from-checkpoint`.
    """
    store = _open(settings.checkpoints)
    number = _number(store, which)
    store.pin(number)
    _show_pinned(store, as_json)


@checkpoint.command(cls=GroupedCommand)
@click.argument("which", metavar="CHECKPOINT")
@json_option
@directory_options
def unpin(settings: RunSettings, which: str, as_json: bool) -> None:
    """Let a pinned checkpoint go: the trainer removes it when it is old."""
    store = _open(settings.checkpoints)
    store.unpin(_number(store, which))
    _show_pinned(store, as_json)


@checkpoint.command(cls=GroupedCommand)
@json_option
@settings_options(
    RunSettings, only=(*CHECKPOINT, "keep_checkpoints"), heading="Checkpoint"
)
def compact(settings: RunSettings, as_json: bool) -> None:
    """Write the newest checkpoint as a base, and remove older ones that are not to be kept.

    For a directory that no trainer uses, a copy for instance: a trainer writes a new
    base by itself when its deltas outweigh the last one. Takes as much memory as the
    trainer.
    """
    from streamer.learner import Learner
    from streamer.snapshot import CheckpointStore

    _open(settings.checkpoints)
    with CheckpointStore(settings.checkpoints, settings.keep_checkpoints) as store:
        if (found := store.load()) is None:
            raise CheckpointError(f"there is no checkpoint in {settings.checkpoints}")
        path = found.path
        before = found.size_bytes
        if len(found.chain) > 1:
            learner = Learner.from_checkpoint(found, device="cpu")
            path = store.save(learner.state.chunks(), found.arrays(), found.meta)
    after = path.stat().st_size
    done = {
        "path": str(path),
        "files_before": len(found.chain),
        "bytes_before": before,
        "bytes": after,
    }
    text = f"{path.name} takes the place of {len(found.chain)} files: {format_bytes(before)} -> {format_bytes(after)}"
    click.echo(
        json.dumps(done)
        if as_json
        else text
        if path != found.path
        else f"{path.name} is a base already"
    )


def _open(directory: Path) -> CheckpointStore:
    """The checkpoints of a directory, beside a trainer that may go on writing.

    Raises:
        CheckpointError: there is no such directory.
    """
    from streamer.snapshot import CheckpointStore

    if not directory.is_dir():
        raise CheckpointError(
            f"there is no directory {directory}: give the --checkpoint-dir or --data-dir of your run"
        )
    return CheckpointStore(directory, readonly=True)


def _number(store: CheckpointStore, which: str | None) -> int:
    """The number of a checkpoint that is given as number, name or path, or the newest.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    numbers = store.numbers()
    if which is None:
        if (found := store.load()) is None:
            raise CheckpointError(f"there is no checkpoint in {store.directory}")
        return found.number
    for number, path in numbers.items():
        if which in (str(number), path.name, path.stem, str(path)):
            return number
    known = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
    raise CheckpointError(
        f"there is no checkpoint {which} in {store.directory}; there are: {known}"
    )


def _show_pinned(store: CheckpointStore, as_json: bool) -> None:
    pinned: Sequence[Any] = sorted(store.pinned())
    click.echo(
        json.dumps({"pinned": pinned})
        if as_json
        else f"pinned: {', '.join(map(str, pinned)) or 'none'}"
    )
