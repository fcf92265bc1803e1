"""A learner among others: what it counts, draws and caches is what all of them do together."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contracts.store_trainer import stored
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from line_harness import TOPIC, Event, append, events, memory_log, newest, popularity_counts, small, until, values_of

from streamer.accounting import Accounting
from streamer.build import assemble
from streamer.cache_store.contribution import Contribution, OffsetSpan
from streamer.cache_store.errors import StoreUnavailable
from streamer.cache_store.memory import MemoryServer
from streamer.cache_store.state import StoreSettings
from streamer.cache_store.store import CacheStore
from streamer.dead_letters.base import MemoryDeadLetters
from streamer.errors import SharingError
from streamer.event import EventDecoder
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import Learned, Learner
from streamer.learner.cache import refresh_cache
from streamer.pipeline import Pipeline
from streamer.settings import PipelineSettings
from streamer.sharing.sharing import LearnPart, Sharing, StoreSharing
from streamer.sharing.sharing import _spans as spans_and_sources
from streamer.snapshot import CheckpointStore
from streamer.snapshot.checkpointer import Checkpointer
from streamer.sources.base import Partition, Position
from streamer.sources.memory import MemoryLog, MemorySource

P0, P1, P2 = (Partition("clicks", number) for number in range(3))
STREAMS = {p: events(4000, seed=p.number, items=60 + 20 * p.number) for p in (P0, P1, P2)}
"""What each partition holds."""

OPERATIONS = frozenset({"assign", "ids", "claim", "push", "pull", "snapshot", "seed"})


class Network(MemoryServer):
    """A server that several stores of a test share, and that can be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: frozenset[str] = frozenset()

    def __getattribute__(self, name: str) -> Any:
        if name in OPERATIONS and name in self.failing:
            raise StoreUnavailable("unreachable", "the server is away")
        return super().__getattribute__(name)

    @property
    def away(self) -> bool:
        return self.failing == OPERATIONS

    @away.setter
    def away(self, away: bool) -> None:
        self.failing = OPERATIONS if away else frozenset()


class ByHand(CacheStore):
    """A store that exchanges when the test says so, and by a clock that the test moves."""

    def __init__(self, server: MemoryServer, name: str = "trainer") -> None:
        self.now_s = 0.0
        super().__init__(server, StoreSettings(soft_log_length=8), name, clock=lambda: self.now_s)

    def start(self) -> None:
        self._try()

    def claim(self, partitions: Any, timeout_s: float = 0.0) -> bool:
        super().claim(partitions, 0.0)
        self._try()
        return super().flush(0.0)

    def flush(self, timeout_s: float) -> bool:
        self._try()
        return super().flush(0.0)

    def _try(self) -> None:
        with suppress(StoreUnavailable):
            self.exchange()


class Trainer:
    """A learner with its part in what is shared, and partitions that it reads."""

    def __init__(self, server: MemoryServer, *partitions: Partition, learner: Learner | None = None) -> None:
        self.learner = learner or Learner(small())
        self.store = ByHand(server)
        self.sharing = StoreSharing(self.learner, self.store)
        self.ends: dict[Partition, int] = {}
        self.positions = dict.fromkeys(partitions, 0)
        self.drawn: Counter[str] = Counter()

    def start(self) -> Trainer:
        self.sharing.start()
        self.claim(self.positions)
        return self

    def claim(self, partitions: Iterable[Partition]) -> None:
        self.sharing.claim(partitions)
        self.sharing.receive()

    def exchange(self) -> None:
        self.store.exchange()
        self.sharing.receive()

    def train(self, count: int = 16) -> list[Learned]:
        """Learn the next events of each of its partitions; nobody else hears of it before an exchange."""
        batch = batch_of({p: (at, STREAMS[p][at : at + count]) for p, at in self.positions.items()})
        self.positions = {p: at + count for p, at in self.positions.items()}
        return self.learn_batch(batch)

    def learn_batch(self, batch: MicroBatch) -> list[Learned]:
        """A batch along the line."""
        self.sharing.receive()
        found = []
        for part in self.sharing.parts(batch, lambda: self.ends):
            learned = self.learner.learn_batch(part.batch, None, part.counted)
            self.sharing.contribute(part, learned)
            self.drawn += drawn_by(self.learner, learned) if part.counted else Counter()
            found.append(learned)
        return found

    def view(self) -> tuple[Counter[str], Counter[str]]:
        """Events and draws of each item, as the learner has them."""
        return +popularity_counts(self.learner), occurrence_of(self.learner)

    def should_view(self) -> tuple[Counter[str], Counter[str]]:
        """The replica, and what waits."""
        replica, store = self.store.state.replica, self.store
        named = dict(enumerate(store.state.row_map.ids))
        counts = Counter({named[row]: int(replica.counts[row]) for row in np.flatnonzero(replica.counts).tolist()})
        drawn = Counter({named[row]: int(replica.drawn[row]) for row in np.flatnonzero(replica.drawn).tolist()})
        for waiting in store.state.outbox.waiting:
            for into, more in ((counts, waiting.contribution.item_counts), (drawn, waiting.contribution.drawn)):
                for row, count in zip(more.rows.tolist(), more.counts.tolist(), strict=True):
                    into[self.learner.state.items.id_of(row)] += count
        return +counts, +drawn


