"""The position of a replay: stopped at any moment, even by SIGKILL, it goes on without losing or doubling an event.

A replay is known by its name, which follows from what determines its events and their order: the data set, the
content of its files, the options. The same command has the same name and goes on; another seed is another replay.

The position is the number of the replay's events that a topic holds. It is written in the transaction that appends
the events: here for the embedded log, in `streamer.replay.kafka.sink` for Kafka.
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
        files: all that it reads.

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
    """The embedded log, which also holds the position of each replay.

    The table `replays` of the log: topic, name of the replay, events written.
    """

    _update: tuple[int, str, str, int] | None = None  # of a position, by the next transaction

    def start_replay(self, topic: str, replay: str, restart: bool) -> int:
        """The position of a replay in a topic; a restart sets it to 0."""
        with translated_errors(self._path), self._transaction():
            self._db.execute(_TABLE)
            query = (
                "INSERT INTO replays VALUES (?, ?, 0) "
                "ON CONFLICT DO UPDATE SET written = coalesce(?, written) RETURNING written"
            )
            [row] = self._db.execute(query, (topic, replay, 0 if restart else None)).fetchall()
        return int(row[0])

    def append_at(self, topic: str, records: Sequence[Record], replay: str, position: int) -> None:
        """Append the events of a replay that follow its first `position` ones, and move its position behind them.

        Raises:
            SourceError: the replay has another position in the topic: another process writes it, too.
        """
        self._update = (position + len(records), topic, replay, position)
        try:
            self.append(topic, records)
        finally:
            self._update = None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction of the log that updates the position too."""
        with super()._transaction():
            yield
            if self._update is not None:
                query = "UPDATE replays SET written = ? WHERE topic = ? AND name = ? AND written = ?"
                if self._db.execute(query, self._update).rowcount != 1:
                    raise SourceError(
                        f"{self._path}: another process writes the same replay to topic {self._update[1]!r}. "
                        "Nothing was doubled; make sure that it runs only once, and start it again"
                    )
