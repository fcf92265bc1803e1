"""Bytes of memory of a user and an item, by part."""

from __future__ import annotations

import gc
import os
import resource
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.bench.catalogue import MemoryBench
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Learner
from streamer.model.batch import Rows
from streamer.model.jit import njit_allocating
from streamer.settings import PipelineSettings

WARM_UP_EVENTS = 2_048


def measure(bench: MemoryBench) -> dict[str, Any]:
    """Bytes per user and item on top, then by part; what the whole process took beside
    it.
    """
    rng = np.random.default_rng(0)
    many = 1 << 40
    who, what = (
        _stream(rng, bench.events, share)
        for share in (bench.new_users, bench.new_items)
    )
    _learn(
        _learner(bench, many), who[:WARM_UP_EVENTS], what[:WARM_UP_EVENTS]
    )  # loads compiled loops
    learner = _learner(bench, many)
    gc.collect()
    before = rss_bytes()
    _learn(learner, who, what)
    gc.collect()
    grown = rss_bytes() - before
    memory = learner.memory()
    by_part = {
        "user": {
            name: size / len(learner.users) for name, size in memory["users"].items()
        },
        "item": {
            name: size / len(learner.items)
            for name, size in (memory["items"] | memory["pairs"]).items()
        },
    }
    parts = sum(size for sizes in memory.values() for size in sizes.values())
    return {
        "bytes_per_user": round(sum(by_part["user"].values()), 1),
        "bytes_per_item": round(sum(by_part["item"].values()), 1),
        "users": len(learner.users),
        "items": len(learner.items),
        "by_part": {
            side: {name: round(size, 1) for name, size in sizes.items()}
            for side, sizes in by_part.items()
        },
        "fixed_bytes": memory["hash"]["slots"],
        "parts_bytes": parts,
        "rss_over_parts": round(grown / parts, 3),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "options": asdict(bench),
    }


def _learner(bench: MemoryBench, limit: int) -> Learner:
    return Learner(
        max_users=limit, max_items=limit, optimizer=bench.optimizer, device="cpu"
    )


def _learn(learner: Learner, who: Rows, what: Rows) -> None:
    size = PipelineSettings.batch_size
    for start in range(0, len(who), size):
        part = slice(start, start + size)
        users, items = (
            [f"{kind}{n:09}" for n in column[part].tolist()]
            for kind, column in (("u", who), ("i", what))
        )
        learner.learn_batch(
            MicroBatch(
                users, items, np.arange(start, start + len(users), dtype=float).tolist()
            )
        )


def rss_bytes() -> int:
    """Memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )


def _stream(rng: np.random.Generator, events: int, new: float) -> Rows:
    """[events] who or what comes: somebody new, or that of an earlier event."""
    return _copied(
        rng.random(events) < new,
        (rng.random(events) * np.arange(events)).astype(np.int64),
    )


@njit_allocating
def _copied(new: NDArray[np.bool_], earlier: Rows) -> Rows:
    found = np.arange(len(new))
    for k in range(1, len(new)):
        if not new[k]:
            found[k] = found[earlier[k]]
    return found
