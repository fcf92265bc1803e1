"""Events per second of groups of trainers in lockstep, one thread each, and what
communication takes of a step.

All train the same events with the defaults of `streamer run`, by turns.
`two_ranks_over_one` and `communication_share` are those of the largest batch with local
negatives; `one` is a group of one, `plain` a trainer without a group. On a machine that
has other work the wall says little: `on_cores` compares what the busiest rank took of a
core.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack, closing
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np
import torch

from common import long_tailed, new_parser, numbers, report, rounded
from processes import RESULT_S, RemoteObject, call_all, free_port
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.learner import OnlineLearner
from streamer.lockstep.group import Group, connect
from streamer.lockstep.learner import LockstepLearner
from streamer.model.settings import LearnerSettings
from streamer.sources.base import Partition

NEGATIVES = ("global", "local")
PLAIN = 0
"""Instead of a number of trainers: one without a group."""
BATCHES = 8
WARM_UP_STEPS = 4
CONTROL = 64
"""Numbers that the ranks exchange at the beginning of a step."""


class Job(NamedTuple):
    """What all ranks of a group measure together."""

    batch_size: int
    negatives: str


class Measured(NamedTuple):
    """What some steps took on one rank."""

    seconds: float
    core_s: float
    """Of all threads, on a core: what the wall would show on an idle machine."""
    collectives_s: list[float]
    sent_bytes: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("--trainers", type=numbers, default=(1, 2), help="Numbers of trainers.")
    sizes = "Events of a step, of all trainers together."
    add("--batch-sizes", type=numbers, default=(2048, 8192), help=sizes)
    add("--items", type=int, default=40_988, help="Items of the stream.")
    add("--users", type=int, default=29_858, help="Users of the stream.")
    add("--parts", type=int, default=4, help="Parts that a step is computed in.")
    add("--steps", type=int, default=8, help="Steps of a turn.")
    add("--rounds", type=int, default=5, help="Turns of each; the median counts.")
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """Events per second by number of ranks, batch size and kind of negatives, and what
    communication takes of a step.

    Beside the groups stands a plain trainer, which computes a step in one part: for it
    all negatives are global.
    """
    medians = _measured_by_turns(options)
    table = []
    for (job, size), figures in sorted(medians.items()):
        row = {"trainers": size or "plain", **job._asdict()}
        table.append(row | rounded(figures, 4))

    largest = max(options.batch_sizes)
    plain = medians[Job(largest, "global"), PLAIN]
    one = medians.get((Job(largest, "local"), 1))
    two = medians.get((Job(largest, "local"), 2))
    result: dict[str, Any] = {
        "two_ranks_over_one": None,
        "two_ranks_over_one_on_cores": None,
        "two_ranks_over_plain": None,
        "communication_share": None,
    }
    if one and two:
        on_cores = one["core_ms"] / two["core_ms"]
        result["two_ranks_over_one"] = round(_speed(two) / _speed(one), 3)
        result["two_ranks_over_one_on_cores"] = round(on_cores, 3)
    if two:
        result["two_ranks_over_plain"] = round(_speed(two) / _speed(plain), 3)
        result["communication_share"] = round(two["communication_share"], 3)
    options_and_cores = vars(options) | {"cores": os.cpu_count()}
    return result | {"table": table, "options": options_and_cores}


def _measured_by_turns(options: Namespace) -> dict[tuple[Job, int], dict[str, float]]:
    """The median turn of each job and number of trainers."""
    turns: dict[tuple[Job, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        groups: dict[int, list[RemoteObject]] = {}
        for size in (PLAIN, *options.trainers):
            port = free_port()
            groups[size] = []
            for rank in range(max(size, 1)):
                remote = RemoteObject(Rank, rank, size, port, options)
                groups[size].append(stack.enter_context(closing(remote)))
        for ranks in groups.values():
            for rank in ranks:
                rank.result()

        for _ in range(options.rounds):
            for batch_size in options.batch_sizes:
                for negatives in NEGATIVES:
                    job = Job(batch_size, negatives)
                    for size, ranks in groups.items():
                        if size == PLAIN and negatives == "local":
                            continue
                        found = call_all(ranks, "train", job)
                        figures = _figures(found, options.steps, batch_size)
                        turns.setdefault((job, size), []).append(figures)

    medians = {}
    for key, found in turns.items():
        middle = median_low(map(_speed, found))
        medians[key] = next(figures for figures in found if _speed(figures) == middle)
    return medians


def _speed(figures: dict[str, float]) -> float:
    return figures["events_per_second"]


def _figures(ranks: list[Measured], steps: int, batch_size: int) -> dict[str, float]:
    """What a turn took.

    The time that a collective takes is that of the rank that comes last to it: the
    others wait for it, which is not communication.
    """
    seconds = max(rank.seconds for rank in ranks)
    collectives = zip(*(rank.collectives_s for rank in ranks), strict=True)
    exchanged_s = sum(map(min, collectives))
    return {
        "events_per_second": steps * batch_size / seconds,
        "step_ms": 1e3 * seconds / steps,
        "core_ms": 1e3 * max(rank.core_s for rank in ranks) / steps,
        "communication_share": exchanged_s / seconds,
        "sent_bytes_a_step": max(rank.sent_bytes for rank in ranks) / steps,
    }


class Rank:
    """One trainer of a group, in a process of its own, with one thread."""

    def __init__(self, rank: int, size: int, port: int, options: Namespace) -> None:
        torch.set_num_threads(1)
        os.environ["RANK"] = str(rank)
        os.environ["WORLD_SIZE"] = str(size)
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(port)
        self._group = Group()
        if size != PLAIN:
            self._group = connect(max(options.parts, size), RESULT_S)
        self._options = options
        self._collectives_s: list[float] = []
        self._time_collectives()
        self._learners: dict[Job, tuple[OnlineLearner, list[MicroBatch]]] = {}

    def train(self, job: Job) -> Measured:
        """Train the steps of a turn."""
        if job not in self._learners:
            self._learners[job] = self._new_learner(job)
        learner, batches = self._learners[job]
        self._collectives_s.clear()
        sent = self._group.traffic.sent_bytes
        started = time.perf_counter()
        core = time.process_time()
        for k in range(self._options.steps):
            self._group.wait([0] * CONTROL, list[int])
            learner.learn_batch(batches[k % BATCHES])
        return Measured(
            time.perf_counter() - started,
            time.process_time() - core,
            list(self._collectives_s),
            self._group.traffic.sent_bytes - sent,
        )

    def close(self) -> None:
        self._group.close()

    def _new_learner(self, job: Job) -> tuple[OnlineLearner, list[MicroBatch]]:
        settings = LearnerSettings(negatives=job.negatives)
        learner = OnlineLearner(settings)
        if self._group.parts > 1:
            learner = LockstepLearner(settings, self._group)
        batches = [self._batch(step, job.batch_size) for step in range(BATCHES)]
        for k in range(WARM_UP_STEPS):
            learner.learn_batch(batches[k % BATCHES])
        return learner, batches

    def _batch(self, step: int, batch_size: int) -> MicroBatch:
        """This rank's events of a step, of as many partitions as there are parts."""
        group = self._group
        events = batch_size // group.parts
        batch = MicroBatch()
        for partition in range(group.parts):
            if group.owner(group.part_of(partition)) != group.rank:
                continue
            rng = np.random.default_rng([step, partition])
            users = rng.integers(0, self._options.users // group.parts, events)
            items = long_tailed(rng, self._options.items, events, 0.6)
            seconds = np.sort(rng.integers(0, 100, events))
            start = len(batch)
            origin = Origin(Partition("bench", partition), start, start + events)
            batch.origins.append(origin)
            batch.users += [f"{partition}.{user}" for user in users]
            batch.items += map(str, items)
            batch.timestamps_s += (1.7e9 + 100 * step + seconds).tolist()
        return batch

    def _time_collectives(self) -> None:
        gather = self._group._gather
        if gather is None:
            return

        def timed(message: Any, lengths: Sequence[int]) -> list[Any]:
            started = time.perf_counter()
            found = gather(message, lengths)
            self._collectives_s.append(time.perf_counter() - started)
            return found

        self._group._gather = timed


if __name__ == "__main__":
    main()
