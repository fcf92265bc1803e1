"""Logs as commands open them: what their readers log, and what was malformed, goes to
standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from streamer.errors import SourceError

if TYPE_CHECKING:
    from streamer.replay.datasets import Log
    from streamer.replay.events import MalformedRows
    from streamer.replay.settings import LogSettings


@contextmanager
def opened_log(path: str, format: str | None, settings: LogSettings) -> Iterator[Log]:
    """A log with at least one event; closed with the block.

    Raises:
        SettingsError: with every wrong setting.
        SourceError: it cannot be read, or the filters leave no event of it.
    """
    from streamer.replay.datasets import open_log

    logger = logging.getLogger("streamer.replay.datasets")
    handler = logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with open_log(path, format, settings) as log:
            report_malformed(log.malformed, path)
            if not len(log):
                raise SourceError(f"{log.path}: the filters leave no event of it")
            yield log
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def report_malformed(malformed: MalformedRows, path: str) -> None:
    """Print what was no event, and where."""
    for example in malformed.examples:
        click.echo(f"{path}, {example}", err=True)
    if malformed.total:
        listed = len(malformed.examples)
        more = f", the first {listed} are listed" if malformed.total > listed else ""
        click.echo(
            f"{malformed.total:,} malformed events were left out{more}", err=True
        )
