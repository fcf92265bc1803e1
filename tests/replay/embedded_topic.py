"""What a replay has written to an embedded log."""

from __future__ import annotations

from pathlib import Path

from contracts.source_contract import RecordingListener

from streamer.replay.events import Record
from streamer.sources.base import Source
from streamer.sources.embedded.source import EmbeddedSource


def records_in(data_dir: Path, topic: str) -> dict[int, list[Record]]:
    """All records of a topic, by partition."""
    source = EmbeddedSource(data_dir, topic)
    source.open(RecordingListener({}))
    found = read(source)
    source.close()
    return found


def read(source: Source, timeout_s: float = 0.0) -> dict[int, list[Record]]:
    """All records that a source has, by partition."""
    found: dict[int, list[Record]] = {}
    while chunks := source.poll(100_000, timeout_s):
        for chunk in chunks:
            rows = zip(chunk.keys, chunk.values, chunk.timestamps_ms, strict=True)
            found.setdefault(chunk.partition.number, []).extend(rows)
    return found
