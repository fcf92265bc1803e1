"""Where a replay stands, so that it can be stopped at any moment, even by SIGKILL, and go on without doubling events.

A replay is known by its name, which follows from what determines its events and their order: the data set, the
content of its files, the options. The same command has the same name and goes on; another seed is another replay.

In the embedded log, a replay's position is written in the transaction that appends its events: there are both or
neither. `kafka_sink` explains how Kafka does it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from streamer.errors import SourceError
from streamer.replay.events import Record
from streamer.sources.embedded.database import translated_errors
from streamer.sources.embedded.source import EmbeddedLog

_TABLE = """CREATE TABLE IF NOT EXISTS replays (
    topic TEXT NOT NULL, name TEXT NOT NULL, written INTEGER NOT NULL, PRIMARY KEY (topic, name)
)"""


def replay_name(kind: str, settings: Mapping[str, Any], files: Iterable[Path] = ()) -> str:
    """The name of a replay: `gowalla-` and 16 hexadecimal digits.

    A file is known by all that is in it, wherever it lies.

    Args:
        kind: the data set.
        settings: what else determines the events and their order.
        files: that are read.

    Raises:
        SourceError: a file cannot be read.
    """
    digest = hashlib.sha256(msgspec.json.encode([kind, settings], order="deterministic", enc_hook=str))
    for path in files:
        digest.update(_content(path))
    return f"{kind}-{digest.hexdigest()[:16]}"


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error


class ReplayLog(EmbeddedLog):
    """The embedded log, which also knows how many events of each replay it has.

    The table `replays` of the log: topic, name of the replay, events written.
    """

    _note: tuple[int, str, str, int] | None = None  # what to write with the next append

    def begin(self, topic: str, replay: str, restart: bool) -> int:
        """How many events of a replay the topic has; none of them counts any more if it is restarted."""
        with translated_errors(self._path), self._transaction():
            self._db.execute(_TABLE)
            written = 0 if restart else None
            query = (
                "INSERT INTO replays VALUES (?, ?, 0) "
                "ON CONFLICT DO UPDATE SET written = coalesce(?, written) RETURNING written"
            )
            [row] = self._db.execute(query, (topic, replay, written)).fetchall()
        return int(row[0])

    def append_next(self, topic: str, records: Sequence[Record], replay: str, at: int) -> None:
        """Append the events of a replay that come after the first `at`, and write down that they are there.

        Raises:
            SourceError: the topic has another number of the replay's events: somebody else writes them too.
        """
        self._note = (at + len(records), topic, replay, at)
        try:
            self.append(topic, records)
        finally:
            self._note = None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction of the log, with the position in it."""
        with super()._transaction():
            yield
            if self._note is not None:
                query = "UPDATE replays SET written = ? WHERE topic = ? AND name = ? AND written = ?"
                if self._db.execute(query, self._note).rowcount != 1:
                    raise SourceError(
                        f"{self._path}: somebody else writes the same replay to topic {self._note[1]!r}. "
                        "Nothing was doubled; see that it runs only once, and start it again"
                    )