def batch_of(parts: dict[Partition, tuple[int, Sequence[Event]]]) -> MicroBatch:
    """Events of partitions, each from an offset on, as one batch."""
    batch = MicroBatch()
    for partition, (start, stream) in parts.items():
        batch.origins.append(Origin(partition, len(batch), len(batch) + len(stream)))
        batch.users += [user for user, _ in stream]
        batch.items += [item for _, item in stream]
        batch.timestamps_s += [1.0] * len(stream)
        batch.offsets += range(start, start + len(stream))
        batch.positions[partition] = start + len(stream)
    return batch


def occurrence_of(learner: Learner) -> Counter[str]:
    values = learner.state.occurrence.values(np.arange(len(learner.state.items)))
    assert np.array_equal(values, np.rint(values)), "counts are whole"
    return +Counter({learner.state.items.id_of(row): int(value) for row, value in enumerate(values)})


def drawn_by(learner: Learner, learned: Learned) -> Counter[str]:
    found: Counter[str] = Counter()
    for row, count in zip(*(column.tolist() for column in learned.drawn), strict=True):
        found[learner.state.items.id_of(row)] += round(count)
    return +found


def items_before(positions: dict[Partition, int]) -> Counter[str]:
    return Counter(item for p, stop in positions.items() for _, item in STREAMS[p][:stop])


def settle(*trainers: Trainer) -> None:
    """Everybody hears of everything."""
    for _ in range(3):
        for trainer in trainers:
            trainer.exchange()


@pytest.fixture
def server() -> Network:
    return Network()


# together -------------------------------------------------------------------------------------------------------------


class TestTogether:
    def test_counts_and_occurrence_of_two_are_the_sum_of_both(self, server: Network) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        for count in (16, 5, 40):
            ada.train(count)
            ben.train(count)
            ben.train(3)
            settle(ada, ben)
        assert ada.drawn != ben.drawn
        assert ada.view() == ben.view() == (items_before(ada.positions | ben.positions), ada.drawn + ben.drawn)
        assert ada.learner.state.item_counts.total == ben.learner.state.item_counts.total == 61 + 70

    def test_own_events_count_at_once_and_others_after_an_exchange(self, server: Network) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train(16)
        assert ada.view() == (items_before({P0: 16}), ada.drawn)
        assert ben.view() == (Counter(), Counter())
        ada.exchange()
        assert ben.view() == (Counter(), Counter())
        ben.exchange()
        assert ben.view() == ada.view()

    def test_rows_differ_and_counts_do_not(self, server: Network) -> None:
        """Each learner numbers items as it meets them."""
        ada, ben = Trainer(server, P0).start(), Trainer(server, P2).start()
        ada.train(30)
        ben.train(30)
        settle(ada, ben)
        assert ada.learner.state.items.ids != ben.learner.state.items.ids
        assert sorted(ada.learner.state.items.ids) == sorted(ben.learner.state.items.ids)
        assert ada.view() == ben.view()

    def test_everybody_trains_with_the_cache_that_was_drawn_last(self, server: Network) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        for last, other in ((ada, ben), (ben, ada)):
            other.train()
            other.exchange()
            last.train()
            drawn = [last.learner.state.items.id_of(row) for row in last.learner.state.cache]
            settle(last, other)
            for trainer in (ada, ben):
                assert [trainer.learner.state.items.id_of(row) for row in trainer.learner.state.cache] == drawn

    def test_one_that_comes_late_trains_its_first_step_with_what_the_others_have(self, server: Network) -> None:
        ada = Trainer(server, P0).start()
        for _ in range(20):
            ada.train()
            ada.exchange()
        ben = Trainer(server, P1).start()
        seen: list[Any] = []
        step = ben.learner.state.trainer.step

        def watched(batch: Any, view: Any) -> Any:
            seen.append([ben.learner.state.items.id_of(row) for row in view.cache])
            return step(batch, view)

        ben.learner.state.trainer.step = watched  # type: ignore[method-assign]
        ben.train(8)
        (cache,) = seen
        assert cache == [ada.learner.state.items.id_of(row) for row in ada.learner.state.cache]
        assert len(cache) == ada.learner.settings.cache_size
        assert ben.view() == (items_before({P0: 320, P1: 8}), ada.drawn + ben.drawn)

    def test_methods_without_a_cache_share_counts(self, server: Network) -> None:
        ada = Trainer(server, P0, learner=Learner(small("ssl-pop"))).start()
        ben = Trainer(server, P1, learner=Learner(small("ssl-pop"))).start()
        ada.train(30)
        ben.train(20)
        settle(ada, ben)
        assert ada.view() == ben.view() == (items_before({P0: 30, P1: 20}), Counter())
        assert not len(ada.learner.state.cache)


# out of touch ---------------------------------------------------------------------------------------------------------


