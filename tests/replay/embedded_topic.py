"""What a replay has written to an embedded log."""

from __future__ import annotations

from pathlib import Path

from contracts.source_contract import RecordingListener

from streamer.sources.base import Chunk
from streamer.sources.embedded.source import EmbeddedSource


def chunks_in(data_dir: Path, topic: str) -> list[Chunk]:
    """All records of a topic."""
    source, found = EmbeddedSource(data_dir, topic), list[Chunk]()
    source.open(RecordingListener({}))
    while chunks := source.poll(100_000, 0):
        found += chunks
    source.close()
    return found
