"""Real trainers that share a model: whatever happens to them, each event is counted once, and each draw with it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
from contracts.store_trainer import Stored, stored
from crash_harness import trained_items
from kafka_harness import KafkaHarness
from line_harness import until
from servers.redis import RedisServer
from shared_harness import IMPATIENT, Company, Member, Members, summed

from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer as StoreServer
from streamer.cache_store.store import CacheStore

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    members = Members(tmp_path_factory.mktemp("members"))
    yield members
    members.close()


@pytest.fixture
def company(kafka: KafkaHarness, redis_server: RedisServer, members: Members, tmp_path: Path) -> Iterator[Company]:
    company = Company(kafka, redis_server.url, members, tmp_path)
    yield company
    company.close()


@pytest.fixture
def restartable(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis that may be killed; it runs again after the test."""
    if not redis_server.can_restart:
        pytest.skip("this Redis is not ours to kill")
    yield redis_server
    redis_server.restart(empty=True)


def have_learned(trainers: Sequence[Member], batches: int = 3) -> None:
    """Wait until each has learned some more."""
    wanted = {trainer: trainer.batches + batches for trainer in trainers}

    def done() -> bool:
        for trainer in trainers:
            assert trainer.code is None, f"{trainer.name} has ended: {trainer.said()}"
        return all(trainer.batches >= count for trainer, count in wanted.items())

    until(done, what="all of them learn")


def assert_all_agree(company: Company, found: Stored, trainers: Sequence[Member]) -> None:
    """Each event of the topic counts once, and whoever goes on from its last checkpoint has just that."""
    company.assert_every_event_is_counted_once(found)
    for trainer in trainers:
        assert company.revived(trainer.name) == (found.counts, found.drawn), trainer.name


def end_in_agreement(company: Company, trainers: Sequence[Member]) -> None:
    """Everything is counted, all leave, and they agree on it; what was resampled belongs to the events that count."""
    found = company.wait_until_all_is_counted()
    for trainer in trainers:
        trainer.leave()
    company.assert_draws_belong_to_the_events(found)
    assert_all_agree(company, found, trainers)


# undisturbed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
def test_trainers_end_with_the_sum_of_what_each_has_learned(company: Company, count: int) -> None:
    trainers = company.start_all(count)
    with company.writing():
        have_learned(trainers, 10)
    found = company.wait_until_all_is_counted()
    for trainer in trainers:
        trainer.leave()
    assert found.drawn == summed(company.learned(), "drawn")
    company.assert_draws_belong_to_the_events(found)
    assert_all_agree(company, found, trainers)


def test_a_trainer_that_comes_late_begins_with_what_the_others_have(company: Company) -> None:
    early = company.start("early")
    with company.writing():
        have_learned([early], 30)
        late = company.start("late")
        have_learned([late], 3)
        (first,) = late.journal("first")
    found = company.wait_until_all_is_counted()
    for trainer in (early, late):
        trainer.leave()
    assert sum(first["counts"].values()) >= 500
    assert len(first["cache"]) == 64
    assert set(first["cache"]) <= set(summed(list(company.learned()), "drawn"))
    assert_all_agree(company, found, [early, late])


# killed ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "seed"), [(2, 1), (4, 2)])
def test_one_that_is_killed_at_random_moments_and_restarted_changes_nothing(
    company: Company, count: int, seed: int
) -> None:
    """Sometimes it is back before anybody has missed it, sometimes its partitions have gone to the others."""
    rng = random.Random(seed)
    trainers = company.start_all(count, *IMPATIENT)
    with company.writing():
        have_learned(trainers)
        for away_s in (0.0, 2.2, 0.0, 1.6):
            time.sleep(rng.uniform(0, 0.5))
            trainers[0].kill()
            time.sleep(away_s)
            trainers[0] = company.start("trainer-0", *IMPATIENT)
            have_learned([trainers[0]], rng.randrange(1, 8))
    end_in_agreement(company, trainers)


def test_one_that_is_killed_with_much_that_it_sent_to_nobody_changes_nothing(company: Company) -> None:
    """What it has saved and not sent is counted by whoever gets its partitions, or by itself if it is back in time."""
    slowly = [*IMPATIENT, "--set", "share_every=1.0"]
    trainers = company.start_all(2, *slowly)
    with company.writing():
        for away_s in (2.5, 0.0, 2.0):
            have_learned(trainers, 12)
            trainers[0].kill()
            time.sleep(away_s)
            trainers[0] = company.start("trainer-0", *slowly)
    end_in_agreement(company, trainers)


# limits ---------------------------------------------------------------------------------------------------------------


def test_with_limits_all_keep_the_same_items_also_when_one_is_killed(company: Company) -> None:
    """There are more items than a trainer keeps: they go and come back all the time."""
    limited = [*IMPATIENT, "--max-items", "60"]
    trainers = company.start_all(2, *limited)
    with company.writing(every_s=0.05):
        have_learned(trainers, 10)
        for away_s in (0.0, 2.2):
            trainers[0].kill()
            time.sleep(away_s)
            trainers[0] = company.start("trainer-0", *limited)
            have_learned(trainers, 10)
    company.wait_until_all_is_counted()
    for trainer in trainers:
        trainer.leave()
    every = trained_items(company.topic.all_values)
    for trainer in trainers:
        view = company.revived(trainer.name)
        found = stored(company.server)
        assert found is not None
        assert view == (found.counts, found.drawn), trainer.name
        assert found.following == company.reached
        assert found.counts < every
        assert found.counts.keys() == set(found.live)


