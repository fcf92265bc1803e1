"""Dead letters: what could not be used, why, and where it is kept.

Letters are written at least once. They must be flushed before a checkpoint moves the
positions past their records; those after the last checkpoint are read and written again
when a killed process starts anew. A letter is identified by (topic, partition, offset,
index), however often it comes.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from streamer.errors import StreamerError, file_advice

KEPT_VALUE_BYTES = 65_536
"""How much of the value of a record that is too large its letter keeps. Others keep
all.
"""
KEPT_KEY_BYTES = 1024
"""How much of a record's key its letters keep: an array may yield thousands of letters,
each with the key.
"""
LETTER_BYTES = 512
"""What a letter is taken to weigh besides its value and key."""


def is_file(name: str) -> bool:
    """Whether dead letters of this name are a file: topics have no slash, and ours do
    not end like files of them.
    """
    return "/" in name or name.endswith(".jsonl")


class Reason(enum.StrEnum):
    """Why something is a dead letter: a closed set, fit for a metric's label."""

    NULL_VALUE = "null_value"  # no value (a tombstone) or an empty one
    RECORD_TOO_LARGE = "record_too_large"
    NOT_JSON = "not_json"
    UNKNOWN_SCHEMA = "unknown_schema"  # the registry does not have it, or it is wrong
    BAD_ENCODING = "bad_encoding"  # it is not what its schema says
    TOO_DEEP = "too_deep"
    NOT_AN_EVENT = "not_an_event"  # JSON, but no object
    EMPTY_ARRAY = "empty_array"
    TOO_MANY_EVENTS = "too_many_events"
    MISSING_USER_ID = "missing_user_id"
    BAD_USER_ID = "bad_user_id"
    MISSING_ITEM_ID = "missing_item_id"
    BAD_ITEM_ID = "bad_item_id"
    ID_TOO_LONG = "id_too_long"
    MISSING_TIMESTAMP = (
        "missing_timestamp"  # neither the event nor its record has a time
    )
    BAD_TIMESTAMP = "bad_timestamp"
    BAD_FEATURES = "bad_features"
    TOO_MANY_FEATURES = "too_many_features"
    FEATURE_TOO_LONG = "feature_too_long"
    BAD_EVENT_TYPE = "bad_event_type"
    BAD_RATING = "bad_rating"
    BAD_WEIGHT = "bad_weight"


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """An event, or a whole record, that could not be used."""

    reason: Reason
    detail: str  # for people; short, whatever the record holds
    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # the record's own time
    key: bytes | None  # the beginning of the record's key
    value: bytes | None  # the record's value, or if that is an array, the bad element
    index: int | None = None  # which element of the array; None: the whole record

    @property
    def size(self) -> int:
        """About how many bytes the letter takes in memory."""
        return LETTER_BYTES + len(self.value or b"") + len(self.key or b"")


class DeadLetters:
    """Where dead letters go: here, nowhere. Called by one thread."""

    def open(self) -> None:
        """See that letters can be written, before there are any. May be called twice.

        Raises:
            SourceUnavailable: the other side is away; letters will wait for it.
            StreamerError: they cannot be written.
        """

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Take letters; they are safe only after `flush`.

        Raises:
            StreamerError: they cannot be written.
        """

    def backpressure_reason(self) -> str | None:
        """Why no more letters should come now, for a person; None if they may."""
        return None

    def flush(self) -> None:
        """Return when every letter taken so far is safe.

        Raises:
            SourceUnavailable: the other side is away; they wait for the next call.
            StreamerError: they cannot be written.
        """

    def close(self) -> None:
        """Flush and let go. May be called twice."""


class FileDeadLetters(DeadLetters):
    """Appends letters to a file, one JSON object a line.

    `topic`, `partition`, `offset`, `index` say which event (`index` is null for a whole
    record), `reason` and `detail` why, `timestamp_ms` is the record's own time and
    `time` when the letter was written. The value is `value` if it is UTF-8, else
    `value_base64`; and so with the key.

    A line that a crash left without its end was never flushed, so its letter will come
    again: it is cut off on opening. Letters that come again are written again. A file
    is written by one process at a time. After a write that failed nothing succeeds any
    more, so that no checkpoint can pass letters that were lost.

    Args:
        path: the file; it and its folders are created.
        clock: seconds since the epoch.

    Raises:
        StreamerError: the file cannot be opened, or another process writes it.
    """

    def __init__(
        self, path: Path | str, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._failure: StreamerError | None = None
        with self._explained("open"):
            self._file = _open_locked(self.path)

    def write(self, letters: Sequence[DeadLetter]) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat(
            timespec="milliseconds"
        )
        with self._explained("write"):
            self._file.writelines(_line(letter, now) for letter in letters)

    def flush(self) -> None:
        with self._explained("write"):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            with contextlib.suppress(OSError):  # of what `flush` has reported
                self._file.close()

    @contextlib.contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        """Turn the system's errors into ours, and raise the first of them ever after."""
        if self._failure:
            raise self._failure
        try:
            yield
        except BlockingIOError:
            text = f"dead letters {self.path} are being written by another process; give each its own file"
            raise StreamerError(text) from None
        except OSError as error:
            text = (
                f"cannot {action} dead letters {self.path}: {error.strerror or error}"
            )
            advice = file_advice(error, "choose another file with --dead-letters")
            self._failure = StreamerError(f"{text}; {advice}")
            raise self._failure from error


def _open_locked(path: Path) -> BinaryIO:
    """Open for appending at the end of the last whole line, in steps:

    1. create the file and its folders; 2. lock it, so that nobody's unfinished line is
       taken for a torn one;
    3. cut off a torn line; 4. sync the folder, or a crash could lose the file itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
            file.truncate(end)
        _sync_folder(path.parent)
    except BaseException:
        file.close()
        raise
    return file


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_encode = msgspec.json.Encoder().encode


def _line(letter: DeadLetter, now: str) -> bytes:
    fields = {"time": now} | msgspec.structs.asdict(letter)
    for name in ("key", "value"):
        content = fields.pop(name)
        try:
            fields[name] = None if content is None else content.decode()
        except UnicodeDecodeError:
            fields[f"{name}_base64"] = base64.b64encode(content).decode()
    return _encode(fields) + b"\n"
