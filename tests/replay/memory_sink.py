"""A sink of replays that keeps what it gets."""

from __future__ import annotations

from collections.abc import Sequence

from streamer.replay.events import Record


class MemorySink:
    """Keeps the records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.writes: list[int] = []
        self._positions: dict[str, int] = {}
        self._replay = ""

    def resume(self, replay: str, restart: bool = False) -> int:
        self._replay = replay
        if restart:
            self._positions.pop(replay, None)
        return self._positions.get(replay, 0)

    def write(self, events: Sequence[Record]) -> None:
        self.records += events
        self.writes.append(len(events))
        self._positions[self._replay] = self._positions.get(self._replay, 0) + len(events)

    def close(self) -> None:
        """Does nothing."""
