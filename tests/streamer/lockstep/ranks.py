"""Ranks of a group as threads of one process: the same collectives, in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from streamer.lockstep.group import Group

T = TypeVar("T")


class _Meeting:
    """Where the ranks exchange arrays."""

    def __init__(self, size: int) -> None:
        self.barrier, self.slots = threading.Barrier(size, timeout=60), [np.empty(0, np.uint8)] * size

    def gather(self, rank: int, message, lengths):
        self.slots[rank] = message.copy()
        self.barrier.wait()
        found = [slot.copy() for slot in self.slots]
        assert [len(f) for f in found] == list(lengths)
        self.barrier.wait()
        return found


def run_ranks(size: int, parts: int, work: Callable[[Group], T]) -> list[T]:
    """What the work of each rank returns, by rank."""
    meeting = _Meeting(size)

    def run(rank: int) -> T:
        gather = (lambda message, lengths: meeting.gather(rank, message, lengths)) if size > 1 else None
        try:
            return work(Group(rank, size, parts, _gather=gather))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        return [future.result() for future in [threads.submit(run, rank) for rank in range(size)]]
