"""What tests of the whole line need: events, a small learner, and a look at what was learned and saved."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from memory_source import MemoryLog

from streamer.cli.options import settings_options
from streamer.event import encode
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Evaluator, OnlineLearner
from streamer.model.batch import Batch, Rows
from streamer.model.ranking.candidates import Candidates
from streamer.model.settings import LearnerSettings, id_towers
from streamer.settings import RunSettings
from streamer.snapshot import Checkpoint, SnapshotDirectory
from streamer.sources.base import Partition

NOON_MS = 1_700_000_000_000
PATIENCE_S = 60.0
"""When to give up on what should happen; no test waits this long unless it fails."""
TOPIC = "interactions"

Event = tuple[str, str]
"""User and item."""


def events(count: int, seed: int = 0, users: int = 40, items: int = 60) -> list[Event]:
    """A long-tailed stream: item 0 is the most popular."""
    rng = np.random.default_rng(seed)
    who = rng.integers(0, users, count)
    what = np.minimum(rng.geometric(4 / items, count) - 1, items - 1)
    return [(f"u{u}", f"i{i}") for u, i in zip(who, what, strict=True)]


def values_of(stream: Iterable[Event]) -> list[bytes]:
    """Events as records."""
    return [encode(user, item, NOON_MS / 1000) for user, item in stream]


def memory_log(values: Sequence[bytes], partitions: int = 1, topic: str = TOPIC) -> MemoryLog:
    """A log with these records, in turn on each partition."""
    log = MemoryLog()
    log.create_topic(topic, partitions)
    append(log, values, topic)
    return log


def append(log: MemoryLog, values: Sequence[bytes], topic: str = TOPIC) -> None:
    """Append records, in turn on each partition."""
    partitions = itertools.cycle(range(log.topics()[topic]))
    for number, value in zip(partitions, values, strict=False):
        log.append(topic, [(None, value, NOON_MS)], partition=number)


def small(method: str = "xir", **changes: Any) -> LearnerSettings:
    """A learner that is quick, and yet has every part."""
    model = {"dim": 8, "recent_items": 4, "rerank": True, "history": 6, "co_occurring_items": 8, "ranker_events": 8}
    rest = {"dense_learning_rate": 0.05, "cache_weight": 0.2, "cache_size": 32, "hash_slots": 64, "device": "cpu"}
    return id_towers(**(model | rest | {"method": method} | changes))


def run_settings(*arguments: object) -> RunSettings:
    """The settings that `streamer run` gets from these arguments."""

    @click.command()
    @settings_options(RunSettings)
    def command(settings: RunSettings, **_: object) -> RunSettings:
        return settings

    return command.main([*map(str, arguments)], standalone_mode=False)


def micro_batch(stream: Sequence[Event], **columns: Any) -> MicroBatch:
    """Some events as one batch, without positions."""
    return MicroBatch(users=[u for u, _ in stream], items=[i for _, i in stream], **columns)


def learn_all(learner: OnlineLearner, stream: Sequence[Event], batch_size: int = 16) -> None:
    """Learn a stream in batches."""
    for start in range(0, len(stream), batch_size):
        learner.learn_batch(micro_batch(stream[start : start + batch_size]))


class Watch:
    """An evaluator that wants every event, shows what it gets before the batch is trained, and hands it on.

    Args:
        look: called with the batch and its candidates.
        evaluators: rank the batch after that.
    """

    def __init__(self, look: Callable[[Batch, Candidates | None], Any], *evaluators: Evaluator) -> None:
        self.look, self.evaluators = look, evaluators

    def choose(self, events: int) -> Rows:
        """All of them."""
        return np.arange(events)

    def __call__(self, batch: Batch, chosen: Rows, candidates: Candidates | None) -> None:
        """Look, then let the others rank."""
        self.look(batch, candidates)
        for evaluator in self.evaluators:
            evaluator(batch, chosen, candidates)


def popularity_counts(learner: OnlineLearner) -> Counter[str]:
    """How often each item was trained, by the learner's own exact counts."""
    rows = learner.state.items.used
    counts = zip(learner.state.items.ids, learner.state.item_counts.counts(rows), strict=True)
    return Counter({item: round(float(n)) for item, n in counts})


def assert_same_arrays(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same arrays, equal to the last bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name


def whole_state(learner: OnlineLearner) -> tuple[dict[str, Any], dict[str, Any]]:
    """A copy of everything that a learner has: arrays and plain values."""
    arrays = {}
    for kind in learner.state.kinds():
        rows = learner.state.rows(kind)
        arrays |= {f"{kind}/{name}": array for name, array in learner.state.take(kind, rows).items()} | {
            f"{kind}/rows": rows
        }
    dense, values = learner.state.dense()
    return arrays | dense, values


def assert_same_learner(found: OnlineLearner, expected: OnlineLearner) -> None:
    """Two learners are equal to the last bit, random states included."""
    (found_arrays, found_values), (arrays, values) = whole_state(found), whole_state(expected)
    assert_same_arrays(found_arrays, arrays)
    assert found_values == values


def newest(directory: Path) -> Checkpoint:
    """The newest checkpoint of a directory."""
    checkpoint = SnapshotDirectory(directory).load()
    assert checkpoint is not None, f"no checkpoint in {directory}"
    return checkpoint


def assert_same_checkpoint(found: Checkpoint, expected: Checkpoint) -> None:
    """Two checkpoints hold the same model at the same place, to the last bit."""
    assert_same_arrays(found.arrays(), expected.arrays())
    assert_same_learner(OnlineLearner.from_checkpoint(found), OnlineLearner.from_checkpoint(expected))
    for key in ("learner", "positions", "accounting", "settings"):
        assert found.meta[key] == expected.meta[key], key


def assert_closed(accounting: dict[str, Any]) -> None:
    """Every event is accounted for."""
    known = accounting["trained"] + accounting["filtered"] + accounting["dead_lettered"]
    assert accounting["consumed"] == known
    assert accounting["dead_lettered"] == sum(accounting["dead_letters"].values())


def committed_positions(data_dir: Path, group: str = "streamer") -> dict[Partition, int]:
    """What a group of the embedded log has committed last."""
    db = sqlite3.connect(data_dir / "log.sqlite3", isolation_level=None)
    with contextlib.closing(db), contextlib.suppress(sqlite3.OperationalError):  # no table: nothing is committed
        rows = db.execute("SELECT topic, number, position FROM committed WHERE name = ?", (group,))
        return {Partition(topic, number): position for topic, number, position in rows}
    return {}


def until(done: Callable[[], Any], step: Callable[[], Any] = lambda: time.sleep(0.02), what: str = "") -> None:
    """Repeat `step` until `done()`; `what` is to happen."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, f"it did not happen: {what}"
        step()
