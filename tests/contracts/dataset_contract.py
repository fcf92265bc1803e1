"""What every format of logs must do. The test class of a format has a sample, and inherits `DatasetContract`.

class TestMyFormat(DatasetContract):
    name = "mine"
    file = "mine.txt"                                   # as its files are called
    renamed = "other.txt"                               # a name that does not give the format away, if its lines do
    sample = "ann|x|1\nbob|y|2\n"
    events = [("ann", "x", 1.0), ("bob", "y", 2.0)]     # of the sample, in stream order; None for a log without times
    malformed = "ann|z|never"                           # a line that is not an event,
    reason = "bad_timestamp"                            # and why
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zstandard

from streamer.errors import SourceError
from streamer.replay.datasets import DATASETS, Log, LogSettings, open_log
from streamer.replay.events import Events

Row = tuple[str, str, float | None]
"""User, item and time of an event."""
Write = Callable[[str, str | bytes], Path]
REJECTED = ("missing_columns", "too_many_columns", "invalid_encoding")
"""Why a line is not a row."""
COMPRESSED = {".gz": gzip.compress, ".zst": zstandard.compress}


def rows_of(log: Log, **arguments: Any) -> list[Row]:
    """All events of a log, in stream order."""
    return [row for events in log.batches(**arguments) for row in rows_in(events)]


def rows_in(events: Events) -> list[Row]:
    return list(zip(events.users, events.items, events.timestamps_s or [None] * len(events), strict=True))


def events_of(path: Path, name: str | None = None, **options: Any) -> Events:
    """All events of a small log."""
    with open_log(path, name, LogSettings(**options)) as log:
        (events,) = log.batches()
    return events


class FormatContract:
    """For any format."""

    name: ClassVar[str]
    file: ClassVar[str]
    renamed: ClassVar[str | None] = None
    sample: ClassVar[str | bytes]
    events: ClassVar[list[Row]]
    options: ClassVar[dict[str, Any]] = {}

    def check(self, path: Path, name: str | None = None) -> None:
        with open_log(path, name, LogSettings(**self.options)) as log:
            assert log.name == self.name
            found = rows_of(log)
            assert (found if log.has_time else sorted(found)) == self.events
            assert (log.malformed.total, log.malformed.examples) == (0, [])

    def test_events_come_in_the_order_of_their_times(self, write: Write):
        self.check(write("any-name", self.sample), self.name)

    def test_format_is_guessed(self, write: Write):
        self.check(write(self.file, self.sample))
        if self.renamed:
            self.check(write(f"renamed/{self.renamed}", self.sample))

    def test_directory_with_other_files_is_read(self, write: Write):
        path = write(self.file, self.sample)
        write("README.md", "hello")
        self.check(path.parent)

    def test_help_is_a_sentence(self):
        assert DATASETS[self.name].name == self.name
        assert DATASETS[self.name].help.endswith(".")


class DatasetContract(FormatContract):
    """For a format of lines."""

    malformed: ClassVar[str | bytes]
    reason: ClassVar[str]

    def raw(self) -> bytes:
        return self.sample.encode() if isinstance(self.sample, str) else self.sample

    def test_compressed_file_is_read_whatever_its_name(self, tmp_path: Path):
        for suffix, compress in COMPRESSED.items():
            for path in (tmp_path / self.file, tmp_path / (self.file + suffix)):
                path.write_bytes(compress(self.raw()))
                self.check(path)

    def test_lines_may_end_as_in_windows_or_be_empty_and_the_last_needs_no_end(self, write: Write):
        self.check(write(self.file, self.raw().replace(b"\n", b"\r\n")))
        self.check(write(self.file, b"\n\n" + self.raw().replace(b"\n", b"\n\n")))
        self.check(write(self.file, self.raw().rstrip(b"\n")))

    def test_malformed_line_is_counted_and_shown_and_the_rest_goes_on(self, write: Write):
        line = self.malformed.encode() if isinstance(self.malformed, str) else self.malformed
        with open_log(write(self.file, self.raw() + line + b"\n"), self.name, LogSettings(**self.options)) as log:
            assert sorted(rows_of(log), key=str) == sorted(self.events, key=str)
            assert log.malformed.by_reason == {self.reason: 1}
            unit, number = ("row", len(self.events) + 1)
            if self.reason in REJECTED:
                unit, number = ("line", len(self.raw().splitlines()) + 1)
            assert log.malformed.examples[0].startswith(f"{unit} {number}: {self.reason}: ")

    def test_empty_file_is_reported(self, write: Write):
        for content in (b"", b"\n\n", b"\xef\xbb\xbf"):
            with pytest.raises(SourceError, match="empty"):
                open_log(write(self.file, content), self.name)
