"""A learner among others: what it counts, draws and caches is what all of them do together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.store_trainer import column_totals, dump, load, stored
from line_harness import TOPIC, Event, append, events, memory_log, newest, popularity_counts, small, until, values_of
from memory_source import MemoryLog, MemorySource

from streamer.build import assemble
from streamer.cache_store.change import BEFORE, COUNTS, DRAWN, NOTHING
from streamer.cache_store.errors import StoreUnavailable
from streamer.cache_store.server import MemoryServer
from streamer.cache_store.store import CacheStore
from streamer.dead_letters.base import DeadLetters
from streamer.errors import SharingError
from streamer.event import EventDecoder
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.learner import Learned, OnlineLearner
from streamer.pipeline import Pipeline
from streamer.settings import PipelineSettings
from streamer.sharing import sharing as sharing_module
from streamer.sharing.sharing import Sharing, StoreSharing
from streamer.snapshot import CheckpointStore
from streamer.sources.base import Partition, Position

P0, P1, P2 = (Partition("clicks", number) for number in range(3))
STREAMS = {p: events(4000, seed=p.number, items=60 + 20 * p.number) for p in (P0, P1, P2)}
"""What each partition holds."""


class Network(MemoryServer):
    """A server that several stores of a test share, and that can be out of reach."""

    away = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("name", "ids", "exchange") and self.away:
            raise StoreUnavailable("unreachable", "the server is away")
        return super().__getattribute__(name)


class ByHand(CacheStore):
    """A store that exchanges when the test says so."""

    def __init__(self, server: MemoryServer, name: str = "trainer") -> None:
        super().__init__(server, name, every_s=0.01)

    def start(self) -> None:
        self.try_exchange()

    def flush(self, timeout_s: float) -> bool:
        self.try_exchange()
        return super().flush(0.0)


class Trainer:
    """A learner with its part in what is shared, and partitions that it reads."""

    def __init__(self, server: MemoryServer, name: str, *partitions: Partition, **settings: Any) -> None:
        self.learner = OnlineLearner(small(**settings))
        self.store = ByHand(server, name)
        self.sharing = StoreSharing(self.learner, self.store)
        self.positions = dict.fromkeys(partitions, 0)
        self.drawn: Counter[str] = Counter()

    def start(self) -> Trainer:
        self.sharing.start()
        self.positions = dict(self.sharing.claim(self.positions))
        return self

    def exchange(self) -> None:
        self.store.try_exchange()
        while self.store.shared.waiting_rows:
            self.sharing.receive()
        self.sharing.receive()

    def train(self, count: int = 16) -> list[Learned]:
        """Learn the next events of each of its partitions; nobody else hears of it before an exchange."""
        self.batch = batch_of({p: (int(at), STREAMS[p][at : at + count]) for p, at in self.positions.items()})
        self.positions = {p: at + count for p, at in self.positions.items()}
        return self.learn_batch(self.batch)

    def learn_batch(self, batch: MicroBatch) -> list[Learned]:
        """A batch along the line."""
        self.sharing.receive()
        found = []
        for part in self.sharing.parts(batch):
            learned = self.learner.learn_batch(part.batch, None, part.counted)
            self.sharing.contribute(part, learned)
            if part.counted:
                for row, count in zip(*(column.tolist() for column in learned.drawn), strict=True):
                    self.drawn[self.learner.state.items.id_of(row)] += round(count)
            found.append(learned)
        self.sharing.advance(batch)
        return found

    def view(self) -> tuple[Counter[str], Counter[str]]:
        """Events and draws of each item, as the learner has them; they are the sums of the table's columns."""
        state = self.learner.state
        rows = state.items.used
        counts, drawn = state.item_counts.counts(rows), state.occurrence.values(rows)
        assert np.array_equal(counts, column_totals(self.store.table, COUNTS, rows))
        assert np.array_equal(drawn, column_totals(self.store.table, DRAWN, rows))
        assert state.item_counts.total == counts.sum()
        return +popularity_counts(self.learner), +Counter(dict(zip(state.items.ids, drawn.astype(int), strict=True)))


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


def items_before(positions: dict[Partition, int]) -> Counter[str]:
    return Counter(item for p, stop in positions.items() for _, item in STREAMS[p][:stop])


def settle(*trainers: Trainer) -> None:
    """Everybody hears of everything."""
    for _ in range(3):
        for trainer in trainers:
            trainer.exchange()


