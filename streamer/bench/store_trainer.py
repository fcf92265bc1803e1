"""A trainer of `streamer bench store`: a process of its own that joins a model and trains real steps when asked.

It trains one learner by turns with what it shares through Redis, and alone, sharing nothing. So both meet the same
machine, the same tables and the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.replica import Position, Replica
from streamer.cache_store.server import Seed
from streamer.cache_store.state import StoreSettings, StoreStatus
from streamer.cache_store.store import CacheStore
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.learner import Learner
from streamer.model.settings import id_towers
from streamer.sharing.sharing import Sharing, StoreSharing
from streamer.sources.base import Partition

BATCHES = 32
"""So many are made, and used in turn."""
NEVER_S = 3600.0
SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a trainer joins, and how it trains.

    Args:
        url: of Redis.
        model: its name; it is there already, with all items.
        items: how many it has.
        index: of the trainer; it reads a partition of its own.
        batch_size: events of a micro-batch.
        cache_size: items in the cache.
        dim: size of the embeddings.
        users: how many there are.
        share_every_s: seconds between exchanges.
    """

    url: str
    model: str
    items: int
    index: int = 0
    batch_size: int = 2048
    cache_size: int = 2048
    dim: int = 32
    users: int = 29_858
    share_every_s: float = StoreSettings().every_s


@dataclass(slots=True)
class Measured:
    """What some steps took. Seconds are sums over all steps.

    Args:
        step_s: of each step, by the clock on the wall.
        step_cpu_s: of each step, the time on a core of all threads, divided by how many threads train: what it would
            take on a machine that does nothing else.
        calls_s: the training thread inside the store, by the clock on the wall.
        calls_cpu_s: the same, in time on a core.
        exchange_cpu_s: the exchange thread, in time on a core; until everything is sent.
        sent_bytes: to the server.
        received_bytes: from the server.
    """

    step_s: list[float] = field(default_factory=list)
    step_cpu_s: list[float] = field(default_factory=list)
    calls_s: float = 0.0
    calls_cpu_s: float = 0.0
    exchange_cpu_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0


def item_ids(count: int) -> list[str]:
    """Ids of the synthetic items, by row."""
    return [f"item-{row}" for row in range(count)]


def seed_of(items: int, generation: str) -> Seed:
    """A model in which every item was seen and resampled once."""
    ones = np.ones(items, np.int64)
    packed = Replica(Position.beginning(generation), ones, ones, {}, items).pack()
    return Seed(generation, packed, item_ids(items), {}, {}, None)