class TestOutOfTouch:
    def test_training_goes_on_and_everything_arrives_later(self, server: Network) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        server.away = True
        for trainer in (ada, ben):
            for _ in range(5):
                trainer.train()
            with pytest.raises(StoreUnavailable):
                trainer.exchange()
            assert trainer.view() == (items_before(trainer.positions), trainer.drawn)
        server.away = False
        settle(ada, ben)
        assert ada.view() == ben.view() == (items_before({P0: 80, P1: 80}), ada.drawn + ben.drawn)

    def test_at_the_end_it_says_what_did_not_arrive(self, server: Network, caplog: pytest.LogCaptureFixture) -> None:
        ada = Trainer(server, P0).start()
        ada.train(16)
        server.away = True
        ada.sharing.flush()
        assert "16 events are not in the store yet: " in caplog.text
        caplog.clear()
        server.away = False
        ada.exchange()
        ada.sharing.flush()
        assert not caplog.records

    def test_one_that_was_away_for_long_loads_everything_and_keeps_what_it_has_to_send(self, server: Network) -> None:
        """The log was trimmed meanwhile; and it can read again before it can write."""
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train()
        ada.exchange()
        for _ in range(3):
            ada.train()
        for _ in range(30):
            ben.train(4)
            ben.exchange()
        assert ben.store.status().snapshots
        server.failing = frozenset({"push"})
        with pytest.raises(StoreUnavailable):
            ada.exchange()
        ada.sharing.receive()
        assert len(ada.store.state.outbox.waiting) == 3
        assert ada.view() == ada.should_view() == (items_before({P0: 64, P1: 120}), ada.drawn + ben.drawn)
        assert ben.view()[0] == items_before({P0: 16, P1: 120})
        server.failing = frozenset()
        settle(ada, ben)
        assert ada.view() == ben.view() == (items_before({P0: 64, P1: 120}), ada.drawn + ben.drawn)

    def test_it_draws_its_own_caches_meanwhile(self, server: Network) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train()
        settle(ada, ben)
        shared = ben.learner.state.cache
        ben.train()
        ben.sharing.receive()
        assert np.array_equal(ben.learner.state.cache, shared), "in touch, the newest that was sent counts"
        server.away = True
        ben.store.now_s += 60
        ben.train()
        own = ben.learner.state.cache
        ben.sharing.receive()
        assert np.array_equal(ben.learner.state.cache, own)
        assert not np.array_equal(own, shared)

    def test_a_server_that_lost_everything_is_given_it_again(self, server: Network) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        for trainer in (ada, ben):
            trainer.train()
        settle(ada, ben)
        ben.train()  # nobody has it yet
        server.wipe()
        ada.train()
        settle(ada, ben)
        whole = (items_before({P0: 32, P1: 32}), ada.drawn + ben.drawn)
        assert ada.view() == ben.view() == whole
        found = stored(server)
        assert found is not None
        assert (found.counts, found.drawn) == whole


# events that come again -----------------------------------------------------------------------------------------------


class TestEventsThatComeAgain:
    def test_a_batch_is_cut_where_the_store_has_some_of_it(self, server: Network) -> None:
        ada = Trainer(server, P0, P1).start()
        ada.train(10)
        ada.exchange()
        ben = Trainer(server, P0, P1).start()
        batch = batch_of({P0: (4, STREAMS[P0][4:16]), P1: (10, STREAMS[P1][10:13]), P2: (0, STREAMS[P2][:5])})
        again, fresh = ben.sharing.parts(batch, dict)
        assert (again.counted, fresh.counted) == (False, True)
        assert again.batch.offsets == list(range(4, 10))
        assert again.batch.origins == [Origin(P0, 0, 6)]
        assert fresh.batch.offsets == [*range(10, 16), *range(10, 13), *range(5)]
        assert fresh.batch.origins == [Origin(P0, 0, 6), Origin(P1, 6, 9), Origin(P2, 9, 14)]
        for part in (again, fresh):
            for partition, start, stop in part.batch.origins:
                there = [STREAMS[partition][offset] for offset in part.batch.offsets[start:stop]]
                assert list(zip(part.batch.users, part.batch.items, strict=True))[start:stop] == there

    def test_only_what_is_new_is_counted(self, server: Network) -> None:
        ada = Trainer(server, P0).start()
        ada.train(10)
        ada.exchange()
        ben = Trainer(server, P0).start()
        again, fresh = ben.train(16)
        settle(ben)
        assert (len(again.items), len(fresh.items)) == (10, 6)
        assert ben.view() == (items_before({P0: 16}), ada.drawn + drawn_by(ben.learner, fresh))

    def test_a_batch_of_which_everything_is_there_is_trained_and_not_counted(self, server: Network) -> None:
        ada = Trainer(server, P0).start()
        ada.train(16)
        ada.exchange()
        ben = Trainer(server, P0).start()
        before, steps = ben.view(), ben.learner.state.trainer.steps
        (again,) = ben.train(16)
        assert len(again.items) == 16
        assert ben.learner.state.trainer.steps == steps + 1
        assert not ben.store.state.outbox.waiting
        assert ben.view() == before == (items_before({P0: 16}), ada.drawn)

    def test_what_is_not_counted_is_said_once(self, server: Network, caplog: pytest.LogCaptureFixture) -> None:
        ada = Trainer(server, P0).start()
        ada.train(32)
        ada.exchange()
        ben = Trainer(server, P0).start()
        with caplog.at_level(logging.INFO):
            ben.train(10), ben.train(10), ben.train(20)
        said = [record.getMessage() for record in caplog.records if "not counted" in record.getMessage()]
        assert said == [f"The store has counted {P0} up to offset 32: these events are trained, not counted"]
        assert ben.sharing.status().duplicate_events == 32

    def test_a_recreated_topic_counts_again(self, server: Network) -> None:
        ada = Trainer(server, P0).start()
        ada.train(40)
        ada.exchange()
        ben = Trainer(server, P0).start()
        ben.ends = {P0: 10}
        (learned,) = ben.train(10)
        settle(ben, ada)
        assert ben.drawn == drawn_by(ben.learner, learned)
        found = stored(server)
        assert found is not None
        assert found.counts == items_before({P0: 40}) + items_before({P0: 10})
        assert found.following[str(P0)] == 10
        assert ben.view() == (found.counts, ada.drawn + ben.drawn)

    def test_an_end_that_lags_behind_what_was_read_recreates_nothing(self, server: Network) -> None:
        """The source's last word on the end of a partition is older than what was read of it."""
        ada = Trainer(server, P0).start()
        ada.train(40)
        ada.exchange()
        ben = Trainer(server, P0).start()
        ben.ends = {P0: 40}
        assert [len(learned.items) for learned in ben.train(50)] == [40, 10]