def counted(server: MemoryServer) -> Counter[str]:
    """What all counts on the server add up to."""
    found: Counter[str] = Counter()
    for name in server.tops:
        found += stored(server, name) if name.startswith(COUNTS) else Counter()
    return found


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setattr(sharing_module, "CLAIM_S", 0.05)
    return Network()


# together -----------------------------------------------------------------------------------------------------------


def test_all_have_the_sum_of_what_each_has_learned(server: Network) -> None:
    trainers = [Trainer(server, name, p).start() for name, p in (("ada", P0), ("ben", P1), ("cleo", P2))]
    for count in (16, 5, 32):
        for trainer in trainers:
            trainer.train(count)
        trainers[0].exchange()
    settle(*trainers)
    whole = items_before({P0: 53, P1: 53, P2: 53}), sum((t.drawn for t in trainers), Counter[str]())
    assert [trainer.view() for trainer in trainers] == [whole] * 3
    late = Trainer(server, "late").start()
    assert late.view() == whole, "one that comes late has everything before its first step"


def test_own_events_count_at_once_and_others_after_an_exchange(server: Network) -> None:
    ada, ben = Trainer(server, "ada", P0).start(), Trainer(server, "ben", P1).start()
    ada.train()
    assert ada.view()[0] == items_before({P0: 16})
    assert ben.view()[0] == Counter()
    settle(ada, ben)
    assert ben.view()[0] == items_before({P0: 16})


def test_everybody_trains_with_the_cache_that_was_drawn_last(server: Network) -> None:
    ada, ben = Trainer(server, "ada", P0).start(), Trainer(server, "ben", P1).start()
    ada.train(), ben.train()
    settle(ada, ben)
    ben.train()
    drawn = ben.learner.state.items.ids_of(ben.learner.state.cache.tolist())
    ben.exchange(), ada.exchange()
    assert Counter(ada.learner.state.items.ids_of(ada.learner.state.cache.tolist())) == Counter(drawn)
    server.away = True
    ada.train()
    own = ada.learner.state.cache
    ada.store._status.problem = "away"
    ada.store._answered_at = -np.inf
    ada.sharing.receive()
    assert ada.learner.state.cache is own, "without the server it draws its own"


def test_methods_without_a_cache_share_counts(server: Network) -> None:
    ada, ben = (Trainer(server, name, p, method="ssl-pop").start() for name, p in (("ada", P0), ("ben", P1)))
    ada.train(), ben.train()
    settle(ada, ben)
    assert ada.view() == ben.view() == (items_before({P0: 16, P1: 16}), Counter())


def test_with_a_half_life_others_events_age_as_own_ones(server: Network) -> None:
    ada, ben = (Trainer(server, name, p, popularity_half_life=100).start() for name, p in (("ada", P0), ("ben", P1)))
    for _ in range(5):
        ada.train(), ben.train()
        settle(ada, ben)
    assert popularity_counts(ada.learner) == items_before({P0: 80, P1: 80})
    assert ada.learner.state.decayed_popularity.total < 160


