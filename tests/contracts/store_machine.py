"""Random interleavings of everything that trainers, servers and networks do, against what must come out.

A few trainers share partitions of a stream whose items are known beforehand. They train, exchange, save checkpoints,
crash and come back; partitions move between them, also away from trainers that do not know it; answers are lost; the
server loses everything, or only the end. Whatever happens:

- the server has each event before its `next` exactly once, and what a batch resampled at most once; events of an item
  that anybody has retired may be gone;
- what a trainer sees is its replica and its own contributions that are not in it;
- the log never grows beyond its bound;
- and when things have calmed down, everybody has the same, and nothing is missing.

Kafka's part is played by `committed`: a trainer commits a position once everything before it is in the store and in
its checkpoint, and whoever gets a partition begins there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from contracts.store_trainer import ITEMS, Backend, Checkpoint, Trainer, events_before, stored
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamer.cache_store.errors import Fenced, StoreUnavailable
from streamer.cache_store.server import StoreServer
from streamer.cache_store.state import StoreSettings
from streamer.cache_store.store import CacheStore

NAMES = ("ada", "ben", "cleo")
PARTITIONS = ("clicks-0", "clicks-1", "views-0")
HARD = 6
OPERATIONS = {
    *("assign", "ids", "claim", "push", "pull", "snapshot", "save_snapshot", "may_snapshot", "seed"),
    *("heartbeat", "leave", "pause"),
}

unhurried = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
"""Without shrinking, which takes minutes: to look into a failure, add `Phase.shrink` and be patient."""

names = st.sampled_from(NAMES)
partitions = st.sampled_from(PARTITIONS)
happenings = st.lists(
    st.sampled_from(["fine", "fine", "lost request", "lost answer", "receive", "other exchange"]), max_size=8
)


class Unreliable:
    """A server behind a network: before each operation the next thing on the list happens."""

    def __init__(self, server: StoreServer, other: Callable[[], None]) -> None:
        self._server, self.kind, self._other = server, server.kind, other
        self.script: deque[str | Callable[[], None]] = deque()
        self.store: Trainer | None = None

    def __getattr__(self, name: str) -> Any:
        if name not in OPERATIONS:
            raise AttributeError(name)

        def operation(*arguments: Any) -> Any:
            happens = self.script.popleft() if self.script else "fine"
            self._do(happens)
            answer = getattr(self._server, name)(*arguments)
            if happens == "lost answer":
                raise StoreUnavailable("slow", "the answer was lost")
            return answer

        return operation

    def _do(self, happens: str | Callable[[], None]) -> None:
        if callable(happens):
            happens()
        if happens == "lost request":
            raise StoreUnavailable("unreachable", "the request was lost")
        if happens == "receive" and self.store is not None:
            self.store.receive()
        if happens == "other exchange":
            self._other()

    def close(self) -> None:
        """The server outlives its users."""


@dataclass
class Copy:
    """The server as it was, and who was there."""

    data: Any
    generation: str
    number: int
    living: frozenset[str]
    owners: dict[str, str | None]


@dataclass
class World:
    """Who lives, who owns what, and what is safe."""

    living: dict[str, Trainer] = field(default_factory=dict)
    networks: dict[str, Unreliable] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    owners: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(PARTITIONS))
    contested: set[str] = field(default_factory=set)
    """Partitions that a trainer may have claimed which did not own them any more, and has died since."""
    committed: Counter[str] = field(default_factory=Counter)
    copies: list[Copy] = field(default_factory=list)
    batches: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    """The events of each batch, by the item that only it has drawn."""
    times: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often each event was contributed."""
    retired: set[str] = field(default_factory=set)
    """Items that anybody has retired, some time."""

    def moved(self, partition: str) -> None:
        """Batches with events of a partition that moved may be left out: its next owner trains the events again."""
        self.batches = {raw: e | {("moved", 0)} if partition in dict(e) else e for raw, e in self.batches.items()}