# partitions that move -------------------------------------------------------------------------------------------------


class TestPartitionsThatMove:
    def test_what_waits_of_a_partition_that_left_is_sent_unless_others_have_claimed_it(self, server: Network) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train(10)
        ada.sharing.release([P0])
        ada.train(5)  # of nobody's partition: the next to claim it begins before
        ben.claim([P0])
        settle(ada, ben)
        assert ada.view() == ben.view() == (Counter(), Counter())
        assert ada.store.status().refused_events == 15

    def test_whoever_gets_a_partition_next_goes_on_where_the_store_is(self, server: Network) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train(10)
        ada.exchange()
        ada.sharing.release([P0])
        ben.claim([P0])
        ben.positions[P0] = 6
        ben.train(10)
        settle(ada, ben)
        assert ada.view()[0] == ben.view()[0] == items_before({P0: 16, P1: 10})

    def test_a_trainer_that_was_out_of_touch_while_others_took_over_is_stopped(self, server: Network) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ben.claim([P0])
        ada.train(10)
        with pytest.raises(Exception, match="another trainer has claimed"):
            ada.store.exchange()
        with pytest.raises(SharingError, match=r"another trainer has claimed clicks\[0\].*start it again"):
            ada.sharing.receive()
        settle(ben)
        assert ben.view() == (Counter(), Counter())

    def test_what_is_contributed_meanwhile_holds_up_no_handover(self) -> None:
        """A busy trainer has always something to send; only what was learned before counts."""
        server = Busy()
        store = CacheStore(server, StoreSettings(every_s=0.01))
        store.start()
        store.claim({"busy": None})
        server.busy = store
        server.contribute()
        assert store.flush(10)
        server.busy = None
        store.close()


class Busy(Network):
    """A server that gets one more contribution whenever it gets one."""

    def __init__(self) -> None:
        super().__init__()
        self.busy: CacheStore | None = None
        self.sent = 0

    def push(self, push: Any) -> Any:
        answer = super().push(push)
        self.contribute()
        return answer

    def contribute(self) -> None:
        if self.busy is not None:
            where = OffsetSpan("busy", self.sent, self.sent + 1)
            one = Contribution((where,), np.zeros(1, np.int32), np.array([self.sent]), np.zeros(1, np.int64))
            self.sent += 1
            self.busy.contribute(one, ["item"])


class TestCommits:
    """What is committed, whoever gets a partition next does not read: the store must have it."""

    def test_a_position_is_committed_once_the_store_has_everything_before_it(
        self, server: Network, tmp_path: Path
    ) -> None:
        log = memory_log(values_of(STREAMS[P0][:200]), partitions=2)
        with running(log, server, tmp_path) as (pipeline, store):
            until(lambda: pipeline.accounting.consumed >= 96, pipeline.step)
            store.exchange()
            until(lambda: pipeline.accounting.consumed == 192, pipeline.step)
            saved(pipeline)
            assert sum(log.committed["streamer"].values()) == 96, "saved is not enough"
            store.exchange()
            until(lambda: sum(log.committed["streamer"].values()) == 192)

    def test_without_the_store_it_is_left_to_whoever_comes_next(self, server: Network, tmp_path: Path) -> None:
        """Two lines, one after the other: the second reads again what the first could not send."""
        log = memory_log(values_of(STREAMS[P0][:200]))
        with running(log, server, tmp_path / "a") as (pipeline, store):
            until(lambda: pipeline.accounting.consumed == 96, pipeline.step)
            store.exchange()
            server.away = True
            until(lambda: pipeline.accounting.consumed == 192, pipeline.step)
        server.away = False
        assert log.committed["streamer"] == {Partition(TOPIC, 0): 96}
        with running(log, server, tmp_path / "b") as (pipeline, _):
            until(lambda: pipeline.accounting.consumed == 96, pipeline.step)
        found = stored(server)
        assert found is not None
        assert found.counts == items_before({P0: 192})

    def test_at_the_end_the_store_acknowledges_before_it_is_committed(self, server: Network, tmp_path: Path) -> None:
        log = memory_log(values_of(STREAMS[P0][:200]))
        with running(log, server, tmp_path) as (pipeline, store):
            until(lambda: pipeline.accounting.consumed == 192, pipeline.step)
            assert store.status().backlog_events == 192
        assert log.committed["streamer"] == {Partition(TOPIC, 0): 192}
        assert newest(tmp_path).meta["sharing"]["waiting"] == []

    def test_after_a_restart_what_waits_is_acknowledged_before_it_is_committed(
        self, server: Network, tmp_path: Path
    ) -> None:
        log = memory_log(values_of(STREAMS[P0][:200]))
        with running(log, server, tmp_path) as (pipeline, store):
            until(lambda: pipeline.accounting.consumed == 192, pipeline.step)
            server.away = True
        assert log.committed["streamer"] == {Partition(TOPIC, 0): 0}
        with running(log, server, tmp_path) as (pipeline, store):
            until(lambda: pipeline.ingest.queued_events, pipeline.step)
            assert log.committed["streamer"] == {Partition(TOPIC, 0): 0}
            server.away = False
            store.exchange()
            until(lambda: log.committed["streamer"] == {Partition(TOPIC, 0): 192}, pipeline.step)

    def test_what_was_refused_is_read_again_when_the_partition_comes_back(
        self, server: Network, tmp_path: Path
    ) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train(40)
        ada.sharing.release([P0])
        ben.claim([P0])
        ben.positions = {P0: 0}
        ben.train(15)
        ben.exchange()
        ada.exchange()
        assert ada.store.status().refused_events == 40
        save(ada, tmp_path)
        ben.sharing.release([P0])
        for trainer in (ada, restored(server, tmp_path)):
            assert trainer.sharing.claim([P0]) == {P0: 15}, "what others have counted is not read again"
            assert trainer.sharing.claim([P0]) == {}, "it is known now"


