"""Partitions that were assigned to us by name, each read by itself: a full queue of one
does not hold up the others.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Iterable
from typing import Protocol

from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener, Source

IDLE_SLEEP_S = 0.01


class Assigned(Source, Protocol):
    """A source whose partitions are assigned by name."""

    def has_no_more(self, partition: Partition) -> bool:
        """Whether the last look into a partition found no further record. For any
        thread.
        """
        ...


class AssignedSource:
    """One source for each partition.

    Args:
        open_one: makes the source of one partition.
        assigned: which partitions are ours now; there may be more from poll to poll.
        wants: whether to read on in a partition.
        may_commit: whether what is to be committed still is.
    """

    at_end = False
    all_assigned = True
    is_member = True
    problem = None

    def __init__(
        self,
        open_one: Callable[[Partition], Source],
        assigned: Callable[[], Iterable[Partition]],
        wants: Callable[[Partition], bool],
        may_commit: Callable[[], bool] = lambda: True,
    ) -> None:
        self._open_one = open_one
        self._assigned = assigned
        self._wants = wants
        self._may_commit = may_commit
        self._sources: dict[Partition, Source] = {}
        self._has_no_more: dict[Partition, bool] = {}
        self._listener: RebalanceListener | None = None

    def open(self, listener: RebalanceListener) -> None:
        """See `Source.open`."""
        self._listener = listener
        self._take_over()

    def _take_over(self) -> None:
        assert self._listener is not None, "open comes first"
        for partition in self._assigned():
            if partition not in self._sources:
                source = self._open_one(partition)
                source.open(self._listener)
                # not in place: another thread may be reading it
                self._sources = self._sources | {partition: source}

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`; partitions that do not want more are passed over."""
        deadline = time.monotonic() + timeout_s
        self._take_over()
        while True:
            found: list[Chunk] = []
            for partition, source in self._sources.items():
                wanted = 0
                if max_records and self._wants(partition):
                    wanted = max_records
                chunks = source.poll(wanted, 0.0)
                self._has_no_more[partition] = not chunks and wanted > 0
                found += chunks
            if found or max_records == 0 or time.monotonic() >= deadline:
                return found
            time.sleep(IDLE_SLEEP_S)

    def has_no_more(self, partition: Partition) -> bool:
        """See `Assigned.has_no_more`."""
        return self._has_no_more.get(partition, False)

    def positions(self) -> Positions:
        """See `Source.positions`."""
        return ChainMap(*(dict(s.positions()) for s in self._sources.values()))

    def commit(self, positions: Positions) -> None:
        """See `Source.commit`."""
        if not self._may_commit():
            return
        for partition, source in self._sources.items():
            if partition in positions:
                source.commit({partition: positions[partition]})

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets`."""
        return ChainMap(*(dict(s.end_offsets()) for s in self._sources.values()))

    def close(self) -> None:
        """See `Source.close`."""
        for source in self._sources.values():
            source.close()