class StoreMachine(RuleBasedStateMachine):
    """Subclasses give a backend. With `merging`, backlogs are added up soon and partitions stay where they are."""

    merging = False

    def backend(self) -> Backend:
        raise NotImplementedError("a subclass gives it")

    @initialize()
    def begin(self) -> None:
        self.now_s = 0.0
        self.shared = self.backend()
        self.server = self.shared.connect(HARD)
        self.world = World()
        self.settled = True
        self.busy = False
        for name, partition in zip(NAMES[:2], PARTITIONS[:2], strict=True):
            self.come(name)
            if not self.merging:
                self._give(partition, name)

    # trainers come and go ---------------------------------------------------------------------------------------------

    @rule(name=names)
    def come(self, name: str) -> None:
        if name in self.world.living:
            return
        network = Unreliable(self.shared.connect(HARD), lambda: self._someone_else(name))
        waiting = 4 if self.merging else 10_000
        settings = StoreSettings(soft_log_length=3, max_waiting=waiting, keep_s=1e9, retired_rows=3)
        store = CacheStore(network, settings, name, clock=lambda: self.now_s)
        saved = self.world.checkpoints.get(name)
        trainer = Trainer.resumed(store, name, saved) if saved else Trainer(store, name)
        trainer.positions = {}
        store.exchange()
        network.store = trainer
        self.world.living[name], self.world.networks[name] = trainer, network
        if self.merging:
            self._give(PARTITIONS[NAMES.index(name)], name)

    @precondition(lambda self: self.settled)
    @rule(name=names)
    def crash(self, name: str) -> None:
        self._die(name)

    def _die(self, name: str) -> None:
        trainer = self.world.living.pop(name, None)
        if trainer is not None:
            self.world.contested |= {p for p in trainer.positions if self.world.owners[p] != name}
        self.world.networks.pop(name, None)
        self.world.owners = {p: None if owner == name else owner for p, owner in self.world.owners.items()}

    @rule(name=names)
    def save(self, name: str) -> None:
        """Save a checkpoint, and commit what is safe."""
        trainer = self.world.living.get(name)
        if trainer is None:
            return
        self.world.checkpoints[name] = trainer.checkpoint()
        if not trainer.store.state.outbox.waiting:
            for partition, position in trainer.positions.items():
                if self.world.owners[partition] == name:
                    self.world.committed[partition] = max(position, self.world.committed[partition])

    @precondition(lambda self: not self.merging)
    @rule(partition=partitions, name=names, revoked=st.booleans())
    def give(self, partition: str, name: str, revoked: bool) -> None:
        """A partition moves; it is revoked from its former owner, or that is disconnected. It may come back at once."""
        former = self.world.owners[partition]
        if name not in self.world.living:
            return
        if revoked and former is not None:
            self.world.living[former].release(partition)
        self._give(partition, name)

    def _give(self, partition: str, name: str) -> None:
        self.world.owners[partition] = name
        self.world.contested.discard(partition)
        self.world.moved(partition)
        self.world.living[name].claim(partition, self.world.committed[partition], timeout_s=0)

    # they work --------------------------------------------------------------------------------------------------------

    @rule(
        name=names, sizes=st.tuples(*[st.integers(0, 4)] * len(PARTITIONS)), signed=st.booleans(), cached=st.booleans()
    )
    def train(self, name: str, sizes: tuple[int, ...], signed: bool, cached: bool) -> None:
        trainer = self.world.living.get(name)
        if trainer is None:
            return
        wanted = {p: size for p, size in zip(PARTITIONS, sizes, strict=True) if p in trainer.positions and size}
        if not wanted:
            return
        before = trainer.store.state.outbox.last_number
        only = trainer.train(wanted, sorted(trainer.view()[0])[:3] if cached else None, signed)
        if trainer.store.state.outbox.last_number > before:
            events = set(self._events_of(trainer.store.state.outbox.waiting[-1].contribution))
            self.world.times.update(events)
            self.world.batches |= {only: events} if only else {}

    def _events_of(self, contribution: Any) -> Iterator[tuple[str, int]]:
        for span in contribution.spans:
            yield from ((span.partition, offset) for offset in range(span.start, span.stop))

    @rule(name=names, items=st.sets(st.integers(0, ITEMS - 1), min_size=1, max_size=3), force=st.booleans())
    def retire(self, name: str, items: set[int], force: bool) -> None:
        trainer = self.world.living.get(name)
        if trainer is not None:
            chosen = [f"item-{k}" for k in items]
            self.world.retired.update(chosen)
            trainer.retire(*chosen, force=force)

    @rule(name=names, script=happenings)
    def exchange(self, name: str, script: list[str]) -> None:
        if name not in self.world.living:
            return
        self.world.networks[name].script = deque(script)
        self._exchange(name)

    def _exchange(self, name: str) -> None:
        trainer, network = self.world.living[name], self.world.networks[name]
        self.now_s += 0.001
        try:
            trainer.store.exchange()
            trainer.receive()
        except StoreUnavailable:
            pass
        except Fenced:
            note(f"{name} is fenced")
            others = {p for other in self.world.living.values() if other is not trainer for p in other.positions}
            ours = {p for p, owner in self.world.owners.items() if owner == name}
            rivals = others | self.world.contested
            assert set(trainer.positions) - ours or ours & rivals, f"{name} was fenced, and nobody claims what it has"
            self._die(name)
        network.script.clear()

    def _someone_else(self, name: str) -> None:
        """In the midst of an operation of one trainer, another one exchanges."""
        others = [other for other in self.world.living if other != name]
        if others and not self.busy:
            with self._kept_busy():
                self._exchange(others[int(self.now_s * 1000) % len(others)])

    @contextmanager
    def _kept_busy(self) -> Iterator[None]:
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    @rule(name=names)
    def receive(self, name: str) -> None:
        trainer = self.world.living.get(name)
        if trainer is None:
            return
        try:
            trainer.receive()
        except Fenced:
            self._die(name)
            return
        assert trainer.view() == trainer.should_view()

    # the server loses something ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.settled and self._nobody_is_missing())
    @rule()
    def wipe(self) -> None:
        self.shared.wipe()
        self.world.copies.clear()
        self.settled = False

    def _nobody_is_missing(self) -> bool:
        """Whatever the dead have added is in the replica of one who lives."""
        now = stored(self.server)
        if now is None or not self.world.living:
            return False
        replicas = [trainer.store.state.replica for trainer in self.world.living.values()]
        reach = max(r.position.number for r in replicas)
        return all(number <= reach for trainer, number in now.log if trainer not in self._known_names())

    def _known_names(self) -> frozenset[str]:
        return frozenset(trainer.store.state.trainer for trainer in self.world.living.values())

    @precondition(lambda self: self.settled)
    @rule()
    def copy(self) -> None:
        """Remember the server as a replica does that will lag behind."""
        now = stored(self.server)
        if now is not None:
            living, owners = self._known_names(), dict(self.world.owners)
            position = now.position
            self.world.copies.append(Copy(self.shared.copy(), position.generation, position.number, living, owners))

    @precondition(lambda self: self.settled and self.world.copies)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """A failover to a replica that lags behind, while nobody died and no partition moved."""
        now = stored(self.server)
        copied = data.draw(st.sampled_from(self.world.copies))
        same = copied.living <= self._known_names() and copied.owners == self.world.owners
        self.world.copies.clear()
        if now is None or copied.generation != now.position.generation or not same:
            return
        if any(trainer not in self._known_names() for trainer, number in now.log if number > copied.number):
            return
        self.shared.restore(copied.data)
        self.settled = False

    @rule()
    def settle(self) -> None:
        """Everybody exchanges until nothing changes any more."""
        for network in self.world.networks.values():
            network.script.clear()
        self.shared.resume()
        for _ in range(12):
            for name in sorted(self.world.living):
                self._exchange(name)
        self.settled = True
        self._check_everything()

    # what must hold ---------------------------------------------------------------------------------------------------

    @invariant()
    def each_event_is_counted_exactly_once(self) -> None:
        found = stored(self.server)
        if found is None:
            return
        every = events_before(found.following)
        assert found.counts <= every
        assert not [raw for raw in every if found.counts[raw] < every[raw] and raw not in self.world.retired]
        assert sorted(set(found.live)) == sorted(found.live), "an item has two rows"
        doubled = {raw: count for raw, count in found.drawn.items() if raw in self.world.batches and count != 1}
        assert not doubled, f"batches were counted more than once: {doubled}"
        assert len(found.log) <= HARD

    @invariant()
    def view_is_replica_and_own_contributions(self) -> None:
        for trainer in self.world.living.values():
            state = trainer.store.state
            inbox = state.inbox
            if not (inbox.ids or inbox.deltas or inbox.retired or state._to_correct or state.reset_due):
                assert trainer.view() == trainer.should_view()

    def _check_everything(self) -> None:
        found = stored(self.server)
        if found is None:
            return
        for name, trainer in self.world.living.items():
            assert not trainer.store.state.outbox.waiting, f"{name} still has something to send"
            assert not trainer.store.state.retiring, f"{name} still has something to retire"
            assert {trainer.ids[own] for own in trainer.own if own >= 0} == set(found.live), name
            assert trainer.view() == (found.counts, found.drawn), name
            replica = trainer.store.state.replica
            assert replica.position == found.position
            assert replica.next_offsets == found.following
        for partition, owner in self.world.owners.items():
            reached = self.world.living[owner].positions[partition] if owner else 0
            reached = max(reached, self.world.committed[partition])
            assert found.following.get(partition, 0) >= reached, f"events of {partition} are missing"
        self._check_draws(found.drawn)

    def _check_draws(self, drawn: Counter[str]) -> None:
        """What a batch resampled counts, unless others have trained some of its events too."""
        times = self.world.times | Counter({("moved", 0): 2})
        alone = [raw for raw, events in self.world.batches.items() if all(times[event] == 1 for event in events)]
        living = self._known_names()
        lost = [raw for raw in alone if raw.partition(":")[0] in living and not drawn[raw]]
        assert not lost, f"what these batches have resampled is missing: {lost}"

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.settle()