def line(log: MemoryLog, server: Network, directory: Path) -> tuple[Pipeline, ByHand]:
    store = ByHand(server)
    settings = PipelineSettings(batch_size=16, max_age_s=0, checkpoint_every_s=0, max_queued_events=16)
    pipeline = assemble(
        Learner(small()),
        lambda: MemorySource(log, TOPIC),
        EventDecoder(),
        MemoryDeadLetters(),
        settings,
        checkpoints=CheckpointStore(directory),
        store=store,
    )
    return pipeline, store


@contextmanager
def running(log: MemoryLog, server: Network, directory: Path) -> Iterator[tuple[Pipeline, ByHand]]:
    """A line that is closed in good order."""
    pipeline, store = line(log, server, directory)
    pipeline.start()
    try:
        yield pipeline, store
    finally:
        pipeline.close()


def saved(pipeline: Pipeline) -> None:
    """Save a checkpoint, and wait until it is safe."""
    pipeline.checkpoint()
    assert pipeline.progress.checkpoints is not None
    until(
        lambda: pipeline.progress.checkpoints.is_safe(pipeline.accounting.consumed),
        pipeline.progress.checkpoints.advance,
    )


# the recovery unit ----------------------------------------------------------------------------------------------------


def save(trainer: Trainer, directory: Path) -> None:
    checkpointer = Checkpointer(CheckpointStore(directory))
    offsets = OffsetSnapshot({p: Position(at) for p, at in trainer.positions.items()}, {})
    checkpointer.save(trainer.learner, trainer.sharing, Accounting(trained=1), offsets, lambda safe: None)
    checkpointer.close()


def restored(server: MemoryServer, directory: Path) -> Trainer:
    """A new process that goes on from a checkpoint; it has not joined yet."""
    trainer = Trainer(server)
    checkpointer = Checkpointer(CheckpointStore(directory))
    positions = checkpointer.restore(trainer.learner, trainer.sharing).offsets.snapshot().positions
    trainer.positions = {p: int(at) for p, at in positions.items()}
    checkpointer.close()
    return trainer


class TestCheckpoints:
    def test_a_restart_knows_what_it_knew(self, server: Network, tmp_path: Path) -> None:
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train()
        ben.train()
        settle(ada, ben)
        ada.train()  # waits
        save(ada, tmp_path)
        again = restored(server, tmp_path)
        assert again.view() == again.should_view() == ada.view()
        assert len(again.store.state.outbox.waiting) == 1

    def test_what_waited_in_a_checkpoint_is_counted_once(self, server: Network, tmp_path: Path) -> None:
        """Also if it was sent after the checkpoint was written."""
        ada = Trainer(server, P0).start()
        ada.train()
        save(ada, tmp_path)
        for lives in range(3):
            again = restored(server, tmp_path).start()
            settle(again)
            assert again.view() == (items_before({P0: 16}), ada.drawn), lives
            assert not again.store.state.outbox.waiting

    def test_events_after_the_checkpoint_come_again_and_count_once(self, server: Network, tmp_path: Path) -> None:
        ada = Trainer(server, P0).start()
        ada.train()
        save(ada, tmp_path)
        for _ in range(3):
            ada.train()
        ada.exchange()
        again = restored(server, tmp_path).start()
        assert again.positions == {P0: 16}
        for _ in range(4):
            again.train()
        settle(again)
        assert again.view() == (items_before({P0: 80}), ada.drawn + again.drawn)

    def test_a_restart_without_the_server_goes_on_and_contributes_later(self, server: Network, tmp_path: Path) -> None:
        ada = Trainer(server, P0).start()
        ada.train()
        ada.exchange()
        save(ada, tmp_path)
        server.wipe()
        again = restored(server, tmp_path)
        again.train()
        again.sharing.start()
        again.claim([P0])
        settle(again)
        whole = (items_before({P0: 32}), ada.drawn + again.drawn)
        assert again.view() == whole
        late = Trainer(server, P1).start()
        assert late.view() == whole, "the server was seeded"

    def test_a_restart_that_finds_a_newer_state_loads_it_whole(self, server: Network, tmp_path: Path) -> None:
        """The log was trimmed since: what came meanwhile comes as totals, and what waits is added."""
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train()
        save(ada, tmp_path)
        for _ in range(30):
            ben.train(4)
            ben.exchange()
        assert ben.store.status().snapshots
        again = restored(server, tmp_path)
        again.sharing.start()
        again.claim([P0])
        assert again.view() == again.should_view() == (items_before({P0: 16, P1: 120}), ada.drawn + ben.drawn)

    def test_the_state_is_of_the_moment_when_it_is_asked_for(self, server: Network, tmp_path: Path) -> None:
        """What has come and was not taken in yet is in the counters and in the replica, or in neither."""
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train()
        ada.exchange()
        ben.store.exchange()  # and not received
        save(ben, tmp_path)
        again = restored(server, tmp_path)
        assert again.view() == again.should_view() == ada.view()


