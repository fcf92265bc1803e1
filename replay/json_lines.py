"""Reads events from JSON lines in the order of the lines: exactly those that `streamer
run --source` would train.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from streamer.errors import SourceError
from streamer.event import Decoded, EventDecoder, EventSettings
from streamer.replay.events import MalformedRows, Record
from streamer.sources.base import Chunk
from streamer.sources.files import FileSource

LINES_AT_ONCE = 4096
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_GZIP = b"\x1f\x8b"
_COMPRESSED = {
    _GZIP: "compressed by gzip, but not named .gz",
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
}


def check_readable(path: Path) -> None:
    """See that a file is plain, or compressed in the one way that can be read line by
    line.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    kind = next(
        (kind for magic, kind in _COMPRESSED.items() if start.startswith(magic)), None
    )
    if kind is not None and not (path.suffix == ".gz" and start.startswith(_GZIP)):
        raise SourceError(
            f"{path} is {kind}: lines are read in their order from plain files and .gz. Unpack it first"
        )


class JsonLines:
    """The events of a file of JSON lines, or of standard input, as records by our own
    field names.

    A line is an event or an array of events; the decoder that the trainer uses checks
    it, and the filters of its settings are left to the trainer. An event without a time
    gets that of its file.
    """

    def __init__(self, path: str | Path, settings: EventSettings | None = None) -> None:
        unfiltered = dataclasses.replace(
            settings or EventSettings(), event_types=(), min_rating=None
        )
        self._path = path
        self._decoder = EventDecoder(unfiltered)
        self._fields = dict(self._decoder.settings.fields)
        self._ours = {theirs: ours for ours, theirs in self._fields.items()}
        self.malformed = MalformedRows()

    def __iter__(self) -> Iterator[list[Record]]:
        """Chunks of records, in the order of the lines."""
        with closing(FileSource(self._path)) as source:
            source.open(_WholeFile())
            while not source.at_end:
                for chunk in source.poll(LINES_AT_ONCE, 0.2):
                    yield self._records(chunk)

    def _records(self, chunk: Chunk) -> list[Record]:
        decoded = self._decoder.decode(chunk)
        for letter in decoded.letters:
            self.malformed.by_reason[str(letter.reason)] += 1
            element = "" if letter.index is None else f", element {letter.index + 1}"
            self.malformed.add_example(
                f"line {letter.offset + 1}{element}: {letter.reason}: {letter.detail}"
            )
        times_ms = [round(time_s * 1000) for time_s in decoded.timestamps_s]
        keys = [user.encode() for user in decoded.users]
        return list(zip(keys, self._values(chunk, decoded), times_ms, strict=True))

    def _values(self, chunk: Chunk, decoded: Decoded) -> list[bytes]:
        """The value of each event: the line as it is, where that is an event by our own
        names.
        """
        if (
            decoded.offsets == chunk.offsets
            and not self._fields
            and not any(map(_is_array, chunk.values))
        ):
            return chunk.values
        values: list[bytes] = []
        start = start_of_letters = 0
        for line, end, end_of_letters in zip(
            chunk.values, decoded.events_upto, decoded.letters_upto, strict=True
        ):
            if end > start and _is_array(line):
                bad = {
                    letter.index
                    for letter in decoded.letters[start_of_letters:end_of_letters]
                }
                values += [
                    self._renamed(event)
                    for index, event in enumerate(_decode(line))
                    if index not in bad
                ]
            elif end > start:
                values.append(self._renamed(_decode(line)) if self._fields else line)
            start = end
            start_of_letters = end_of_letters
        return values

    def _renamed(self, event: dict[str, Any]) -> bytes:
        """An event by our names. A field that has one of them but means something else
        is left out.
        """
        ours = self._ours
        mapped = self._fields
        return _encode(
            {
                ours.get(name, name): v
                for name, v in event.items()
                if name in ours or name not in mapped
            }
        )


class _WholeFile:
    """Reads all of a file."""

    def on_assigned(self, partitions: object) -> dict[Any, int]:
        return {}

    def on_revoked(self, partitions: object) -> None:
        """A file is never revoked."""


def _is_array(line: bytes) -> bool:
    return line.lstrip(b" \t\r\n").startswith(b"[")
