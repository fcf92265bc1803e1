"""Events per second of one, two and four ranks of a group, on the same events: how
training scales on this machine.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from streamer.bench.base import long_tailed
from streamer.bench.catalogue import ScaleBench
from streamer.errors import StreamerError
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.learner import Learner
from streamer.lockstep.group import Group, connect
from streamer.sources.base import Partition

NEGATIVES = ("global", "local")
PLAIN = 0
"""Instead of a number of trainers: one without a group."""
BATCHES = 8
WARM_UP_STEPS = 4
CONTROL = 64
"""Numbers that the ranks exchange at the beginning of a step."""
RESULT_S = 300.0


class Job(NamedTuple):
    """What all ranks of a group measure together."""

    batch_size: int
    negatives: str


class Measured(NamedTuple):
    """What some steps took on one rank."""

    seconds: float
    core_s: float  # of all threads, on a core: what the wall would show on a machine with nothing else to do
    collectives_s: list[float]
    sent_bytes: int


def measure(bench: ScaleBench) -> dict[str, Any]:
    """Events per second by number of ranks, batch size and kind of negatives, and what
    communication takes of a step.

    The time that a collective takes is that of the rank that comes last to it: the
    others wait for it, which is not communication. Beside the groups stands a plain
    trainer, which computes a step in one part: for it all negatives are global.
    """
    jobs = [
        Job(batch_size, negatives)
        for batch_size in bench.batch_sizes
        for negatives in NEGATIVES
    ]
    turns: dict[tuple[int, Job], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        groups = {
            size: stack.enter_context(_ranks(size, bench))
            for size in (PLAIN, *bench.trainers)
        }
        for _ in range(bench.rounds):
            for job in jobs:
                for (
                    size,
                    ranks,
                ) in groups.items():  # by turns, so that all meet the same machine
                    if size != PLAIN or job.negatives == "global":
                        found = _figures(
                            _asked(ranks, job), bench.steps, job.batch_size
                        )
                        turns.setdefault((size, job), []).append(found)
    median = {
        key: sorted(found, key=_speed)[len(found) // 2] for key, found in turns.items()
    }
    table = [
        {
            "trainers": size or "plain",
            **job._asdict(),
            **{name: round(value, 4) for name, value in figures.items()},
        }
        for (size, job), figures in sorted(
            median.items(), key=lambda item: (item[0][1], item[0][0])
        )
    ]
    largest = max(bench.batch_sizes)
    plain = median[PLAIN, Job(largest, "global")]
    goal = Job(largest, "local")
    one = median.get((1, goal))
    two = median.get((2, goal))
    return {
        "two_ranks_over_one": round(_speed(two) / _speed(one), 3)
        if one and two
        else None,
        "two_ranks_over_one_on_cores": round(one["core_ms"] / two["core_ms"], 3)
        if one and two
        else None,
        "two_ranks_over_plain": round(_speed(two) / _speed(plain), 3) if two else None,
        "communication_share": round(two["communication_share"], 3) if two else None,
        "table": table,
        "options": asdict(bench) | {"cores": os.cpu_count()},
    }


def _speed(figures: dict[str, float]) -> float:
    return figures["events_per_second"]


def _figures(ranks: list[Measured], steps: int, batch_size: int) -> dict[str, float]:
    seconds = max(measured.seconds for measured in ranks)
    exchanged = sum(
        min(times)
        for times in zip(*(measured.collectives_s for measured in ranks), strict=True)
    )
    return {
        "events_per_second": steps * batch_size / seconds,
        "step_ms": 1e3 * seconds / steps,
        "core_ms": 1e3 * max(measured.core_s for measured in ranks) / steps,
        "communication_share": exchanged / seconds,
        "sent_bytes_a_step": max(measured.sent_bytes for measured in ranks) / steps,
    }


@contextmanager
def _ranks(size: int, bench: ScaleBench) -> Iterator[list[Any]]:
    """Connections to the processes of a group."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    connections = []
    processes = []
    for rank in range(max(size, 1)):
        ours, theirs = context.Pipe()
        processes.append(
            context.Process(
                target=_serve, args=(theirs, rank, size, port, bench), daemon=True
            )
        )
        processes[-1].start()
        connections.append(ours)
    try:
        yield connections
    finally:
        for connection in connections:
            connection.send(None)
        for process in processes:
            process.join(10)
            process.kill()


def _asked(ranks: list[Any], job: Job) -> list[Measured]:
    for connection in ranks:
        connection.send(job)
    found = []
    for connection in ranks:
        if not connection.poll(RESULT_S):
            raise StreamerError(
                f"a trainer of the bench did not respond within {RESULT_S:.0f} s"
            )
        found.append(connection.recv())
    return found


def _serve(connection: Any, rank: int, size: int, port: int, bench: ScaleBench) -> None:
    """One rank: trains what it is asked to, one thread."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    group = Group() if size == PLAIN else connect(max(bench.parts, size), RESULT_S)
    times: list[float] = []
    _time_collectives(group, times)
    learners: dict[Job, tuple[Learner, list[MicroBatch]]] = {}
    while (job := connection.recv()) is not None:
        if job not in learners:
            learner = Learner(negatives=job.negatives)
            learner.group = group
            learners[job] = learner, _batches(group, job.batch_size, bench)
            for k in range(WARM_UP_STEPS):
                learner.learn_batch(learners[job][1][k % BATCHES])
        learner, batches = learners[job]
        times.clear()
        sent = group.traffic.sent_bytes
        started = time.perf_counter()
        core = time.process_time()
        for k in range(bench.steps):
            group.wait(np.zeros(CONTROL, np.int64))
            learner.learn_batch(batches[k % BATCHES])
        took = time.perf_counter() - started, time.process_time() - core
        connection.send(Measured(*took, list(times), group.traffic.sent_bytes - sent))
    group.close()


def _time_collectives(group: Group, times: list[float]) -> None:
    if (gather := group._gather) is None:
        return

    def timed(message: Any, lengths: Sequence[int]) -> list[Any]:
        started = time.perf_counter()
        found = gather(message, lengths)
        times.append(time.perf_counter() - started)
        return found

    group._gather = timed


def _batches(group: Group, batch_size: int, bench: ScaleBench) -> list[MicroBatch]:
    """This rank's events of some steps, of as many partitions as there are parts."""
    found = []
    for step in range(BATCHES):
        batch = MicroBatch()
        for partition in range(group.parts):
            if group.owner(group.part_of(partition)) != group.rank:
                continue
            events = batch_size // group.parts
            rng = np.random.default_rng([step, partition])
            batch.origins.append(
                Origin(Partition("bench", partition), len(batch), len(batch) + events)
            )
            batch.users += [
                f"{partition}.{user}"
                for user in rng.integers(0, bench.users // group.parts, events)
            ]
            batch.items += [
                str(item) for item in long_tailed(rng, bench.items, events, 0.6)
            ]
            batch.timestamps_s += (
                1.7e9 + 100 * step + np.sort(rng.integers(0, 100, events))
            ).tolist()
        found.append(batch)
    return found