# a trainer that shares nothing ----------------------------------------------------------------------------------------


class TestAlone:
    def test_a_batch_is_learned_whole_whatever_its_offsets(self) -> None:
        batch = batch_of({P0: (0, STREAMS[P0][:5]), P1: (7, STREAMS[P1][:2])})
        for _ in range(2):
            assert Sharing().parts(batch, dict) == [LearnPart(batch, True)]

    def test_everything_is_acknowledged_and_nothing_must_be_read_again(self) -> None:
        assert Sharing().acknowledged({P0: 7, P1: 0}) == {P0: 7, P1: 0}
        assert Sharing().claim([P0, P1]) == {}

    def test_no_store_is_made_and_no_exchange_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def never(*_: Any, **__: Any) -> None:
            raise AssertionError("a trainer that shares nothing has no store")

        monkeypatch.setattr(CacheStore, "__init__", never)
        monkeypatch.setattr(Contribution, "__init__", never)
        pipeline = alone(memory_log(values_of(STREAMS[P0][:64])), tmp_path)
        pipeline.run()
        assert popularity_counts(pipeline.learner) == items_before({P0: 64})
        assert pipeline.status.store.kind == "none"
        assert (pipeline.status.store.exchanges, pipeline.status.store.live) == (0, True)

    def test_its_checkpoint_holds_nothing_of_a_store(self, tmp_path: Path) -> None:
        alone(memory_log(values_of(STREAMS[P0][:64])), tmp_path).run()
        checkpoint = newest(tmp_path)
        assert not [name for name in checkpoint.arrays() if name.startswith("sharing")]
        assert checkpoint.meta["sharing"] == {}

    def test_events_that_come_again_after_a_crash_are_counted_once(self, tmp_path: Path) -> None:
        log = memory_log(values_of(STREAMS[P0][:96]))
        first = alone(log, tmp_path / "before")
        first.start()
        until(lambda: first.accounting.consumed == 48, first.step)
        saved(first)
        until(lambda: first.accounting.consumed == 80, first.step)  # what a crash loses
        again = alone(log, Path(shutil.copytree(tmp_path / "before", tmp_path / "after")))
        first.close()
        assert again.accounting.consumed == 48
        again.run()
        assert popularity_counts(again.learner) == items_before({P0: 96})

    def test_what_it_has_counted_seeds_a_store_that_it_joins_later(self, server: Network, tmp_path: Path) -> None:
        """And what of the stream it has counted is not counted again."""
        log = memory_log(values_of(STREAMS[P0][:64]))
        before = alone(log, tmp_path)
        before.run()
        drawn = occurrence_of(before.learner)
        with running(log, server, tmp_path) as (pipeline, store):
            found = stored(server)
            assert found is not None
            assert (found.counts, found.drawn) == (items_before({P0: 64}), drawn)
            assert found.following == {f"{TOPIC}[0]": 64}
            append(log, values_of(STREAMS[P0][64:96]))
            until(lambda: pipeline.accounting.consumed == 96, pipeline.step)
            store.exchange()
        found = stored(server)
        assert found is not None
        assert found.counts == items_before({P0: 96})

    def test_one_that_shared_before_continues_with_its_counts(self, server: Network, tmp_path: Path) -> None:
        log = memory_log(values_of(STREAMS[P0][:64]))
        with running(log, server, tmp_path) as (pipeline, _):
            until(lambda: pipeline.accounting.consumed == 64, pipeline.step)
        again = alone(log, tmp_path)
        assert popularity_counts(again.learner) == items_before({P0: 64})
        again.run()
        assert newest(tmp_path).meta["sharing"] != {}, "nothing was trained, so nothing was saved"


def alone(log: MemoryLog, directory: Path) -> Pipeline:
    settings = PipelineSettings(batch_size=16, max_age_s=None, checkpoint_every_s=None, until_end=True)
    source = MemorySource(log, TOPIC, trainer="alone")
    parts = (Learner(small()), lambda: source, EventDecoder(), MemoryDeadLetters(), settings)
    return assemble(*parts, checkpoints=CheckpointStore(directory))


# laws -----------------------------------------------------------------------------------------------------------------

SCHEDULES = st.lists(
    st.tuples(
        st.sampled_from([*["train", "exchange"] * 2, "receive", "restart", "move", "away", "back", "wipe"]),
        st.integers(0, 1),
        st.integers(1, 12),
    ),
    min_size=4,
    max_size=24,
)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(SCHEDULES)
@example([("train", 0, 1), ("train", 1, 1), ("exchange", 1, 1), ("restart", 1, 1), ("wipe", 0, 1)])
def test_the_view_is_the_replica_and_what_waits_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, int]]
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    for what, who, count in operations:
        world.do(what, who, count)
        world.check()
    world.settle()


