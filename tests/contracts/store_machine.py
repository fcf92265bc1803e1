"""Random interleavings of everything that trainers, servers and networks do, against what must come out.

A few trainers share partitions of a stream whose items are known beforehand. They train, exchange, save checkpoints,
crash and come back, also twice at once; partitions move between them, also away from trainers that do not know it;
topics are recreated; requests and answers are lost; the server loses everything, or only the end. Whatever happens:

- every copy of a partition's counts, on the server and in each trainer, is what the stream has before its offset, but
  for items that somebody has retired;
- what a trainer works with is the sum of its columns;
- and when things have calmed down, everybody has the same, and nothing is missing.

Kafka's part is played by `committed`: a trainer commits what its checkpoint and the store have, and whoever gets a
partition begins there.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from contracts.store_trainer import ITEMS, Backend, Trainer, counts_before, counts_of, stored
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamer.cache_store.change import COUNTS, NOTHING
from streamer.cache_store.errors import StoreUnavailable
from streamer.cache_store.server import Request, StoreServer
from streamer.cache_store.store import CacheStore

TRAINERS = ("ada", "ben", "cleo", "ada again")
"""The last one has the identity of the first."""
PARTITIONS = ("clicks[0]", "clicks[1]", "views[0]")

unhurried = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
"""Without shrinking, which takes minutes: to look into a failure, add `Phase.shrink` and be patient."""

trainers = st.sampled_from(TRAINERS)
partitions = st.sampled_from(PARTITIONS)
happenings = st.lists(st.sampled_from(["fine", "fine", "lost request", "lost answer", "other exchange"]), max_size=6)


class Unreliable:
    """A server behind a network: before each operation the next thing on the list happens."""

    kind = "unreliable"

    def __init__(self, server: StoreServer, other: Any) -> None:
        self._server, self._other = server, other
        self.script: deque[str] = deque()

    def __getattr__(self, name: str) -> Any:
        def operation(*arguments: Any) -> Any:
            happens = self.script.popleft() if self.script else "fine"
            if happens == "lost request":
                raise StoreUnavailable("unreachable", "the request was lost")
            if happens == "other exchange":
                self._other()
            answer = getattr(self._server, name)(*arguments)
            if happens == "lost answer":
                raise StoreUnavailable("slow", "the answer was lost")
            return answer

        return operation


class StoreMachine(RuleBasedStateMachine):
    """Subclasses give a backend."""

    def backend(self) -> Backend:
        raise NotImplementedError("a subclass gives it")

    @initialize()
    def begin(self) -> None:
        self.shared = self.backend()
        self.server = self.shared.connect()
        self.living: dict[str, Trainer] = {}
        self.networks: dict[str, Unreliable] = {}
        self.checkpoints: dict[str, dict[str, Any]] = {}
        self.topics: Counter[str] = Counter()
        self.owners: dict[str, str] = {}
        self.committed: Counter[str] = Counter()
        self.copies: list[Any] = []
        self.retired: set[str] = set()
        self.settled = True
        for name, partition in zip(TRAINERS[:2], PARTITIONS[:2], strict=True):
            self.come(name)
            self.give(partition, name)

    def entry(self, partition: str) -> str:
        topic = partition.partition("[")[0]
        return counts_of(partition, f"id-{self.topics[topic]}")

    # trainers come and go ---------------------------------------------------------------------------------------------

    @rule(name=trainers)
    def come(self, name: str) -> None:
        if name not in self.living:
            network = Unreliable(self.shared.connect(), lambda: self._someone_else(name))
            store = CacheStore(network, name.removesuffix(" again"))  # type: ignore[arg-type]
            self.networks[name] = network
            trainer = Trainer(store, self.checkpoints.get(name.removesuffix(" again")))
            self.living[name] = trainer
            store.exchange()

    @precondition(lambda self: self.settled)
    @rule(name=trainers)
    def crash(self, name: str) -> None:
        self.living.pop(name, None)
        self.owners = {p: owner for p, owner in self.owners.items() if owner != name}

    @rule(name=trainers)
    def save(self, name: str) -> None:
        """Save a checkpoint, and commit what the store has of it."""
        trainer = self.living.get(name)
        if trainer is None:
            return
        self.checkpoints[name.removesuffix(" again")] = trainer.save()
        for partition, owner in self.owners.items():
            entry = self.entry(partition)
            if owner == name and entry in trainer.positions:
                at = trainer.positions[entry]
                top = trainer.shared.top(entry)
                at = at if trainer.table.version(entry) <= top else min(at, top[0])
                self.committed[entry] = max(at, self.committed[entry])

    @rule(partition=partitions, name=trainers)
    def give(self, partition: str, name: str) -> None:
        """A partition moves, whether or not its former owner knows; it may come back at once."""
        if name not in self.living:
            return
        self.owners[partition] = name
        entry = self.entry(partition)
        start = max(self.committed[entry], self.living[name].positions.get(entry, 0))
        if start and not self.settled:
            self._exchange_all()  # a claim waits for the entries that others have
        self.living[name].claim(entry, start)

    @rule(topic=st.sampled_from(["clicks", "views"]))
    def recreate(self, topic: str) -> None:
        self.topics[topic] += 1
        for partition in [p for p in self.owners if p.startswith(topic)]:
            self.give(partition, self.owners[partition])

    # they work --------------------------------------------------------------------------------------------------------

    @rule(name=trainers, sizes=st.tuples(*[st.integers(0, 5)] * 4), draws=st.integers(0, 3))
    def train(self, name: str, sizes: tuple[int, ...], draws: int) -> None:
        """One that has lost a partition without knowing goes on with it."""
        trainer = self.living.get(name)
        if trainer is not None:
            trainer.train(dict(zip(sorted(trainer.shared.owned, reverse=True), sizes, strict=False)), draws)

    @rule(name=trainers, number=st.integers(0, ITEMS - 1))
    def retire(self, name: str, number: int) -> None:
        if name in self.living:
            self.retired.add(f"item-{number}")
            self.living[name].retire(f"item-{number}")

    @rule(name=trainers, script=happenings)
    def exchange(self, name: str, script: list[str]) -> None:
        if name in self.living:
            self.networks[name].script = deque(script)
            self.living[name].store.try_exchange()
            self.networks[name].script.clear()

    @rule(name=trainers, rows=st.integers(1, 9))
    def receive(self, name: str, rows: int) -> None:
        if name in self.living:
            self.living[name].receive(rows)

    def _someone_else(self, name: str) -> None:
        others = [other for other in self.living if other != name and not self.networks[other].script]
        if others:
            self.living[others[0]].store.try_exchange()

    # the server loses something ---------------------------------------------------------------------------------------

    def _somebody_knows(self) -> bool:
        """Of each partition that somebody has read, a living trainer has a copy."""
        known = {name for t in self.living.values() for name in t.table.entries if t.table.version(name) > NOTHING}
        return all(name in known for name, at in self.committed.items() if at)

    @precondition(lambda self: self.settled and self._somebody_knows())
    @rule()
    def wipe(self) -> None:
        self.shared.wipe()
        self.settled = False

    @rule()
    def copy(self) -> None:
        self.copies.append(self.shared.copy())

    @precondition(lambda self: self.settled and self.copies and self._somebody_knows())
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """A failover to a replica that lags behind, or an old dump."""
        self.shared.restore(data.draw(st.sampled_from(self.copies)))
        self.settled = False

    @rule()
    def settle(self) -> None:
        """Everybody exchanges until nothing changes any more."""
        for _ in range(3):
            self._exchange_all()
        self.settled = True
        self._check_everything()

    def _exchange_all(self) -> None:
        for _ in range(2):
            for name, trainer in self.living.items():
                self.networks[name].script.clear()
                assert trainer.store.try_exchange()
                while trainer.shared.waiting_rows:
                    trainer.receive()

    # what must hold ---------------------------------------------------------------------------------------------------

    @invariant()
    def every_copy_is_what_the_stream_has(self) -> None:
        for trainer in self.living.values():
            trainer.check()
            for name, entry in trainer.table.entries.items():
                if name.startswith(COUNTS) and not entry.is_partial:
                    self._compare(trainer.entry(name), name, entry.version[0])

    def _compare(self, found: Counter[str], name: str, offset: int) -> None:
        expected = counts_before(name, offset)
        for raw in expected.keys() | found.keys():
            assert found[raw] <= expected[raw], f"{raw} is counted {found[raw]} times in {name} before {offset}"
            if raw not in self.retired:
                assert found[raw] == expected[raw], f"{name} before {offset}: {raw}"

    def _check_everything(self) -> None:
        tops = self.server.exchange(Request("reader")).tops
        for name, version in tops.items():
            if name.startswith(COUNTS):
                self._compare(stored(self.server, name), name, version[0])
        for name, trainer in self.living.items():
            assert not trainer.shared._pack(with_draws=True), f"{name} still has something to send"
            assert trainer.shared.is_caught_up, f"{name} still has something to read"
            for entry, at in trainer.positions.items():
                assert tops.get(entry, NOTHING)[0] >= at, f"events of {entry} are missing"
        for entry, at in self.committed.items():
            assert not self.living or tops.get(entry, NOTHING)[0] >= at, f"committed events of {entry} are missing"
        if not self.retired and len({id(t) for t in self.living.values()}) > 1:
            counts = [trainer.view()[0] for trainer in self.living.values()]
            assert all(one == counts[0] for one in counts)

    def teardown(self) -> None:
        if hasattr(self, "living"):
            self.settle()