def test_what_comes_is_applied_in_pieces(server: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.cache_store.exchange.PIECE_ROWS", 7)
    monkeypatch.setattr("streamer.cache_store.exchange.NEW_ROWS", 7)
    ada, ben = Trainer(server, "ada", P0).start(), Trainer(server, "ben", P1).start()
    ada.train(100)
    ada.exchange()
    ben.store.exchange()
    assert ben.store.shared.waiting_rows > 40
    ben.train(3)  # receives one piece
    assert 0 < sum(ben.learner.state.item_counts.counts(ben.learner.state.items.used)) < 103
    ben.sharing.before_save()
    ben.view()
    assert ben.store.table.version("counts:clicks[0]") == (100, 0), "what was begun is finished before it is saved"
    settle(ada, ben)
    assert ben.view()[0] == ada.view()[0] == items_before({P0: 100, P1: 3})


# the server ---------------------------------------------------------------------------------------------------------


def test_training_goes_on_without_the_server_and_everything_arrives_later(
    server: Network, caplog: pytest.LogCaptureFixture
) -> None:
    ada, ben = Trainer(server, "ada", P0).start(), Trainer(server, "ben", P1).start()
    server.away = True
    for _ in range(5):
        ada.train(), ben.train()
        settle(ada, ben)
    assert ada.view()[0] == items_before({P0: 80})
    assert ada.sharing.status().errors["unreachable"] > 3
    assert caplog.text.count("Training continues without the store: the server is away") == 2, "each says so once"
    assert ada.sharing.status().backlog_events == 80
    ada.sharing.flush()
    assert "80 events are not in the store yet: the server is away" in caplog.text
    server.away = False
    settle(ada, ben)
    assert ada.view() == ben.view() == (items_before({P0: 80, P1: 80}), ada.drawn + ben.drawn)
    assert ada.sharing.status().backlog_events == 0


def test_a_server_that_lost_something_is_given_it_again(server: Network) -> None:
    ada, ben = Trainer(server, "ada", P0).start(), Trainer(server, "ben", P1).start()
    ada.train(), ben.train()
    settle(ada, ben)
    old = dump(server)
    for lose in (server.clear, lambda: load(server, old)):
        ada.train(), ben.train()
        settle(ada, ben)
        lose()
        ada.train()
        settle(ada, ben)
        whole = items_before({p: int(at) for t in (ada, ben) for p, at in t.positions.items()})
        assert counted(server) == whole
        late = Trainer(server, "late").start()
        assert late.view() == ada.view() == ben.view() == (whole, ada.drawn + ben.drawn)


def test_draws_of_a_trainer_that_the_server_has_forgotten_count_no_more(server: Network) -> None:
    ada, ben = Trainer(server, "ada", P0).start(), Trainer(server, "ben", P1).start()
    ada.train(), ben.train()
    settle(ada, ben)
    del server.changes["drawn:ben"]
    ada.exchange()
    assert ada.view() == (items_before({P0: 16, P1: 16}), ada.drawn)
    ben.train()
    settle(ben, ada)
    assert ada.view()[1] == ada.drawn + ben.drawn


def test_two_items_of_one_name_are_noticed_and_one_is_not_shared(
    server: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def poor(utf8: Any, lengths: Any) -> Any:
        return 1 + np.cumsum(lengths, dtype=np.uint64) * 0 + utf8[np.cumsum(lengths) - 1] % 7

    monkeypatch.setattr("streamer.cache_store.table.hash_ids", poor)
    ada, ben = Trainer(server, "ada", P0).start(), Trainer(server, "ben", P1).start()
    ada.train(), ben.train()
    settle(ada, ben)
    assert "Two items have the same 64-bit name" in caplog.text
    assert popularity_counts(ada.learner) >= items_before({P0: 16}), "its own counts are right"


# events that come again, partitions that move -----------------------------------------------------------------------


def test_events_that_are_counted_are_trained_and_not_counted(server: Network, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ada = Trainer(server, "ada", P0).start()
    ada.train(20)
    ada.exchange()
    ben = Trainer(server, "ben", P0).start()
    assert [len(learned.items) for learned in ben.train(16)] == [16]
    assert [len(learned.items) for learned in ben.train(16)] == [4, 12]
    assert ben.sharing.status().duplicate_events == 20
    assert caplog.text.count("clicks[0] is counted up to offset 20") == 1
    settle(ada, ben)
    assert ben.view() == ada.view() == (items_before({P0: 32}), ada.drawn + ben.drawn)


def test_one_that_was_asleep_while_others_took_over_does_no_harm(server: Network) -> None:
    zombie, ben = Trainer(server, "zombie", P0).start(), Trainer(server, "ben", P1).start()
    zombie.train()
    settle(zombie, ben)
    server.away = True
    zombie.train(40)
    server.away = False
    ben.positions = dict(ben.sharing.claim({P0: 16, P1: 0}))
    for _ in range(5):
        ben.train(16)
        ben.exchange()
        zombie.train(16)
        zombie.exchange()
    settle(zombie, ben)
    reached = {P0: max(int(ben.positions[P0]), int(zombie.positions[P0])), P1: int(ben.positions[P1])}
    assert zombie.view()[0] == ben.view()[0] == counted(server) == items_before(reached)


def test_reading_begins_where_the_counts_end(server: Network) -> None:
    ada = Trainer(server, "ada", P0).start()
    ada.train(40)
    ada.exchange()
    ben = Trainer(server, "ben").start()
    assert ben.sharing.claim({P0: 50, P1: 7, P2: 0}) == {P0: 40, P1: 7, P2: 0}
    assert ben.sharing.claim({P0: 30}) == {P0: 30}
    server.away = True
    cleo = Trainer(server, "cleo")
    assert cleo.sharing.claim({P0: 50}) == {P0: 0}, "nobody says what is counted"


def test_what_others_have_trained_and_not_told_us_is_counted_and_not_trained_again(server: Network) -> None:
    ada, ben = Trainer(server, "ada", P0).start(), Trainer(server, "ben").start()
    ada.train(40)
    settle(ada, ben)
    ada.train(20)
    ada.exchange()
    server.away = True
    assert ben.sharing.claim({P0: 60}) == {P0: 40}, "ben knows the counts before that, and nobody tells more"
    ben.positions = {P0: 40}
    assert [len(learned.items) for learned in ben.train(32)] == [12]
    assert ben.batch.learned == 12
    server.away = False
    settle(ben, ada)
    assert ben.view()[0] == ada.view()[0] == counted(server) == items_before({P0: 72})


def test_a_recreated_topic_is_another_entry(server: Network) -> None:
    ada = Trainer(server, "ada").start()
    for topic_id in ("old", "new"):
        ada.positions = dict(ada.sharing.claim({P0: Position(0, topic_id)}))
        ada.train(20)
    ada.exchange()
    assert server.tops.keys() >= {"counts:clicks[0]@old", "counts:clicks[0]@new"}
    assert ada.view()[0] == items_before({P0: 20}) + items_before({P0: 20})


def test_two_trainers_of_one_name_count_right_and_the_later_one_draws(
    server: Network, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Trainer(server, "ada", P0).start(), Trainer(server, "ada", P1).start()
    first.train()
    first.exchange()
    for _ in range(3):
        second.train(), first.train()
        second.exchange(), first.exchange()
    assert caplog.text.count("Another trainer ada was started") == 1
    assert counted(server) == items_before({P0: 64, P1: 48})
    assert stored(server, "drawn:ada") == second.drawn


# a line: commits and checkpoints ------------------------------------------------------------------------------------


@contextmanager
def running(log: MemoryLog, server: MemoryServer, directory: Path) -> Iterator[tuple[Pipeline, ByHand]]:
    settings = PipelineSettings(batch_size=16, max_age_s=None, checkpoint_every_s=None)
    checkpoints = CheckpointStore(directory)
    store = ByHand(server, checkpoints.trainer)
    source = MemorySource(log, TOPIC, trainer=checkpoints.trainer)
    parts = (OnlineLearner(small()), lambda: source, EventDecoder(), DeadLetters(), settings)
    pipeline = assemble(*parts, checkpoints=checkpoints, store=store)
    pipeline.start()
    try:
        yield pipeline, store
    finally:
        pipeline.close()


def alone(log: MemoryLog, directory: Path) -> Pipeline:
    settings = PipelineSettings(batch_size=16, max_age_s=None, checkpoint_every_s=None, until_end=True)
    source = MemorySource(log, TOPIC, trainer="alone")
    parts = (OnlineLearner(small()), lambda: source, EventDecoder(), DeadLetters(), settings)
    return assemble(*parts, checkpoints=CheckpointStore(directory))


def saved(pipeline: Pipeline) -> None:
    pipeline.checkpoint()
    assert pipeline.progress.checkpoints is not None
    pipeline.progress.checkpoints.finish()
    until(lambda: not pipeline.progress.checkpoints.is_saving)  # type: ignore[union-attr]


def test_a_position_is_committed_once_the_store_has_everything_before_it(server: Network, tmp_path: Path) -> None:
    log = memory_log(values_of(STREAMS[P0][:200]), partitions=2)
    with running(log, server, tmp_path) as (pipeline, store):
        until(lambda: pipeline.accounting.consumed >= 96, pipeline.step)
        store.exchange()
        server.away = True
        until(lambda: pipeline.accounting.consumed == 192, pipeline.step)
        saved(pipeline)
        assert sum(log.committed["streamer"].values()) == 96, "saved is not enough"
        server.away = False
        store.exchange()
        pipeline.ingest.commit({})
        assert sum(log.committed["streamer"].values()) == 192


def test_what_the_store_does_not_have_is_read_again_by_whoever_comes_next(server: Network, tmp_path: Path) -> None:
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
    assert counted(server) == items_before({P0: 192})


def test_a_restart_knows_what_it_knew_and_counts_nothing_twice(server: Network, tmp_path: Path) -> None:
    log = memory_log(values_of(STREAMS[P0][:400]))
    ben = Trainer(server, "ben", P1).start()
    for reached in (96, 192, 288):
        with running(log, server, tmp_path) as (pipeline, store):
            until(lambda upto=reached: pipeline.accounting.consumed == upto, pipeline.step)
            saved(pipeline)
            view = popularity_counts(pipeline.learner), store.table.save()
            until(lambda upto=reached: pipeline.accounting.consumed == upto + 32, pipeline.step)
            store.exchange()
            ben.train()
            ben.exchange()
            pipeline.ingest.batch_failed = True  # as if killed: nothing more is saved
        assert newest(tmp_path).meta["sharing"]["entries"] == view[1]
    with running(log, server, tmp_path) as (pipeline, store):
        until(lambda: pipeline.accounting.consumed == 400, pipeline.step)
        store.exchange()
        pipeline.step()
        until(lambda: not store.shared.waiting_rows, pipeline.step)
        assert popularity_counts(pipeline.learner) == items_before({P0: 400, P1: 48})
    assert counted(server) == items_before({P0: 400, P1: 48})
    assert pipeline.status.store.duplicate_events == 32


def test_without_an_earlier_state_it_does_not_begin_without_the_server(server: Network) -> None:
    server.away = True
    sharing = StoreSharing(OnlineLearner(small()), CacheStore(server))
    with pytest.raises(SharingError, match="the server is away"):
        sharing.start()


def test_alone_it_shares_nothing_and_brings_what_it_counted_when_it_shares(server: Network, tmp_path: Path) -> None:
    log = memory_log(values_of(STREAMS[P0][:64]))
    before = alone(log, tmp_path)
    before.run()
    assert newest(tmp_path).meta["sharing"] == {}
    assert before.status.store.kind == "none"
    assert Sharing().acknowledged({P0: 5}) == Sharing().claim({P0: 5}) == {P0: 5}
    drawn = before.learner.state.occurrence.total()
    with running(log, server, tmp_path) as (pipeline, store):
        store.exchange()
        (name,) = [name for name in server.tops if name.startswith(BEFORE)]
        assert stored(server, name) == items_before({P0: 64})
        assert stored(server, store.table.own).total() == drawn
        append(log, values_of(STREAMS[P0][64:96]))
        until(lambda: pipeline.accounting.consumed == 96, pipeline.step)
    assert counted(server) == items_before({P0: 96})
    assert popularity_counts(pipeline.learner) == items_before({P0: 96})


# limits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_with_limits_no_item_is_without_a_count_and_no_count_is_wrong(server: Network, seed: int) -> None:
    """There are more items than a trainer keeps: they go and come back all the time."""
    rng = np.random.default_rng(seed)
    trainers = [Trainer(server, name, p, max_items=40).start() for name, p in (("ada", P0), ("ben", P1))]
    for _ in range(60):
        trainer = trainers[rng.integers(2)]
        trainer.train(int(rng.integers(1, 30)))
        if rng.random() < 0.4:
            trainer.exchange()
    settle(*trainers)
    every = items_before({p: int(at) for t in trainers for p, at in t.positions.items()})
    for trainer in trainers:
        trainer.learner.eviction.evict()
        counts, _ = trainer.view()
        state = trainer.learner.state
        assert len(state.items) <= 40
        assert counts <= every
        assert (state.item_counts.counts(state.items.used) > 0).all(), "no item is without a count"
        kept = [raw for raw in counts if all(t.learner.state.items.row_of(raw) is not None for t in trainers)]
        assert kept
    assert counted(server) <= every


def test_an_item_that_one_trainer_deletes_others_keep(server: Network) -> None:
    ada, ben = Trainer(server, "ada", P0).start(), Trainer(server, "ben", P1).start()
    ada.train(60), ben.train(60)
    settle(ada, ben)
    own, others = items_before({P0: 60}), items_before({P1: 60})
    item = next(raw for raw in own if others[raw])
    ada.learner.eviction.retire_items([item])
    assert ada.learner.state.items.row_of(item) is None
    ada.train(1)
    settle(ada, ben)
    assert STREAMS[P0][60][1] != item, "it has not come again"
    assert (ada.view()[0][item], ben.view()[0][item]) == (0, own[item] + others[item])
    assert ada.store.table.version("counts:clicks[1]") > NOTHING