class World:
    """Two trainers, three partitions, and a server with its ups and downs: one trouble at a time."""

    def __init__(self, directory: Path) -> None:
        self.server, self.directory = Network(), directory
        self.lost: set[int] = set()  # who does not know yet that the server has lost everything
        self.trainers = [Trainer(self.server, P0, P2).start(), Trainer(self.server, P1).start()]
        for who in (0, 1):
            self.save(who)

    def do(self, what: str, who: int, count: int) -> None:
        trainer = self.trainers[who]
        if what == "train":
            if trainer.positions:
                trainer.train(count)
        elif what == "exchange":
            self.exchange(who)
        elif what == "receive":
            trainer.sharing.receive()
        elif what in ("away", "back"):
            self.server.away = what == "away"
        elif what == "wipe":
            self.server.wipe()
            self.lost = {0, 1}
        elif not self.lost:
            getattr(self, what)(who)

    def exchange(self, who: int) -> None:
        try:
            self.trainers[who].exchange()
            self.lost.discard(who)
        except StoreUnavailable:
            assert self.server.away

    def save(self, who: int) -> None:
        save(self.trainers[who], self.directory / str(who))

    def restart(self, who: int) -> None:
        """Save and come back as another process, in touch or not."""
        self.save(who)
        again = restored(self.server, self.directory / str(who))
        self.trainers[who] = again
        again.sharing.claim(again.positions)
        self.exchange(who)

    def move(self, who: int) -> None:
        """A partition goes from one to the other, once what was contributed has arrived."""
        leaver, taker = self.trainers[who], self.trainers[1 - who]
        self.exchange(who)
        if self.server.away or len(leaver.positions) < 2 or leaver.store.state.outbox.waiting:
            return
        partition = min(leaver.positions)
        leaver.sharing.release([partition])
        taker.positions[partition] = leaver.positions.pop(partition)
        taker.sharing.claim([partition])
        self.exchange(1 - who)

    def check(self) -> None:
        for trainer in self.trainers:
            trainer.sharing.receive()
            assert trainer.view() == trainer.should_view()

    def settle(self) -> None:
        self.server.away = False
        for _ in range(2):
            settle(*self.trainers)
        found = stored(self.server)
        assert found is not None
        everything = items_before({p: at for trainer in self.trainers for p, at in trainer.positions.items()})
        assert found.counts == everything
        for trainer in self.trainers:
            assert trainer.view() == (found.counts, found.drawn)


# the cache follows the occurrence -------------------------------------------------------------------------------------


def test_items_drawn_into_the_shared_cache_follow_the_occurrence(server: Network) -> None:
    """Pearson's chi-squared over many caches of two trainers, as a third receives them; o is that of the server."""
    ada, ben = (Trainer(server, p, learner=Learner(small(cache_size=500, init_std=1.0))).start() for p in (P0, P1))
    for trainer in (ada, ben):
        trainer.train(400)
    settle(ada, ben)
    watcher = Trainer(server).start()
    every = np.arange(len(watcher.learner.state.items))
    o = watcher.learner.state.occurrence.values(every)
    drawn = np.zeros(len(o))
    for k in range(200):
        draw_again((ada, ben)[k % 2])
        watcher.exchange()
        np.add.at(drawn, watcher.learner.state.cache, 1)
    assert np.array_equal(watcher.learner.state.occurrence.values(every), o), "nothing was resampled meanwhile"
    assert drawn.sum() == 200 * 500
    assert chi_squared_p(drawn, o) > 1e-3
    assert chi_squared_p(drawn, o + 0.02 * o.mean()) < 1e-3, "a vector that is a little off is told apart"


def draw_again(trainer: Trainer) -> None:
    """The end of a step: the next cache is drawn and sent. Nothing was resampled, so that o stays as it is."""
    nothing = (np.empty(0, np.int64), np.empty(0, np.float32))
    (partition, at), *_ = trainer.positions.items()
    batch = batch_of({partition: (at, STREAMS[partition][at : at + 1])})
    trainer.positions[partition] += 1
    trainer.exchange()
    rows = trainer.learner.state.items.rows(batch.items)
    refresh_cache(trainer.learner.state, *nothing, True)
    trainer.sharing.contribute(LearnPart(batch, True), Learned(rows, rows, 0, 0, None, nothing))  # type: ignore[arg-type]
    trainer.store.exchange()


def chi_squared_p(found: np.ndarray, weights: np.ndarray) -> float:
    """How probable it is that draws with these weights fit them no better; rare items are put together."""
    expected = found.sum() * weights / weights.sum()
    rare = expected < 20
    assert found[expected == 0].sum() == 0
    columns = [np.append(x[~rare], x[rare].sum()) for x in (found, expected)]
    observed, wanted = (x[columns[1] > 0] for x in columns)
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    half = torch.tensor([(len(wanted) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(1, 4)), min_size=1, max_size=6))
def test_spans_reach_over_all_offsets_of_their_partitions(split_catalogue_events: list[tuple[int, int, int]]) -> None:
    """Also of partitions that come several times, and of one that was recreated."""
    batch = MicroBatch()
    for number, first, count in split_catalogue_events:
        begin = len(batch)
        batch.users += ["u"] * count
        batch.offsets += range(first, first + count)
        batch.origins.append(Origin(Partition("t", number), begin, begin + count))
    spans, sources = spans_and_sources(batch)
    offsets: dict[str, list[int]] = {}
    for partition, start, stop in batch.origins:
        offsets.setdefault(str(partition), []).extend(batch.offsets[start:stop])
        assert {spans[k].partition for k in sources[start:stop]} == {str(partition)}
    assert spans == tuple(OffsetSpan(name, min(found), max(found) + 1) for name, found in offsets.items())


