"""A format of logs: its name, how to know it, and how its files are laid out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamer.replay.datasets.database import Connection
from streamer.replay.datasets.files import LogFile, Origin, Peek
from streamer.replay.datasets.layout import Layout
from streamer.replay.datasets.options import LogOptions


@dataclass(frozen=True, slots=True)
class Opened:
    """A log whose files were found: what a format lays out."""

    connection: Connection
    origin: Origin
    files: tuple[LogFile, ...]
    peek: Peek
    """The first lines of the first file."""
    options: LogOptions

    @property
    def where(self) -> str:
        """What messages call the log."""
        return str(self.origin.path) if len(self.files) > 1 or not self.origin.given else self.files[0].name


@dataclass(frozen=True, slots=True)
class DatasetFormat:
    """A format of logs.

    Args:
        name: how the user calls it.
        help: one line.
        layout: lays out files of it.
        groups: patterns of the names of its files; those of a group belong together.
        recognises: whether a file that begins so is of it, whatever its name.
        fits: whether a file that begins so is of it if its name is that of one.
        is_text: whether its files have lines.
    """

    name: str
    help: str
    layout: Callable[[Opened], Layout]
    groups: tuple[tuple[str, ...], ...]
    recognises: Callable[[Peek], bool] = lambda peek: False
    fits: Callable[[Peek], bool] = lambda peek: False
    is_text: bool = True