class BenchTrainer:
    """One learner, with a store and alone. See `Job` for the arguments."""

    def __init__(self, job: Job) -> None:
        self.job, self.contributed = job, 0
        self._partition, self._offset = Partition("bench", job.index), 0
        self._learner = _learner(job)
        server = RedisServer(job.url, Keys(job.model), timeout_s=30.0)
        self._store = CacheStore(server, StoreSettings(every_s=job.share_every_s), f"bench-{job.index}")
        self._sharings = {"redis": StoreSharing(self._learner, self._store), "alone": Sharing()}
        for sharing in self._sharings.values():
            sharing.start()
            sharing.claim([self._partition])
        self._batches = list(_batches(job, job.batch_size))
        self._small = list(_batches(job, 64))
        self._pause()

    def train(self, kind: str, seconds: float, stretch: float = 1.0) -> Measured:
        """Steps with Redis or alone, for so long; what they contribute is sent before it ends.

        Args:
            kind: `redis` or `alone`.
            seconds: how long.
            stretch: exchanges are so many times further apart.
        """
        sharing = self._sharings[kind]
        if kind == "redis":
            self._go_on(stretch * self.job.share_every_s)
        before, measured = sharing.status(), Measured()
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            self._step(sharing, self._next_batch(self._batches), measured)
        sharing.flush()
        if kind == "redis":
            self._pause()
        _add_difference(measured, before, sharing.status())
        self.contributed += kind == "redis" and len(measured.step_s) * self.job.batch_size
        return measured

    def hurry(self, connection: Connection, every_s: float) -> int:
        """Many small steps, each an entry of the log if possible, until something is to be read; answers how many."""
        self._go_on(every_s)
        sharing, measured = self._sharings["redis"], Measured()
        while not connection.poll():
            self._step(sharing, self._next_batch(self._small), measured)
        self._go_on(self.job.share_every_s)
        self._settle()
        self.contributed += len(measured.step_s) * len(self._small[0])
        return len(measured.step_s)

    def status(self) -> StoreStatus:
        """Of the store in Redis."""
        return self._sharings["redis"].status()

    def close(self) -> None:
        for sharing in self._sharings.values():
            sharing.close()

    def _step(self, sharing: Sharing, batch: MicroBatch, measured: Measured) -> None:
        """A batch along the line, as `streamer.pipeline` sends it."""
        started, cpu = time.perf_counter(), time.process_time()
        with _timed(measured):
            sharing.receive()
            parts = sharing.parts(batch, dict)
        for part in parts:
            learned = self._learner.learn_batch(part.batch, counted=part.counted)
            with _timed(measured):
                sharing.contribute(part, learned)
        measured.step_s.append(time.perf_counter() - started)
        measured.step_cpu_s.append((time.process_time() - cpu) / torch.get_num_threads())

    def _next_batch(self, among: list[MicroBatch]) -> MicroBatch:
        """One of those that are made, at the offsets that follow."""
        size = len(among[0])
        chosen = among[(self._offset // size) % len(among)]
        offsets = list(range(self._offset, self._offset + size))
        self._offset += size
        return replace(chosen, offsets=offsets, origins=[Origin(self._partition, 0, size)])

    def _settle(self) -> None:
        """Wait until everything is sent, also after this process was stopped and has lost touch."""
        deadline = time.monotonic() + SETTLE_S
        while self.status().backlog_contributions and time.monotonic() < deadline:
            if not self._store.flush(1.0):
                time.sleep(0.01)

    def _pause(self) -> None:
        """No exchanges while it trains alone."""
        self._go_on(NEVER_S)

    def _go_on(self, every_s: float) -> None:
        self._store.state.settings = replace(self._store.state.settings, every_s=every_s)
        self._store.flush(30.0)  # wakes the thread, which then waits so long


def _learner(job: Job) -> Learner:
    learner = Learner(id_towers(dim=job.dim, optimizer="adam", cache_size=job.cache_size, device="cpu"))
    learner.items.rows(item_ids(job.items))
    learner.users.rows([f"user-{row}" for row in range(job.users)])
    learner.trainer.model.grow(job.users, job.items)
    return learner


def _batches(job: Job, size: int) -> Iterator[MicroBatch]:
    """Long-tailed as in `streamer bench step`; each trainer has its own."""
    rng = np.random.default_rng([job.index, size])
    weight = np.cumsum(1.0 / (np.arange(job.items) + 10.0) ** 0.6)
    shuffled = np.random.default_rng(0).permutation(job.items)  # popular items are the same for all trainers
    for _ in range(BATCHES):
        ranks = np.searchsorted(weight, rng.random(size) * weight[-1])
        users = [f"user-{row}" for row in rng.integers(0, job.users, size).tolist()]
        yield MicroBatch(users=users, items=[f"item-{row}" for row in shuffled[ranks].tolist()])


@contextmanager
def _timed(measured: Measured) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.thread_time()
    yield
    measured.calls_cpu_s += time.thread_time() - cpu
    measured.calls_s += time.perf_counter() - wall


def _add_difference(measured: Measured, before: StoreStatus, after: StoreStatus) -> None:
    measured.sent_bytes = after.sent_bytes - before.sent_bytes
    measured.received_bytes = after.received_bytes - before.received_bytes
    measured.exchange_cpu_s = after.exchange_cpu_s - before.exchange_cpu_s


def serve(connection: Connection) -> None:
    """Do what is asked, (name, arguments ...), and answer (True, what came of it) or (False, error); until closed."""
    trainer: BenchTrainer | None = None
    while True:
        try:
            name, *arguments = connection.recv()
            trainer, answer = _done(trainer, connection, name, arguments)
        except EOFError:
            return
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {error}"))
        else:
            connection.send((True, answer))


def _done(trainer: BenchTrainer | None, connection: Connection, name: str, arguments: list[Any]) -> Any:
    """The trainer from then on, and the answer."""
    if name == "join":
        started = time.perf_counter()
        return BenchTrainer(*arguments), time.perf_counter() - started
    if name == "leave":
        if trainer is not None:
            trainer.close()
        return None, None
    if name == "threads":
        torch.set_num_threads(*arguments)
        return trainer, None
    assert trainer is not None
    if name == "enough":
        return trainer, None
    if name == "hurry":
        return trainer, trainer.hurry(connection, *arguments)
    found = getattr(trainer, name)
    return trainer, found(*arguments) if callable(found) else found