def known_counts(trainer: Trainer) -> tuple[Counter[str], Counter[str]]:
    """Events and draws of each item, of a learner whose rows are used again."""
    learner, rows = trainer.learner, trainer.learner.state.items.used
    counts, drawn = learner.state.item_counts.counts(rows), learner.state.occurrence.values(rows)
    named = [dict(zip(learner.state.items.ids, np.rint(x).astype(int).tolist(), strict=True)) for x in (counts, drawn)]
    return +Counter(named[0]), +Counter(named[1])


class TestLimits:
    """Trainers that forget items: what one retires is retired for all."""

    @pytest.mark.parametrize("seed", range(3))
    def test_all_keep_the_same_items_and_count_them_exactly(self, server, seed):
        """Ada's limit is the lower one: it counts for both."""
        ada, ben = Trainer(server, P0, learner=Learner(small(max_items=12))), Trainer(server, P1)
        for trainer in (ada, ben):
            trainer.start()
        totals: Counter[str] = Counter()
        births: dict[int, int] = {}
        rng, retired = np.random.default_rng(seed), 0
        for k in range(30):
            before = Counter(totals)
            for trainer, partition in ((ben, P1), (ada, P0)):
                events = [(f"u{u}", f"i{(i + 2 * k) % 40}") for u, i in rng.integers(0, 9, (8, 2))]
                trainer.learn_batch(batch_of({partition: (8 * k, events)}))
                totals.update(item for _, item in events)
            settle(ada, ben)
            found = stored(server)
            assert found is not None
            assert known_counts(ada) == known_counts(ben) == (found.counts, found.drawn)
            assert set(found.live) == set(ada.learner.state.items.ids) == set(ben.learner.state.items.ids)
            rows = {found.ids[row]: row for row in range(len(found.ids)) if row not in found.retired}
            for item, row in rows.items():
                if row in births:
                    assert found.counts[item] == totals[item] - births[row]
                births.setdefault(row, before[item] if found.counts[item] == totals[item] - before[item] else -1)
            births = {row: birth for row, birth in births.items() if birth >= 0}
            retired = len(found.retired)
        assert retired > 20
        assert ada.learner.eviction.evicted["items", "limit"] > 20
        assert ben.learner.eviction.evicted["items", "shared"] > 20
        assert not ben.learner.eviction.evicted["items", "limit"]

    def test_an_item_that_was_deleted_is_gone_for_all(self, server):
        ada, ben = Trainer(server, P0).start(), Trainer(server, P1).start()
        ada.train(40), ben.train(40)
        settle(ada, ben)
        item = next(raw for _, raw in STREAMS[P1][40:56] if ada.learner.state.items.row_of(raw) is not None)
        ben.train(16)
        ada.learner.eviction.retire_items([item])
        ada.exchange()
        late = Counter(i for _, i in STREAMS[P1][40:56])[item]
        settle(ben, ada)
        for trainer in (ada, ben):
            assert trainer.learner.state.items.row_of(item) is None
            assert item not in known_counts(trainer)[0]
        assert known_counts(ada) == known_counts(ben)
        assert ben.sharing.status().retired_events == late > 0

    def test_numbers_of_retired_items_are_used_again(self, server, monkeypatch):
        monkeypatch.setattr("streamer.sharing.sharing.FIRST_NUMBERS", 16)
        ada, ben = (Trainer(server, p, learner=Learner(small(max_items=20))) for p in (P0, P1))
        for trainer in (ada, ben):
            trainer.store.state.outbox._keep_s = 0.0
            trainer.start()
        for k in range(60):
            for trainer, partition in ((ada, P0), (ben, P1)):
                events = [(f"u{n}", f"{partition}-{8 * k + n}") for n in range(8)]
                trainer.learn_batch(batch_of({partition: (8 * k, events)}))
                trainer.store.now_s += 1.0
            settle(ada, ben)
        found = stored(server)
        assert found is not None
        assert known_counts(ada) == known_counts(ben) == (found.counts, found.drawn)
        for trainer in (ada, ben):
            assert len(trainer.learner.state.items) <= 20 + 2 * 8
            assert len(trainer.sharing._numbers) < 200, "of 960 items"

    def test_a_restart_goes_on_with_what_is_kept(self, server):
        ada = Trainer(server, P0, learner=Learner(small(max_items=12))).start()
        for k in range(12):
            ada.learn_batch(batch_of({P0: (8 * k, [(f"u{n}", f"i{n + 5 * k}") for n in range(8)])}))
            ada.exchange()
        arrays, values = ada.sharing.save()
        learner = Learner(small(max_items=12))
        learner.state.restore(ada.learner.state.chunks(), *ada.learner.state.dense())
        again = Trainer(server, P0, learner=learner)
        again.sharing.restore(arrays, values, {P0: 96})
        again.start()
        assert popularity_counts(again.learner) == popularity_counts(ada.learner)
