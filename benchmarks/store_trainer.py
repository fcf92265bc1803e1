"""A trainer of `store.py`: a process of its own that joins a model and
trains real steps when asked.

It trains one learner by turns with what it shares through Redis, and alone, sharing
nothing. So both meet the same machine, the same tables and the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle

import numpy as np
import torch

from common import long_tailed
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.store import CacheStore, StoreStatus
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.learner import OnlineLearner
from streamer.model.settings import id_towers
from streamer.sharing.sharing import Sharing, StoreSharing
from streamer.sources.base import Partition

BATCHES = 32
"""How many are made, and used in turn."""
NEVER_S = 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a trainer joins, and how it trains."""

    url: str
    model: str  # it is there already, with all items
    items: int
    index: int = 0  # of the trainer; it reads a partition of its own
    batch_size: int = 2048
    cache_size: int = 2048
    dim: int = 32
    users: int = 29_858
    share_every_s: float = 1.0


@dataclass(slots=True)
class Measured:
    """What some steps took; sums over all of them, but for the first two."""

    step_s: list[float] = field(default_factory=list)
    """Of each step, on the wall."""
    step_cpu_s: list[float] = field(default_factory=list)
    """Of each step: all threads on a core, over those that train."""
    calls_s: float = 0.0
    """The training thread inside the store, on the wall."""
    calls_cpu_s: float = 0.0
    """The same on a core."""
    exchange_cpu_s: float = 0.0
    """The exchange thread on a core, until everything is sent."""
    sent_bytes: int = 0
    received_bytes: int = 0
    server_cpu_s: float = 0.0
    """The server on a core, for all trainers; known to one of them."""

    @contextmanager
    def inside_the_store(self) -> Iterator[None]:
        """Count the time of the block as spent inside the store."""
        wall = time.perf_counter()
        cpu = time.thread_time()
        yield
        self.calls_cpu_s += time.thread_time() - cpu
        self.calls_s += time.perf_counter() - wall


def item_ids(count: int) -> list[str]:
    """Ids of the synthetic items, by row."""
    return [f"item-{row}" for row in range(count)]


class StoreTrainer:
    """One learner, with a store and alone."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.contributed = 0
        self._partition = Partition("bench", job.index)
        self._offset = 0
        towers = id_towers(
            dim=job.dim, optimizer="adam", cache_size=job.cache_size, device="cpu"
        )
        self._learner = OnlineLearner(towers)
        self._learner.state.items.rows(item_ids(job.items))
        self._learner.state.users.rows([f"user-{row}" for row in range(job.users)])
        self._learner.state.trainer.model.grow(job.users, job.items)
        server = RedisServer(job.url, Keys(job.model), timeout_s=30.0)
        self._store = CacheStore(server, f"bench-{job.index}", NEVER_S)
        self._sharings = {
            "redis": StoreSharing(self._learner, self._store),
            "alone": Sharing(),
        }
        if job.index == 0:  # every item was seen and resampled once
            rows = np.arange(job.items)
            self._learner.state.item_counts.add(rows, np.ones(job.items))
            self._learner.state.occurrence.add(rows, np.ones(job.items))
            self._sharings["redis"].restore({}, {})
        for sharing in self._sharings.values():
            sharing.start()
            sharing.claim({self._partition: 0})
        self._batches = _batches(job, job.batch_size)
        self._exchange_every(NEVER_S)

    def set_threads(self, threads: int) -> None:
        """How many threads train."""
        torch.set_num_threads(threads)

    def train(self, kind: str, seconds: float, stretch: float = 1.0) -> Measured:
        """Train for some seconds with `redis` or `alone`; what was contributed is sent
        at the end.

        `stretch` is a factor of the time between exchanges.
        """
        sharing = self._sharings[kind]
        measured = Measured()
        if kind == "redis":
            self._exchange_every(stretch * self.job.share_every_s)
        before = sharing.status()
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            self._step(sharing, next(self._batches), measured)
        sharing.flush()
        if kind == "redis":
            self._exchange_every(NEVER_S)
            self.contributed += len(measured.step_s) * self.job.batch_size
        after = sharing.status()
        measured.sent_bytes = after.sent_bytes - before.sent_bytes
        measured.received_bytes = after.received_bytes - before.received_bytes
        measured.exchange_cpu_s = after.exchange_cpu_s - before.exchange_cpu_s
        return measured

    def sent(self) -> int:
        """Events that were contributed, when all of them are sent."""
        while not self._store.flush(30.0):
            pass
        return self.contributed

    def status(self) -> StoreStatus:
        """Of the store in Redis."""
        return self._sharings["redis"].status()

    def close(self) -> None:
        for sharing in self._sharings.values():
            sharing.close()

    def _step(self, sharing: Sharing, batch: MicroBatch, measured: Measured) -> None:
        """A batch at the offsets that follow, along the line as `streamer.pipeline`
        sends it.
        """
        offsets = list(range(self._offset, self._offset + len(batch)))
        origin = Origin(self._partition, 0, len(batch))
        self._offset += len(batch)
        positions = {self._partition: self._offset}
        batch = replace(batch, offsets=offsets, origins=[origin], positions=positions)
        started = time.perf_counter()
        cpu = time.process_time()
        with measured.inside_the_store():
            sharing.receive()
            parts = sharing.parts(batch)
        for part in parts:
            learned = self._learner.learn_batch(part.batch, counted=part.counted)
            with measured.inside_the_store():
                sharing.contribute(part, learned)
        with measured.inside_the_store():
            sharing.advance(batch)
        measured.step_s.append(time.perf_counter() - started)
        cpu_s = time.process_time() - cpu
        measured.step_cpu_s.append(cpu_s / torch.get_num_threads())

    def _exchange_every(self, every_s: float) -> None:
        self._store.every_s = every_s
        self._store.flush(30.0)  # wakes the thread, which then waits for the new time


def _batches(job: Job, size: int) -> Iterator[MicroBatch]:
    """A few batches again and again, long-tailed as in `step.py`; each
    trainer has its own.
    """
    rng = np.random.default_rng([job.index, size])
    # Popular items are the same for all trainers.
    shuffled = np.random.default_rng(0).permutation(job.items)
    made = []
    for _ in range(BATCHES):
        items = shuffled[long_tailed(rng, job.items, size, 0.6)].tolist()
        users = rng.integers(0, job.users, size).tolist()
        user_ids = [f"user-{row}" for row in users]
        made.append(MicroBatch(user_ids, [f"item-{row}" for row in items]))
    return cycle(made)
