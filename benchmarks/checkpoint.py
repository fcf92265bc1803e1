"""What checkpoints cost: pause, bytes, seconds and memory, and training beside them
over training without.

A share of all ids has events. What a checkpoint costs is measured by turns with one and
without, and counted once in the time between checkpoints. The full one before it is
written in the background, and measured too; so is a restart.

Each number of ids is measured in a process of its own. Its rows are those of a small
learner that was trained, many times under other ids. Steps become slower while the
lists of the few ids with events fill. So a turn with a checkpoint is compared with the
two around it: what it took longer for its events than they would have is what a
checkpoint costs, in time and in CPU time.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import streamer
from common import long_tailed, new_parser, numbers, report
from streamer.accounting import Accounting
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import OnlineLearner
from streamer.model.batch import Rows
from streamer.model.rows.id_table import packed
from streamer.settings import PipelineSettings
from streamer.sharing.sharing import Sharing
from streamer.snapshot import CheckpointStore
from streamer.snapshot.checkpointer import Checkpointer

USERS = 5 / 8
"""Share of users among all ids; the others are items."""
TEMPLATE_IDS = 5_000
EVENTS_AN_ID = 4
"""Of the learner whose rows are repeated."""
BYTES_AN_ID = 800
"""Memory that an id takes in this benchmark, with what it takes to make it."""
WARM_UP_STEPS = 30
GOAL_IDS = 4_000_000
"""Figures of this number of ids stand on top."""
TURN_S = 5.0
"""A turn is not longer than this, unless its checkpoint takes longer."""
SAVE_PATIENCE_S = 300.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    ids = (400_000, 1_000_000, 4_000_000, 16_000_000)
    add("--ids", type=numbers, default=ids, help="Numbers of users and items together.")
    changed = "Share of the ids that have events."
    add("--changed-share", type=float, default=0.01, help=changed)
    every = "Seconds between checkpoints."
    add("--every", type=float, default=20.0, dest="every_s", help=every)
    add("--rounds", type=int, default=5, help="Turns with a checkpoint and without.")
    add("--directory", help="Where to write, if not to a temporary directory.")
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """For each number of ids, and on top those of 4 million ids, or of the most that
    were measured.
    """
    sizes: list[dict[str, Any]] = []
    for ids in options.ids:
        needed = ids * BYTES_AN_ID
        free = _free_bytes()
        if free < needed:
            gb = f"{needed / 1e9:.0f} GB of memory are needed, {free / 1e9:.0f} GB"
            sizes.append({"ids": ids, "note": f"left out: {gb} are free"})
            continue
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            figures = _in_own_process(_measure_training, options, ids, directory)
            sizes.append(figures | _in_own_process(_measure_restart, directory))

    result: dict[str, Any] = {}
    measured = [figures for figures in sizes if "delta" in figures]
    if measured:
        goal = [figures for figures in measured if figures["ids"] == GOAL_IDS]
        top = (goal or measured)[-1]
        delta = top["delta"]
        pauses = (top["base"]["longest_pause_ms"], delta["longest_pause_ms"])
        result["longest_pause_ms"] = max(pauses)
        result["delta_bytes_over_full"] = delta["bytes_over_full"]
        result["throughput_over_without"] = delta["throughput_over_without"]
        result["peak_memory_over_without"] = top["peak_memory_over_without"]
    options.directory = options.directory or ""
    return result | {"sizes": sizes, "options": vars(options)}


def _in_own_process(function: Any, *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


# training -----------------------------------------------------------------------------


def _measure_training(options: Namespace, ids: int, directory: str) -> dict[str, Any]:
    started = time.perf_counter()
    learner = OnlineLearner()
    users = round(ids * USERS)
    items = ids - users
    _fill(learner, users, items)
    line = _Line(learner, _active(options, users, items), Path(directory))
    filled_s = time.perf_counter() - started
    line.train(steps=WARM_UP_STEPS)
    turn_s = min(TURN_S, options.every_s)
    # 1. the base, in the background
    line.turn(turn_s)
    peaks = [_peak_bytes()]
    base = line.save()
    peak = _peak_bytes()
    # 2. deltas: turns with one at their beginning, between turns without
    with_delta: list[Turn] = []
    without = [line.turn(turn_s)]
    deltas: list[dict[str, Any]] = []
    shares = []
    for _ in range(options.rounds):
        peaks.append(_peak_bytes())
        shares.append(line.change_all())
        with_delta.append(line.turn(turn_s, lambda: deltas.append(line.save())))
        peak = max(peak, _peak_bytes())
        without.append(line.turn(turn_s))
    line.checkpointer.close()
    rates = [turn.events / turn.seconds for turn in without]
    delta_bytes = median(delta["bytes"] for delta in deltas)
    lost_s = lost(with_delta, without, "seconds")
    lost_cpu_s = lost(with_delta, without, "cpu_s")
    return {
        "ids": ids,
        "seconds_to_fill": round(filled_s, 1),
        "events_per_second_without": round(median(rates)),
        "base": base,
        "delta": {
            "changed_share": round(median(shares), 4),
            "bytes": round(delta_bytes),
            "bytes_over_full": round(delta_bytes / base["bytes"], 4),
            "seconds": round(median(delta["seconds"] for delta in deltas), 2),
            "longest_pause_ms": max(delta["longest_pause_ms"] for delta in deltas),
            "lost_s": round(lost_s, 3),
            "lost_cpu_s": round(lost_cpu_s, 3),
            "throughput_over_without": round(1 - lost_s / options.every_s, 3),
        },
        "memory_bytes": median(peaks),
        "peak_memory_over_without": round(peak / median(peaks), 3),
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
        taken = getattr(before, unit) + getattr(after, unit)
        each = taken / (before.events + after.events)
        found.append(getattr(turn, unit) - turn.events * each)
    return median(found)


class _Line:
    """Trains events of a share of the ids, and saves; as a run does, but for reading
    the events.
    """

    def __init__(
        self, learner: OnlineLearner, active: tuple[Rows, Rows], directory: Path
    ) -> None:
        self.learner = learner
        self.events = 0
        self.checkpointer = Checkpointer(CheckpointStore(directory), every_s=None)
        self.checkpointer.restore(learner, Sharing())
        self._changed = learner.state.changes.reader()
        self._active = active
        self._batches = _batches(*active)
        self._ids = len(learner.state.users) + len(learner.state.items)
        # The cache is drawn among the items that have events.
        learner.state.occurrence.add(active[1], np.ones(len(active[1])))

    def turn(self, seconds: float, begin: Callable[[], None] = lambda: None) -> Turn:
        """Train for some time, which includes whatever is done first."""
        started = time.perf_counter()
        cpu_s = time.process_time()
        events = self.events
        begin()
        while time.perf_counter() - started < seconds:
            self.train()
        taken_s = time.perf_counter() - started
        taken_cpu_s = time.process_time() - cpu_s
        return Turn(self.events - events, taken_s, taken_cpu_s)

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
        deadline = started + SAVE_PATIENCE_S
        while self.checkpointer.is_saving and time.perf_counter() < deadline:
            self.train()
        rate = (self.events - events) / (time.perf_counter() - started)
        stats = self.checkpointer.stats(self.events)
        return {
            "bytes": stats.size_bytes or 0,
            "seconds": round(stats.seconds or 0.0, 2),
            "longest_pause_ms": round(1e3 * stats.longest_pause_s, 1),
            "events_per_second": round(rate),
        }

    def change_all(self) -> float:
        """Note that all ids with events are written; returns the share of all ids that
        were since the last call.
        """
        users, items = self._active
        for kind, rows in (("users", users), ("items", items), ("pairs", items)):
            self.learner.state.changes.mark(kind, rows)
        changed = len(self._changed.take("users")) + len(self._changed.take("items"))
        return changed / self._ids


def _active(options: Namespace, users: int, items: int) -> tuple[Rows, Rows]:
    """Users and items that have events: a share of all, spread over the tables."""
    rng = np.random.default_rng(1)
    active_users = max(1, round(users * options.changed_share))
    active_items = max(1, round(items * options.changed_share))
    return (
        rng.choice(users, active_users, replace=False),
        rng.choice(items, active_items, replace=False),
    )


def _batches(users: Rows, items: Rows) -> Iterator[MicroBatch]:
    """Events of random users with long-tailed items."""
    rng = np.random.default_rng(2)
    size = PipelineSettings.batch_size
    popular = long_tailed(rng, len(items), 1 << 20, 0.6)
    now_s = 1_700_000_000.0
    while True:
        who = users[rng.integers(0, len(users), size)]
        what = items[popular[rng.integers(0, len(popular), size)]]
        user_ids = [f"user-{user}" for user in who.tolist()]
        item_ids = [f"item-{item}" for item in what.tolist()]
        times_s = (now_s + np.arange(size) * 0.01).tolist()
        yield MicroBatch(user_ids, item_ids, times_s)
        now_s += size * 0.01


def _fill(learner: OnlineLearner, users: int, items: int) -> None:
    """Rows like those of a small learner that was trained, under as many ids as are
    wanted.
    """
    template = _template(min(TEMPLATE_IDS, users, items))
    _fill_kind(learner, template, "items", items, "item")
    _fill_kind(learner, template, "pairs", items, None)
    _fill_kind(learner, template, "users", users, "user")
    dense, values = template.state.dense()
    for name, array in learner.state.dense()[0].items():
        if name.endswith((".size", ".sums")):
            dense[name] = array
    dense["cache"] = np.empty(0, np.int64)
    learner.state.load_dense(dense, values)


def _template(ids: int) -> OnlineLearner:
    """A learner that was trained with as many users, and as many items."""
    rng = np.random.default_rng(0)
    events = EVENTS_AN_ID * ids
    users = rng.integers(0, ids, events).tolist()
    items = long_tailed(rng, ids, events, 0.6).tolist()
    template = OnlineLearner()
    user_ids = [f"u{user}" for user in users]
    item_ids = [f"i{item}" for item in items]
    streamer.Learner(template).learn(zip(user_ids, item_ids, strict=True))
    return template


def _fill_kind(
    learner: OnlineLearner,
    template: OnlineLearner,
    kind: str,
    size: int,
    name: str | None,
) -> None:
    """Repeat the rows of a kind, under new ids if the kind has a name of these."""
    rows = template.state.rows(kind)
    for start in range(0, size, len(rows)):
        new = np.arange(start, min(start + len(rows), size))
        arrays = template.state.take(kind, rows[: len(new)])
        if kind == "items":
            # Nothing was drawn: the cache then holds items that have events.
            arrays["occurrence.counts"] = np.zeros_like(arrays["occurrence.counts"])
        if name is not None:
            utf8, offsets = packed([f"{name}-{row}" for row in new.tolist()])
            arrays["ids.utf8"] = utf8
            arrays["ids.length"] = np.diff(offsets).astype(np.int32)
        learner.state.put(kind, new, arrays)


# restarting ---------------------------------------------------------------------------


def _measure_restart(directory: str) -> dict[str, Any]:
    """Seconds from opening the directory to the end of the first step."""
    streamer.Learner().learn([("u", "i")])  # kernels are loaded
    started = time.perf_counter()
    learner = OnlineLearner()
    checkpointer = Checkpointer(CheckpointStore(directory), every_s=None)
    checkpointer.restore(learner, Sharing())
    restored_s = time.perf_counter() - started
    streamer.Learner(learner).learn([("user-1", "item-1")])
    first_step_s = time.perf_counter() - started
    points = len(checkpointer._store.links)
    checkpointer.close()
    return {
        "restart_s": round(first_step_s, 2),
        "restored_s": round(restored_s, 2),
        "restored_points": points,
    }


# memory -------------------------------------------------------------------------------


def _peak_bytes() -> int:
    """The most memory that this process had since the last call."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