# Redis ----------------------------------------------------------------------------------------------------------------


def test_a_redis_that_comes_back_empty_is_given_everything_again(company: Company, restartable: RedisServer) -> None:
    trainers = company.start_all(4)
    with company.writing():
        have_learned(trainers)
        for _ in range(2):
            restartable.restart(empty=True)
            have_learned(trainers, 20)
    found = company.wait_until_all_is_counted()
    for trainer in trainers:
        trainer.leave()
    assert any("seeded it" in trainer.said() for trainer in trainers)
    assert found.drawn == summed(company.learned(), "drawn")
    assert_all_agree(company, found, trainers)


def test_a_redis_that_comes_back_with_old_data_is_given_what_it_lost(
    company: Company, restartable: RedisServer
) -> None:
    trainers = company.start_all(2)
    with company.writing():
        have_learned(trainers)
        with redis.Redis.from_url(restartable.url) as client:
            client.save()
        have_learned(trainers, 10)
        restartable.kill()
        restartable.restart()
        have_learned(trainers, 20)
    found = company.wait_until_all_is_counted()
    for trainer in trainers:
        trainer.leave()
    assert found.drawn == summed(company.learned(), "drawn")
    assert_all_agree(company, found, trainers)


def test_without_redis_training_goes_on(company: Company, restartable: RedisServer) -> None:
    trainers = company.start_all(2)
    with company.writing():
        have_learned(trainers)
        _stop_with_everything_saved(restartable)
        for trainer in trainers:
            until(lambda t=trainer: "Training continues without the store" in t.said(), what="it says so")
        have_learned(trainers, 30)
        restartable.restart()
        have_learned(trainers, 3)
    found = company.wait_until_all_is_counted()
    for trainer in trainers:
        trainer.leave()
        assert "The store responds again" in trainer.said()
    assert found.drawn == summed(company.learned(), "drawn")
    assert_all_agree(company, found, trainers)


@pytest.mark.parametrize("how", ["leaves", "is killed"])
@pytest.mark.parametrize("comes_back", [False, True])
def test_partitions_that_move_while_redis_is_away_are_counted_once(
    company: Company, restartable: RedisServer, how: str, comes_back: bool
) -> None:
    """Nothing is committed that Redis does not have, so the next owner learns and contributes it again."""
    trainers = company.start_all(2, *IMPATIENT)
    with company.writing():
        have_learned(trainers)
        _stop_with_everything_saved(restartable)
        have_learned(trainers, 10)
        trainers[1].leave() if how == "leaves" else trainers[1].kill()
        have_learned(trainers[:1], 30)
        if comes_back:  # without Redis, from its checkpoint
            trainers[1] = company.start("trainer-1", *IMPATIENT)
            have_learned(trainers[1:], 5)
        restartable.restart()
        have_learned(trainers if comes_back else trainers[:1], 10)
    found = company.wait_until_all_is_counted()
    for trainer in trainers if comes_back else trainers[:1]:
        trainer.leave()
    assert_all_agree(company, found, trainers)


def test_without_redis_nobody_begins_who_has_no_checkpoint(company: Company, restartable: RedisServer) -> None:
    restartable.stop()
    trainer = company.start("trainer")
    assert trainer.ended() == 1
    assert "cannot be reached" in trainer.said()


def _stop_with_everything_saved(server: RedisServer) -> None:
    """Take it away so that it comes back with all that it has ever confirmed."""
    with redis.Redis.from_url(server.url) as client:
        client.client_pause(60_000, all=False)  # nothing is written from here on
        client.save()
    server.stop()


# zombies --------------------------------------------------------------------------------------------------------------


def test_a_trainer_whose_partition_was_claimed_by_another_stops_and_can_rejoin(company: Company) -> None:
    zombie, other = company.start_all(2, *IMPATIENT)
    with company.writing():
        have_learned([zombie, other])
        taken = next(p for p, owner in sorted(company.owners().items()) if f"-{zombie.pid}-" in owner)
        usurper = CacheStore(StoreServer(company.redis_url, Keys(company.model)), trainer="usurper")
        usurper.start()
        assert usurper.claim({taken: None})
        usurper.close()
        assert zombie.ended() == 1
        assert f"streamer: another trainer has claimed {taken}" in zombie.said()
        assert "start it again to rejoin" in zombie.said()
        zombie = company.start(zombie.name, *IMPATIENT)
        have_learned([zombie, other])
    end_in_agreement(company, [zombie, other])


def test_a_trainer_that_was_frozen_while_others_took_over_counts_nothing_twice(company: Company) -> None:
    """Whether it hears from Kafka or from the store first, is a matter of luck: it rejoins, or stops and says why."""
    zombie, other = company.start_all(2, *IMPATIENT)
    with company.writing():
        have_learned([zombie, other])
        zombie.signal(signal.SIGSTOP)
        until(lambda: len(set(company.owners().values())) == 1, what="the other one has claimed everything")
        have_learned([other], 5)
        zombie.signal(signal.SIGCONT)
        until(lambda: zombie.code is not None or len(set(company.owners().values())) == 2, what="it stops or rejoins")
        if zombie.code is not None:
            assert zombie.code == 1
            assert "another trainer has claimed" in zombie.said()
            zombie = company.start(zombie.name, *IMPATIENT)
        have_learned([zombie, other])
    end_in_agreement(company, [zombie, other])
