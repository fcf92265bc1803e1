"""Logs as commands open them: what was malformed goes to standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from streamer.errors import SourceError

if TYPE_CHECKING:
    from streamer.replay.datasets import Log
    from streamer.replay.settings import LogSettings


@contextmanager
def opened_log(path: str, format: str | None, settings: LogSettings) -> Iterator[Log]:
    """A log with at least one event; closed with the block.

    Raises:
        SettingsError: with every wrong setting.
        SourceError: it cannot be read, or the filters leave no event of it.
    """
    from streamer.replay.datasets import open_log

    with open_log(path, format, settings) as log:
        if format is None:
            click.echo(
                f"{path} is read as {log.name}; --format names another one", err=True
            )
        malformed = log.malformed
        for example in malformed.examples:
            click.echo(f"{path}, {example}", err=True)
        if malformed.total:
            click.echo(
                f"{malformed.total:,} malformed events were left out; the first {len(malformed.examples)} are listed",
                err=True,
            )
        if not len(log):
            raise SourceError(f"{log.path}: the filters leave no event of it")
        yield log
