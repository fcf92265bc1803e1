"""One history: what happens to a group of trainers, decided by a seed, and what must be true of it.

- Every event is trained.
- What is committed never goes back, and whoever gets a partition then trains nothing before it.
- It is trained once; twice only if a trainer had trained it and its offset was not committed when that trainer was
  killed or stopped for longer than its session, or when its partition was revoked while the store was away.
- An offset is committed only if everything before it is in checkpoints, and where counts are shared, in the store.
- In the end the shared counts of every partition are those of the stream, and everybody has them.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

from contracts.store_trainer import item, stored
from kafka import TopicPartition

from simulation.kafka import SESSION_S, TOPIC, Broker
from simulation.scheduler import Scheduler
from simulation.trainer import Network, Trainer, simulated
from streamer.cache_store.change import counts_of
from streamer.cache_store.server import MemoryServer
from streamer.errors import SharingError, SourceError
from streamer.event import encode
from streamer.sharing.sharing import FLUSH_S

NAMES = ("ada", "ben", "cleo")
PATIENCE_S = 600.0
"""Of simulated time, after the last fault."""


class History:
    """Trainers, what was done to them, and what may be trained twice because of it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.broker = Broker(self.scheduler, self.random.randint(1, 3))
        self.broker.on_commit = self._check_commit
        self.broker.on_assigned = self._on_assigned
        self.disk: dict[str, Any] = {}
        self.server = MemoryServer()
        self.network = Network(self.scheduler, self.server) if self.random.random() < 0.6 else None
        self.trainers: dict[str, Trainer] = {}
        self.stopped: dict[str, float] = {}
        self.store_is_back_at = -math.inf
        self.may_be_doubled: set[tuple[int, int]] = set()
        self.began_after: dict[tuple[str, int], int] = {}
        self.said: list[str] = []
        self.problems: list[str] = []

    def run(self) -> None:
        """Everything from the first event to the last check."""
        with simulated(self.scheduler):
            try:
                self._start(self.random.choice(NAMES))
                self._produce()
                for _ in range(self.random.randint(3, 12)):
                    self._wait()
                    action = self.random.choice(ACTIONS)
                    action(self, self.random.choice(NAMES))
                self._settle()
                self._check()
            finally:
                self.scheduler.close()

    def _note(self, what: str) -> None:
        self.said.append(f"{self.scheduler.now - 1000:8.2f} s  {what}")

    def _wait(self) -> None:
        """A moment in the midst of work, or a while."""
        for _ in range(self.random.choice([1, 5, 30])):
            self.scheduler.pause()
        self.scheduler.sleep(self.random.choice([0.0, 0.01, 0.3, 2.0, SESSION_S + 1]))

    # what happens -----------------------------------------------------------------------------------------------------

    def _produce(self, _: str = "") -> None:
        count = self.random.randint(1, 20)
        for _ in range(count):
            tp = self.random.choice(self.broker.partitions)
            offset = len(self.broker.logs[tp])
            self.broker.append(tp, encode("u", item(_entry(tp), offset), 1.0))
        self._note(f"{count} events")

    def _living(self, name: str) -> Trainer | None:
        trainer = self.trainers.get(name)
        return trainer if trainer is not None and not trainer.task.has_ended else None

    def _start(self, name: str) -> None:
        if self._living(name) is None:
            self._reap(name)
            self._note(f"{name} starts")
            self.trainers[name] = Trainer(name, self.broker, self.disk, self.network, partial(self._on_event, name))

    def _reap(self, name: str) -> None:
        """A trainer may end by itself only if it cannot begin."""
        trainer = self.trainers.pop(name, None)
        if trainer is not None and trainer.task.error is not None:
            self._note(f"{name} ended: {trainer.task.error}")
            expected = isinstance(trainer.task.error, SharingError) and self.network is not None
            refused = isinstance(trainer.task.error, SourceError) and "does not run now" in str(trainer.task.error)
            if not expected and not refused:
                raise trainer.task.error

    def _kill(self, name: str) -> None:
        trainer = self._living(name)
        if trainer is not None:
            self._note(f"{name} is killed")
            self.stopped.pop(name, None)
            self.scheduler.kill(trainer)
            self._note_uncommitted(self.disk.get(name, {}).get("events", {}))
            self._reap(name)

    def _stop(self, name: str) -> None:
        trainer = self._living(name)
        if trainer is not None and not trainer.is_stopped:
            self._note(f"{name} is stopped")
            trainer.is_stopped = True
            self.stopped[name] = self.scheduler.now
            self._note_uncommitted(trainer.learner.events)

    def _wake(self, name: str) -> None:
        trainer = self._living(name)
        if trainer is not None and trainer.is_stopped:
            self._note(f"{name} wakes up")
            trainer.is_stopped = False
            del self.stopped[name]

    def _leave(self, name: str) -> None:
        trainer = self._living(name)
        if trainer is not None:
            self._note(f"{name} leaves")
            trainer.leave()

    def _cut(self, name: str) -> None:
        """The store is away for a while; sometimes a trainer dies then, and others get its partitions."""
        if self.network is not None:
            self._note("the store is away")
            self.network.is_cut = True
            self.store_is_back_at = math.inf
            for trainer in self.trainers.values():
                self._note_uncommitted(trainer.learner.events)
            if self.random.random() < 0.3:
                self._kill(name)
            self.scheduler.sleep(self.random.choice([0.0, 1.0, 10.0, SESSION_S + 10.0]))
            self.network.is_cut = False
            self.store_is_back_at = self.scheduler.now + FLUSH_S
            self._note("the store is back")

    def _on_assigned(self, client: str, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self.began_after[client.removeprefix("streamer-"), tp.partition] = self._committed(tp.partition)

    def _on_event(self, name: str, number: int, offset: int) -> None:
        """What is trained while the store is away cannot be committed before it is back."""
        if offset < self.began_after[name, number]:
            self.problems.append(f"{name} has trained {offset} of {number}, which was committed when it began")
        if self.scheduler.now < self.store_is_back_at:
            self.may_be_doubled.add((number, offset))

    def _note_uncommitted(self, trained: dict[tuple[int, int], int]) -> None:
        for number, offset in trained:
            if offset >= self._committed(number):
                self.may_be_doubled.add((number, offset))

    def _committed(self, number: int) -> int:
        found = self.broker.committed.get(TopicPartition(TOPIC, number))
        return found.offset if found is not None else 0

    # what must be true ------------------------------------------------------------------------------------------------

    def _check_commit(self, tp: TopicPartition, offset: int) -> None:
        if offset < self._committed(tp.partition):
            self.problems.append(f"the commit of {tp} goes back to {offset}")
        saved = {at for state in self.disk.values() for at in state["events"]}
        missing = [k for k in range(offset) if (tp.partition, k) not in saved]
        if missing:
            self.problems.append(f"{tp} is committed up to {offset}, and {missing} are in no checkpoint")
        counted, _ = self.server.tops.get(_entry(tp), (0, 0))
        if self.network is not None and counted < offset:
            self.problems.append(f"{tp} is committed up to {offset}, and counted up to {counted}")

    def _settle(self) -> None:
        """All that were stopped or killed come back, train the rest, and leave."""
        self._note("the faults are over")
        for name in list(self.stopped):
            self._wake(name)
        deadline = self.scheduler.now + PATIENCE_S
        while not self._is_done():
            for name in sorted(self.disk.keys() | {NAMES[0]}):
                self._start(name)
            assert self.scheduler.now < deadline, f"committed: {self.broker.committed}"
            self.scheduler.sleep(1.0)
        while any(map(self._living, NAMES)):
            for name in NAMES:
                self._leave(name)
            assert self.scheduler.now < deadline, "a trainer does not end"
            self.scheduler.sleep(1.0)
        for name in NAMES:
            self._reap(name)

    def _is_done(self) -> bool:
        return all(self._committed(tp.partition) == len(log) for tp, log in self.broker.logs.items())

    def _check(self) -> None:
        assert not self.problems, self.problems
        trained: Counter[tuple[int, int]] = Counter()
        for state in self.disk.values():
            trained.update(state["events"])
        events = {(tp.partition, k) for tp, log in self.broker.logs.items() for k in range(len(log))}
        assert trained.keys() == events, f"never trained: {sorted(events - trained.keys())}"
        twice = {at for at, count in trained.items() if count > 1} - self.may_be_doubled
        assert not twice, f"trained twice, though committed by then: {sorted(twice)}"
        if self.network is not None:
            self._check_counts()

    def _check_counts(self) -> None:
        for tp, log in self.broker.logs.items():
            expected = Counter(item(_entry(tp), k) for k in range(len(log)))
            found = stored(self.server, _entry(tp))
            assert found == expected, f"the store counts {found} of {tp}, not {expected}"


def _entry(tp: TopicPartition) -> str:
    return counts_of(f"{tp.topic}[{tp.partition}]", "id")


ACTIONS = [
    *[History._produce] * 3,
    *[History._start] * 3,
    *[History._kill] * 2,
    *[History._stop] * 2,
    *[History._wake] * 2,
    History._leave,
    History._cut,
]
