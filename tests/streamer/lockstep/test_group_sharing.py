"""Ranks that share through a store are one of its trainers: nothing counts twice, and all ranks stay equal."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from line_harness import popularity_counts

from streamer.cache_store.errors import StoreRefused
from streamer.cache_store.server import MemoryServer
from streamer.cache_store.store import CacheStore
from streamer.errors import SharingError
from streamer.ingest.batcher import MicroBatch, Origin
from streamer.learner import OnlineLearner
from streamer.lockstep.learner import LockstepLearner
from streamer.lockstep.sharing import GroupSharing
from streamer.model.settings import LearnerSettings
from streamer.sharing.sharing import StoreSharing
from streamer.snapshot.chain import with_users
from streamer.sources.base import Partition
from tests.streamer.lockstep.ranks import run_ranks
from tests.streamer.lockstep.test_lockstep_learner import PARTS, differences, own_batch, steps
from tests.streamer.test_sharing import counted

SETTINGS = {"dim": 16, "cache_size": 32, "ranker_events": 16, "hash_slots": 64}


def exchanging(server, name: str = "group") -> CacheStore:
    """A store that exchanges when a test says so, not by itself."""
    return CacheStore(server, name, 1e6)


def with_offsets(batch: MicroBatch, at: dict[Partition, int]) -> MicroBatch:
    for partition, start, stop in batch.origins:
        batch.offsets += range(at.get(partition, 0), at.get(partition, 0) + stop - start)
        batch.positions[partition] = at.get(partition, 0) + stop - start
        at[partition] = at.get(partition, 0) + stop - start
    return batch


def train(size: int, server: MemoryServer, stream, saved=None, other=None) -> list[tuple]:
    """Train steps; `other` contributes beside them. Returns of each rank its learner and what it saved half way."""

    def work(group):
        torch.set_num_threads(1)
        learner = LockstepLearner(LearnerSettings(**SETTINGS), group)
        store = exchanging(server if group.rank == 0 else MemoryServer())
        sharing = GroupSharing(learner, store, group)
        if saved is not None:
            learner.state.restore(saved[0], *saved[1])
            sharing.restore(saved[2], {})
        sharing.start()
        at, kept = dict(saved[3]) if saved is not None else {}, None
        for number, step in enumerate(stream):
            if group.rank == 0:
                if other is not None:
                    other()
                store.exchange()
            sharing.receive()
            batch = with_offsets(own_batch(step, group), at)
            batch.step_events = 1
            for part in sharing.parts(batch):
                sharing.contribute(part, learner.learn_batch(part.batch, counted=part.counted))
            sharing.advance(batch)
            if number == len(stream) // 2:
                sharing.before_save()
                kept = (list(learner.state.chunks()), learner.state.dense(), sharing.save(), dict(at))
        if group.rank == 0:
            store.exchange()
        sharing.receive()
        return learner, kept, sharing.status()

    return run_ranks(size, PARTS, work)


def events_of(stream) -> Counter[str]:
    return Counter(item for step in stream for batch in step.values() for item in batch.items)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_contribute_as_one_trainer_and_all_receive_what_others_add(size):
    server, stream = MemoryServer(), steps()
    learner, store = OnlineLearner(**SETTINGS), exchanging(server, "other")
    other, count = StoreSharing(learner, store), [0]
    other.start()
    other.claim({Partition("elsewhere", 0): 0})

    def learn_elsewhere() -> None:
        other.receive()
        items = [f"e{count[0]}", "i1", "i2"]
        batch = MicroBatch(["x"] * 3, items, [1e6] * 3, offsets=[3 * count[0] + k for k in range(3)])
        batch.origins.append(Origin(Partition("elsewhere", 0), 0, 3))
        count[0] += 1
        batch.positions[Partition("elsewhere", 0)] = 3 * count[0]
        for part in other.parts(batch):
            other.contribute(part, learner.learn_batch(part.batch))
        other.advance(batch)
        store.exchange()

    ranks = train(size, server, stream, other=learn_elsewhere)
    expected = events_of(stream) + Counter({"i1": 8, "i2": 8}) + Counter(f"e{k}" for k in range(8))
    assert counted(server) == expected
    for rank, *_ in ranks:
        assert popularity_counts(rank) == expected
        assert differences(rank, ranks[0][0]) == []
    assert set(ranks[0][0].state.cache.tolist()) <= set(range(ranks[0][0].state.items.size))


def test_after_a_crash_nothing_is_counted_twice_and_ranks_stay_equal():
    server, stream = MemoryServer(), steps()
    ranks = train(2, server, stream)
    whole = counted(server)
    assert whole == events_of(stream)
    # as if all were killed at the end: the steps after the checkpoint come again, and three new ones
    more = [*stream[len(stream) // 2 + 1 :], *steps(3, seed=1)]
    again = train(2, server, more, saved_by_all(ranks))
    assert counted(server) == whole + events_of(more[-3:])
    for learner, _, _ in again:
        assert popularity_counts(learner) == counted(server)
        assert differences(learner, again[0][0]) == []
    repeated = sum(events_of(more[:-3]).values())
    assert sum(status.duplicate_events for *_, status in again) == repeated


def saved_by_all(ranks: list[tuple]) -> tuple:
    """What a checkpoint would hold, without users."""
    chunks, (arrays, values), shared, _ = ranks[0][1]
    dense = with_users(arrays, 0), values
    return (
        [c for c in chunks if c.kind != "users"],
        dense,
        shared,
        {p: n for _, kept, _ in ranks for p, n in kept[3].items()},
    )


def test_a_store_that_refuses_stops_all_ranks_with_its_words():
    class Refusing(MemoryServer):
        def exchange(self, *given):
            raise StoreRefused("not allowed here")

    def work(group):
        store = exchanging(Refusing() if group.rank == 0 else MemoryServer())
        with pytest.raises(SharingError) as raised:
            GroupSharing(OnlineLearner(**SETTINGS), store, group).start()
        return str(raised.value)

    assert run_ranks(2, PARTS, work) == ["not allowed here"] * 2
