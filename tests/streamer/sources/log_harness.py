"""Topics of an embedded log, or of its twin in memory, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from contracts.source_contract import RecordingListener
from line_harness import NOON_MS
from memory_source import MemoryLog

from streamer.sources.base import Positions, Source
from streamer.sources.embedded.log import EmbeddedLog


class LogHarness:
    """Fits `SourceHarness`.

    Args:
        log: which is written.
        make_source: a source of a topic of it.
    """

    def __init__(self, log: EmbeddedLog | MemoryLog, make_source: Callable[[str], Source]) -> None:
        self._log, self._make_source = log, make_source

    def make_topic(self, partitions: int) -> str:
        name = f"topic-{len(self._log.topics())}"
        self._log.create_topic(name, partitions)
        return name

    def append(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        self._log.append(topic, records(values), partition=partition)

    def open_source(self, topic: str, positions: Positions) -> tuple[Source, RecordingListener]:
        source, listener = self._make_source(topic), RecordingListener(positions)
        source.open(listener)
        return source, listener


def records(values: Iterable[bytes], key: bytes | None = None) -> list[tuple[bytes | None, bytes, int]]:
    """Key, value and time, as logs take them."""
    return [(key, value, NOON_MS) for value in values]
