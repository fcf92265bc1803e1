"""Real trainers that share a model: whatever happens to them and to Redis, each event is counted once."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
from crash_harness import trained_items
from kafka_harness import KafkaHarness
from line_harness import until
from redis_harness import counted
from servers.redis import RedisServer
from shared_harness import IMPATIENT, Company, Member

pytestmark = [pytest.mark.servers, pytest.mark.slow]
ROUNDS = int(os.environ.get("STREAMER_TEST_SHARED_ROUNDS", "6"))
"""How often a random trainer is killed, stopped or asked to leave."""
IN_FLIGHT = 400
"""Events that a trainer may have at hand when it is stopped: `max_queued_events`, and a micro-batch."""


@pytest.fixture
def company(kafka: KafkaHarness, redis_server: RedisServer, tmp_path: Path) -> Iterator[Company]:
    company = Company(kafka, redis_server.url, tmp_path)
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


def end_in_agreement(company: Company, trainers: Sequence[Member]) -> None:
    """Every event is counted once, and whoever goes on from its last checkpoint has just that."""
    company.wait_until_all_is_counted()
    for trainer in trainers:
        trainer.leave()
    expected = trained_items(company.topic.all_values)
    assert counted(company.redis_url, company.model) == expected
    for trainer in trainers:
        assert company.revived(trainer.name) == expected, trainer.name


def test_trainers_that_come_late_and_leave_train_everything_once(company: Company) -> None:
    early = company.start("early")
    with company.writing():
        have_learned([early], 20)
        late = company.start("late")
        have_learned([early, late], 10)
    end_in_agreement(company, [early, late])
    assert company.trained_again() == 0


@pytest.mark.parametrize("seed", [1])
def test_random_members_that_are_killed_stopped_and_asked_to_leave(company: Company, seed: int) -> None:
    """Sometimes one is back before anybody has missed it, sometimes its partitions have gone to the others."""
    rng = random.Random(seed)
    trainers = company.start_all(3, *IMPATIENT)
    stopped: set[Member] = set()
    uncommitted = 0
    with company.writing():
        for _ in range(ROUNDS):
            have_learned(trainers, rng.randrange(1, 8))
            k = rng.randrange(3)
            number = rng.choice([signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
            others = [trainer for trainer in trainers if trainer is not trainers[k]]
            if number == signal.SIGTERM:
                trainers[k].leave()
            elif number == signal.SIGKILL:
                trainers[k].kill()
                uncommitted += company.uncommitted(trainers[k])
            else:
                trainers[k].signal(signal.SIGSTOP)
                uncommitted += company.uncommitted(trainers[k]) + IN_FLIGHT
                stopped.add(trainers[k])
                have_learned(others, rng.randrange(1, 40))
                trainers[k].signal(signal.SIGCONT)
                continue
            if rng.random() < 0.5:
                have_learned(others, 20)
            trainers[k] = company.start(trainers[k].name, *IMPATIENT)
    company.wait_until_all_is_counted()
    for trainer in trainers:
        until(
            lambda t=trainer: t.duplicate_events() == t.uncounted, what="/metrics says what was trained and not counted"
        )
    end_in_agreement(company, trainers)
    again = company.trained_again()
    print(
        f"{again} events trained again of {uncommitted} not committed, {company.trained_uncounted()} not counted again"
    )
    assert company.trained_uncounted() <= again, "whatever was counted before was trained before"
    # a living one that the broker has forgotten for its slowness may have lost something too
    others = [member for member in company.everybody if member not in stopped]
    if not any("Lost partitions" in member.said() for member in others):
        assert again <= uncommitted, "only what was not committed is trained again"


def test_with_limits_no_item_is_without_a_count_and_no_count_is_wrong(company: Company) -> None:
    """There are more items than a trainer keeps: they go and come back all the time."""
    limited = [*IMPATIENT, "--max-items", "60"]
    trainers = company.start_all(2, *limited)
    with company.writing(every_s=0.05):
        have_learned(trainers, 10)
        trainers[0].kill()
        trainers[0] = company.start("trainer-0", *limited)
        have_learned(trainers, 10)
    company.wait_until_all_is_counted()
    for trainer in trainers:
        trainer.leave()
    every = trained_items(company.topic.all_values)
    assert counted(company.redis_url, company.model) <= every
    for trainer in trainers:
        assert company.revived(trainer.name) <= every, trainer.name


@pytest.mark.parametrize("how", ["empty", "old"])
def test_a_redis_that_comes_back_without_something_is_given_it_again(
    company: Company, restartable: RedisServer, how: str
) -> None:
    trainers = company.start_all(3)
    with company.writing():
        have_learned(trainers)
        with redis.Redis.from_url(restartable.url) as client:
            client.save()
        have_learned(trainers, 10)
        restartable.kill()
        restartable.restart(empty=how == "empty")
        have_learned(trainers, 20)
    end_in_agreement(company, trainers)


@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_partitions_that_move_while_redis_is_away_are_counted_once(
    company: Company, restartable: RedisServer, how: str
) -> None:
    """Nothing is committed that Redis does not have, so the next owner learns and counts it again."""
    trainers = company.start_all(2, *IMPATIENT)
    with company.writing():
        have_learned(trainers)
        with redis.Redis.from_url(restartable.url) as client:
            client.client_pause(60_000, all=False)  # nothing is written from here on
            client.save()
        restartable.stop()
        until(lambda: "Training continues without the store" in trainers[0].said(), what="it says so")
        have_learned(trainers, 10)
        trainers[1].leave() if how == "leaves" else trainers[1].kill()
        have_learned(trainers[:1], 30)
        restartable.restart()
        trainers[1] = company.start("trainer-1", *IMPATIENT)
        have_learned(trainers, 10)
    end_in_agreement(company, trainers)


def test_without_redis_nobody_begins_who_has_no_checkpoint(company: Company, restartable: RedisServer) -> None:
    restartable.stop()
    trainer = company.start("trainer")
    assert trainer.ended()[0] == 1
    assert "cannot be reached" in trainer.said()
