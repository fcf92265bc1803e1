"""What the readers of logs have to say, on standard error: which format they took a file for, what is wrong with it.

They say it by `logging`; a command shows it while it runs, and standard output stays as it is.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import click

from streamer.cli.options import F


class _ToStandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(record.getMessage(), err=True)


@contextmanager
def shown() -> Iterator[None]:
    """Meanwhile, show what readers say."""
    logger, handler = logging.getLogger("streamer.replay.datasets"), _ToStandardError(logging.INFO)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def showing_notices(function: F) -> F:
    """A command that shows what readers say."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        with shown():
            return function(*args, **kwargs)

    return cast(F, command)
