"""What checkpoints cost: short turns of training with one, and without any, on the same
learner.

Each number of ids is measured in a process of its own. Its rows are those of a small
learner that was trained, many times under other ids; then a share of them, spread over
the tables, has all events.

Steps become slower while the lists of these few ids fill. So a turn with a checkpoint
is compared with the two around
it: what it took longer for its events than they would have is what a checkpoint costs,
    in time and in CPU time.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamer.accounting import Accounting
from streamer.bench.base import long_tailed
from streamer.bench.catalogue import CheckpointBench
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import Learner
from streamer.model.batch import Rows
from streamer.settings import PipelineSettings
from streamer.sharing.sharing import Sharing
from streamer.snapshot import CheckpointStore
from streamer.snapshot.checkpointer import Checkpointer, SaveStats
from streamer.vocabulary import packed

USERS = 5 / 8
"""Share of users among all ids; the others are items."""
TEMPLATE_EVENTS = 20_000
BYTES_AN_ID = 800
"""Memory that an id takes in this bench, with what it takes to make it."""
WARM_UP_STEPS = 30
TURN_S = 5.0
"""A turn is not longer than this, unless its checkpoint takes longer."""
SAVE_PATIENCE_S = 300.0


def measure(bench: CheckpointBench) -> dict[str, Any]:
    """For each number of ids, and on top those of 4 million ids, or of the most that
    were measured.
    """
    sizes: list[dict[str, Any]] = []
    for ids in bench.ids:
        if (free := _free_bytes()) < ids * BYTES_AN_ID:
            note = f"left out: {ids * BYTES_AN_ID / 1e9:.0f} GB of memory are needed, {free / 1e9:.0f} GB are free"
            sizes.append({"ids": ids, "note": note})
            continue
        with tempfile.TemporaryDirectory(dir=bench.directory) as directory:
            figures = _in_own_process(_measure_training, bench, ids, directory)
            sizes.append(figures | _in_own_process(_measure_restart, directory))
    measured = [figures for figures in sizes if "delta" in figures]
    top = next(
        (f for f in measured if f["ids"] == 4_000_000),
        measured[-1] if measured else None,
    )
    goals = {
        "longest_pause_ms": max(top["base"]["longest_pause_ms"], top["delta"]["longest_pause_ms"]),
        "delta_bytes_over_full": top["delta"]["bytes_over_full"],
        "throughput_over_without": top["delta"]["throughput_over_without"],
        "peak_memory_over_without": top["peak_memory_over_without"],
    } if top else {}  # fmt: skip
    return {
        **goals,
        "sizes": sizes,
        "options": asdict(bench) | {"directory": str(bench.directory or "")},
    }


def _in_own_process(function: Any, *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


# training -------------------------------------------------------------------------------------------------------------


def _measure_training(
    bench: CheckpointBench, ids: int, directory: str
) -> dict[str, Any]:
    started = time.perf_counter()
    learner = Learner()
    users = round(ids * USERS)
    items = ids - round(ids * USERS)
    _fill(learner, users, items)
    line = _Line(learner, _active(bench, users, items), Path(directory))
    filled_s = time.perf_counter() - started
    line.train(steps=WARM_UP_STEPS)
    turn_s = min(TURN_S, bench.every_s)
    # 1. the base, in the background
    line.turn(turn_s)
    peaks = [_peak_bytes()]
    base = line.save()
    peak = _peak_bytes()
    # 2. deltas: turns with one at their beginning, between turns without
    with_delta = list[Turn]()
    without = [line.turn(turn_s)]
    deltas = []
    shares = []
    for _ in range(bench.rounds):
        peaks.append(_peak_bytes())
        shares.append(line.change_all())
        with_delta.append(line.turn(turn_s, lambda: deltas.append(line.save())))
        peak = max(peak, _peak_bytes())
        without.append(line.turn(turn_s))
    line.checkpointer.close()
    lost_s, lost_cpu_s = (
        lost(with_delta, without, unit) for unit in ("seconds", "cpu_s")
    )
    full = base["bytes"]
    return {
        "ids": ids,
        "seconds_to_fill": round(filled_s, 1),
        "events_per_second_without": round(
            _median([turn.events / turn.seconds for turn in without])
        ),
        "base": base,
        "delta": {
            "changed_share": round(_median(shares), 4),
            "bytes": round(_median([d["bytes"] for d in deltas])),
            "bytes_over_full": round(_median([d["bytes"] for d in deltas]) / full, 4),
            "seconds": round(_median([d["seconds"] for d in deltas]), 2),
            "longest_pause_ms": max(d["longest_pause_ms"] for d in deltas),
            "lost_s": round(lost_s, 3),
            "lost_cpu_s": round(lost_cpu_s, 3),
            "throughput_over_without": round(1 - lost_s / bench.every_s, 3),
        },
        "memory_bytes": _median(peaks),
        "peak_memory_over_without": round(peak / _median(peaks), 3),
    }


class Turn(NamedTuple):
    """Some training: what it took."""

    events: int
    seconds: float
    cpu_s: float  # of all threads


def lost(turns: list[Turn], without: list[Turn], unit: str) -> float:
    """The median of what each turn took more than its events take in the turns before
    and after it.
    """
    found = []
    for turn, before, after in zip(turns, without, without[1:], strict=False):
        each = (getattr(before, unit) + getattr(after, unit)) / (
            before.events + after.events
        )
        found.append(getattr(turn, unit) - turn.events * each)
    return _median(found)


class _Line:
    """Trains events of a share of the ids, and saves; as a run does, but for reading
    the events.
    """

    def __init__(
        self, learner: Learner, active: tuple[Rows, Rows], directory: Path
    ) -> None:
        self.learner = learner
        self.events = 0
        self.checkpointer = Checkpointer(CheckpointStore(directory), every_s=None)
        self.checkpointer.restore(learner, Sharing())
        self._changed = learner.changes.reader()
        self._active = active
        self._batches = _batches(*active)
        self._ids = len(learner.users) + len(learner.items)
        learner.occurrence.add(
            active[1], np.ones(len(active[1]))
        )  # the cache is drawn among these

    def turn(self, seconds: float, begin: Callable[[], None] = lambda: None) -> Turn:
        """Train for some time, which includes whatever is done first."""
        started = time.perf_counter()
        cpu_s = time.process_time()
        events = self.events
        begin()
        while time.perf_counter() - started < seconds:
            self.train()
        return Turn(
            self.events - events,
            time.perf_counter() - started,
            time.process_time() - cpu_s,
        )

    def train(self, steps: int = 1) -> None:
        """Train some steps, as a run does."""
        for _ in range(steps):
            batch = next(self._batches)
            self.learner.learn_batch(batch)
            self.checkpointer.advance()
            self.events += len(batch)

    def save(self) -> dict[str, Any]:
        """Save, and train until it is safe."""
        self.checkpointer._longest_pause_s = 0.0
        accounting = Accounting(trained=self.events)
        offsets = OffsetSnapshot({}, {})
        self.checkpointer.save(
            self.learner, Sharing(), accounting, offsets, lambda safe: None
        )
        started = time.perf_counter()
        events = self.events
        while (
            self.checkpointer.is_saving
            and time.perf_counter() - started < SAVE_PATIENCE_S
        ):
            self.train()
        stats: SaveStats = self.checkpointer.stats(self.events)
        return {
            "bytes": stats.size_bytes or 0,
            "seconds": round(stats.seconds or 0.0, 2),
            "longest_pause_ms": round(1e3 * stats.longest_pause_s, 1),
            "events_per_second": round(
                (self.events - events) / (time.perf_counter() - started)
            ),
        }

    def change_all(self) -> float:
        """Note that all ids with events are written; returns the share of all ids that
        were since the last call.
        """
        users, items = self._active
        for kind, rows in (("users", users), ("items", items), ("pairs", items)):
            self.learner.changes.mark(kind, rows)
        return (
            sum(len(self._changed.take(kind)) for kind in ("users", "items"))
            / self._ids
        )


def _active(bench: CheckpointBench, users: int, items: int) -> tuple[Rows, Rows]:
    """Users and items that have events: a share of all, spread over the tables."""
    rng = np.random.default_rng(1)
    who, what = (
        rng.choice(n, max(1, round(n * bench.changed_share)), replace=False)
        for n in (users, items)
    )
    return who, what


def _batches(users: Rows, items: Rows) -> Iterator[MicroBatch]:
    """Events of random users with long-tailed items."""
    rng = np.random.default_rng(2)
    size = PipelineSettings.batch_size
    popular = long_tailed(rng, len(items), 1 << 20, 0.6)
    now_s = 1_700_000_000.0
    while True:
        who = users[rng.integers(0, len(users), size)]
        what = items[popular[rng.integers(0, len(popular), size)]]
        times = (now_s + np.arange(size) * 0.01).tolist()
        yield MicroBatch(
            [f"user-{u}" for u in who.tolist()],
            [f"item-{i}" for i in what.tolist()],
            times,
        )
        now_s += size * 0.01


def _fill(learner: Learner, users: int, items: int) -> None:
    """Rows like those of a small learner that was trained, under as many ids as are
    wanted.
    """
    template = Learner()
    rng = np.random.default_rng(0)
    many = min(TEMPLATE_EVENTS // 4, users, items)
    who = rng.integers(0, many, TEMPLATE_EVENTS)
    what = long_tailed(rng, many, TEMPLATE_EVENTS, 0.6)
    template.learn(
        zip(
            (f"u{u}" for u in who.tolist()),
            (f"i{i}" for i in what.tolist()),
            strict=True,
        )
    )
    for kind, size, name in (
        ("items", items, "item"),
        ("pairs", items, ""),
        ("users", users, "user"),
    ):
        rows = template.rows(kind)
        arrays = template.take(kind, rows)
        if (
            kind == "items"
        ):  # what was never drawn: the cache then holds items that have events
            arrays["occurrence.counts"] = np.zeros_like(arrays["occurrence.counts"])
        for start in range(0, size, len(rows)):
            new = np.arange(start, min(start + len(rows), size))
            held = (
                arrays
                if len(new) == len(rows)
                else template.take(kind, rows[: len(new)])
            )
            if name:
                utf8, offsets = packed([f"{name}-{row}" for row in new.tolist()])
                held = held | {
                    "ids.utf8": utf8,
                    "ids.length": np.diff(offsets).astype(np.int32),
                }
            learner.put(kind, new, held)
    dense, values = template.dense()
    sizes = {
        name: learner.dense()[0][name]
        for name in dense
        if name.endswith((".size", ".sums"))
    }
    learner.load_dense(dense | sizes | {"cache": np.empty(0, np.int64)}, values)


# restarting -----------------------------------------------------------------------------------------------------------


def _measure_restart(directory: str) -> dict[str, Any]:
    """Seconds from opening the directory to the end of the first step."""
    Learner().learn([("u", "i")])  # kernels are loaded
    started = time.perf_counter()
    learner = Learner()
    checkpointer = Checkpointer(CheckpointStore(directory), every_s=None)
    checkpointer.restore(learner, Sharing())
    restored_s = time.perf_counter() - started
    learner.learn([("user-1", "item-1")])
    first_step_s = time.perf_counter() - started
    points = len(checkpointer._store.chain)
    checkpointer.close()
    return {
        "restart_s": round(first_step_s, 2),
        "restored_s": round(restored_s, 2),
        "restored_points": points,
    }


# memory ---------------------------------------------------------------------------------------------------------------


def _peak_bytes() -> int:
    """The most memory that this process had since the last call."""
    gc.collect()
    with open("/proc/self/status") as file:  # noqa: PTH123
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak << 10


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _median(values: list[Any]) -> float:
    return float(np.median(values))
