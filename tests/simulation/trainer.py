"""A trainer in a simulated process: the whole line of the product, but for what it learns and where it is saved."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import memory_source
import numpy as np

from simulation.kafka import TOPIC, Broker, Client
from simulation.scheduler import Process, Scheduler, Task
from streamer.accounting import Accounting
from streamer.cache_store import store as store_module
from streamer.cache_store.errors import StoreUnavailable
from streamer.cache_store.server import MemoryServer
from streamer.cache_store.store import CacheStore
from streamer.dead_letters.base import DeadLetters
from streamer.event import EventDecoder
from streamer.ingest import ingest, reader
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.ingest.ingest import Ingest
from streamer.ingest.offsets import OffsetLedger
from streamer.ingest.reader import Reader
from streamer.learner import Learned
from streamer.lockstep import group as lockstep_group
from streamer.lockstep import ingest as lockstep_ingest
from streamer.lockstep import sources as lockstep_sources
from streamer.model.popularity.exact import ExactPopularity
from streamer.pipeline import Pipeline
from streamer.progress import Progress
from streamer.sharing import sharing as sharing_module
from streamer.sharing.sharing import Sharing, StoreSharing
from streamer.snapshot import checkpointer, writer
from streamer.snapshot.checkpointer import Checkpointer, Restored
from streamer.sources.kafka import consumer, group, offsets, partitions, private, source, watch
from streamer.sources.kafka import reader as kafka_reader
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.source import KafkaSource
from streamer.vocabulary import Vocabulary

MODULES = (
    *(ingest, reader, writer, checkpointer, store_module, sharing_module),
    *(consumer, offsets, partitions, source, watch, kafka_reader),
    *(lockstep_ingest, lockstep_sources, lockstep_group, memory_source),
)
"""Whose threads and clock are simulated."""
IDLE_S = 1.0
NOTHING = Learned.nothing()
Events = dict[tuple[int, int], int]
"""Partition and offset of events, and how often each was trained."""


@contextmanager
def simulated(scheduler: Scheduler) -> Any:
    """Have the product run on simulated threads, on a simulated clock, with a client that is simulated."""

    def connected(make: Any, config: dict[str, Any]) -> tuple[Client, Any]:
        process = scheduler.current.process
        client = process.connect()  # type: ignore[attr-defined]
        return client, SimpleNamespace(cluster=client, wakeup=lambda: None)

    def at_once(call: Callable[[], Any]) -> futures.Future[Any]:
        result: futures.Future[Any] = futures.Future()
        try:
            result.set_result(call())
        except Exception as error:
            result.set_exception(error)
        return result

    with ExitStack() as stack:
        for module in MODULES:
            for name in {"threading", "time"} & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, getattr(scheduler, name)))
        for module, name, value in (
            (consumer, "connect_with_network", connected),
            (group, "connect", lambda *given: connected(*given)[0]),
            (consumer, "in_thread", at_once),
            (watch, "in_thread", at_once),
            (private, "seek", Client.seek),
            (private, "on_heartbeat", Client.on_heartbeat),
            (private, "request_rejoin", Client.request_rejoin),
            (offsets.OffsetTable.__init__, "__defaults__", (scheduler.monotonic,)),
            (reader, "POLL_S", IDLE_S),
            (kafka_reader, "SLICE_S", IDLE_S),
            (lockstep_ingest, "HEARTBEAT_S", IDLE_S / 2),
            (lockstep_ingest, "PAUSE_S", IDLE_S / 10),
            (lockstep_sources, "IDLE_SLEEP_S", IDLE_S / 5),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


class Counting:
    """A learner that counts items, and keeps which events it was given. It is its own state."""

    def __init__(self, scheduler: Scheduler, on_event: Callable[[int, int], None]) -> None:
        self._scheduler = scheduler
        self._on_event = on_event
        self.state = self
        self.events: Events = {}
        self.items = Vocabulary()
        self.item_counts = ExactPopularity()
        self.decayed_popularity = self.occurrence = ExactPopularity()
        self.by_kind: dict[str, dict[str, Any]] = {"items": {}}
        self.changes = SimpleNamespace(mark=lambda *_: None)
        self.clock = SimpleNamespace(tick=lambda *_: None)
        self.limits = SimpleNamespace(users=0, items=0)
        self.eviction = SimpleNamespace(on_retire=[], retire=lambda *_: None)
        features = SimpleNamespace(are_known=lambda rows: np.ones(len(rows), np.bool_))
        item = SimpleNamespace(item=SimpleNamespace(features=features))
        self.trainer = SimpleNamespace(method=SimpleNamespace(extra=""), model=item)

    def rows_of(self, kind: str, ids: list[str]) -> Any:
        return self.items.rows(ids)

    def mark_seen(self, kind: str, rows: Any) -> None:
        """Nothing is retired."""

    def remove_cold_items(self, rows: Any) -> None:
        """There are none."""

    def split_catalogue_events(self, batch: MicroBatch) -> list[MicroBatch]:
        return [batch]

    def learn_batch(self, batch: MicroBatch, prequential: None, counted: bool) -> Learned:
        for partition, start, stop in batch.origins:
            for offset in batch.offsets[start:stop]:
                at = (partition.number, offset)
                self.events[at] = self.events.get(at, 0) + 1
                self._on_event(*at)
        self._scheduler.pause()
        rows = self.items.rows(batch.items)
        if counted:
            self.item_counts.add(rows, None)
        self._scheduler.pause()
        return replace(NOTHING, items=rows)


class Checkpoints(Checkpointer):
    """Writes copies to a disk that is a dictionary; when and on which thread is the product's."""

    def __init__(self, scheduler: Scheduler, disk: dict[str, Any], name: str) -> None:
        store = SimpleNamespace(trainer=name, links=[], beat=lambda: None, close=lambda: None)
        every_events = scheduler.random.choice([3, 8, 20])
        super().__init__(store, 1.5, every_events, clock=scheduler.monotonic)  # type: ignore[arg-type]
        self._scheduler, self._disk, self._name = scheduler, disk, name

    def restore(self, learner: Any, sharing: Sharing) -> Restored:
        saved = self._disk.get(self._name)
        if saved is None:
            return Restored(Accounting(), OffsetLedger())
        learner.events = dict(saved["events"])
        rows = learner.items.rows(saved["items"])
        learner.item_counts.add(rows, saved["counts"])
        for name, part in learner.by_kind["items"].items():
            part.put(rows, saved[name])
        sharing.restore(saved["sharing"], saved["positions"])
        accounting = Accounting.from_json(saved["accounting"])
        self.begun = True
        self.path = Path(self._name)
        self._tried_events = self._safe_events = accounting.consumed
        return Restored(accounting, OffsetLedger(saved["positions"]))

    def save(self, learner: Any, sharing: Sharing, accounting: Any, offsets: Any, done: Callable[[bool], None]) -> None:
        rows = learner.items.used
        saved = {
            "events": dict(learner.events),
            "items": list(learner.items.ids),
            "counts": learner.item_counts.counts(rows),
            "sharing": sharing.save(),
            "positions": offsets.positions,
            "accounting": accounting.to_json(),
        }
        for name, part in learner.by_kind["items"].items():
            saved[name] = part.take(rows)
        events = accounting.consumed
        taken_at = self._clock()

        def write() -> None:
            self._scheduler.sleep(self._scheduler.random.choice([0.0, 0.0, 0.01, 0.5]))
            self._disk[self._name] = saved
            self._scheduler.pause()
            self._note_safe(Path(self._name), events, taken_at)
            self._scheduler.pause()
            done(True)

        self._tried_at = taken_at
        self._tried_events = events
        self.begun = True
        self._writer.submit(write)


class Network:
    """Between a trainer and the server of shared state: what is asked and what is answered may get lost."""

    kind = "simulated"

    def __init__(self, scheduler: Scheduler, server: MemoryServer) -> None:
        self._scheduler, self._server = scheduler, server
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            self._scheduler.pause()
            self._fail_if_cut("the request")
            answer = getattr(self._server, name)(*arguments)
            self._scheduler.pause()
            self._fail_if_cut("the answer")
            return answer

        return ask

    def close(self) -> None:
        """Nothing is sent."""

    def _fail_if_cut(self, what: str) -> None:
        if self.is_cut:
            raise StoreUnavailable("unreachable", f"{what} was lost")


class Quiet:
    """A line without figures for a person."""

    def _make_report(self) -> Any:
        nothing = lambda *_, **__: None  # noqa: E731
        return SimpleNamespace(start=nothing, learned=nothing, is_due=lambda: False, refresh=nothing)

    def step(self, timeout_s: float = IDLE_S) -> None:
        super().step(timeout_s)  # type: ignore[misc]


class Line(Quiet, Pipeline):
    """The line of a trainer alone."""


class Trainer(Process):
    """A process with the name of its trainer; its successor with the same name goes on from what is saved."""

    def __init__(
        self,
        name: str,
        broker: Broker,
        disk: dict[str, Any],
        network: Network | None,
        on_event: Callable[[int, int], None],
    ) -> None:
        super().__init__(name)
        self.learner = Counting(broker.scheduler, on_event)
        self._broker, self._disk, self._network = broker, disk, network
        self._pipeline: Pipeline | None = None
        self.task: Task = broker.scheduler.start(self._run, name, self)

    def connect(self) -> Client:
        """The process's client of Kafka."""
        return Client(self._broker, f"streamer-{self.name}", self)

    def _run(self) -> None:
        scheduler = self._broker.scheduler
        sharing = Sharing()
        if self._network is not None:
            every_s = scheduler.random.choice([0.3, 1.0, 5.0])
            store = CacheStore(self._network, self.name, every_s, scheduler.monotonic)  # type: ignore[arg-type]
            sharing = StoreSharing(self.learner, store)  # type: ignore[arg-type]
        settings = KafkaSettings("broker:9092", TOPIC, trainer=self.name, auto_offset_reset="earliest")
        batcher = Batcher(scheduler.random.choice([1, 4, 16]), 0.1, scheduler.monotonic)
        ingest = Ingest(batcher, owner=sharing)
        line = Reader(lambda: KafkaSource(settings), EventDecoder(), ingest, max_queued_events=32)
        checkpoints = Checkpoints(scheduler, self._disk, self.name)
        progress = Progress(ingest, self.learner, sharing, DeadLetters(), checkpoints)  # type: ignore[arg-type]
        self._pipeline = Line(line, self.learner, sharing, progress)  # type: ignore[arg-type]
        self._pipeline.run()

    def leave(self) -> None:
        """As after SIGTERM."""
        if self._pipeline is not None:
            self._pipeline.stop()
