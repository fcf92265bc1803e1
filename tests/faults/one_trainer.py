"""Faults of one trainer: its process, its disk, its broker and its topic."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from kafka import TopicPartition

from faults.scenarios import Function, NotPossibleHere, scenario
from faults.world import BRISK, POINTS, SESSION_S, STEADY, JumpingClock, Stream, Trainer, World


def begin(world: World, *options: str, partitions: int = 1) -> Trainer:
    """A trainer that trains."""
    world.open_stream(partitions, events=500)
    trainer = world.trainer("trainer", *(options or STEADY))
    trainer.start()
    trainer.trains()
    return trainer


def settle(world: World, trainer: Trainer, compare: bool = True) -> None:
    """Let it leave if it runs, train the rest, and account."""
    if trainer.run.code is None:
        trainer.leave()
    trainer.drain()
    world.account()
    if compare:
        world.compare(trainer)


# its process ----------------------------------------------------------------------------------------------------------


@scenario("SIGKILL at random moments, 4 times", short=True)
def kill_at_random(world: World, rng: random.Random) -> None:
    trainer = begin(world)
    with world.stream.flowing():
        for _ in range(4):
            trainer.trains(rng.randrange(1, 400))
            time.sleep(rng.uniform(0, 0.3))
            trainer.run.kill()
            trainer.restart()
    settle(world, trainer)


def struck_at(points: Sequence[str], name: str) -> Function:
    """A scenario in which a trainer sends itself a signal at some points, one start after the other."""

    def strike(world: World, rng: random.Random) -> None:
        world.open_stream(events=1_000)
        trainer = world.trainer("trainer", *STEADY)
        wanted = -signal.Signals[name] if name == "SIGKILL" else 0
        for point in points:
            nth = rng.randrange(1, 4)
            code, _ = trainer.start(fault=f"{point}:{nth}:{name}").ended()
            assert code == wanted, f"{name} {point}: it ended with {code}, not {wanted}"
            world.stream.produce(640)
        trainer.restart()
        settle(world, trainer)

    return strike


ALONE = [point for point in POINTS if point != "after an exchange"]
for _point in ALONE:
    _key = f"kill_{_point.replace(' ', '_')}"
    scenario(f"SIGKILL {_point}, twice", _key, _point == "before the rename")(struck_at([_point] * 2, "SIGKILL"))
scenario("SIGTERM at each of these points", "term_at_points")(struck_at(ALONE, "SIGTERM"))


def stopped_for(seconds: float) -> Function:
    def stop(world: World, rng: random.Random) -> None:
        trainer = begin(world)
        with world.stream.flowing():
            for _ in range(2):
                trainer.trains(rng.randrange(1, 300))
                trainer.run.signal(signal.SIGSTOP)
                time.sleep(seconds)  # the fault itself
                trainer.run.signal(signal.SIGCONT)
                world.goes_on([trainer])
        settle(world, trainer)

    return stop


scenario("SIGSTOP for half a session, alone, twice", "stop_shorter")(stopped_for(SESSION_S / 2))
scenario("SIGSTOP for two sessions, alone, twice", "stop_longer")(stopped_for(2 * SESSION_S))


@scenario("a second trainer with the same checkpoint directory")
def same_identity(world: World, rng: random.Random) -> None:
    first = begin(world)
    second = Trainer(world, "trainer", STEADY)
    with world.stream.flowing():
        second.start()
        world.until(lambda: first.run.code is not None or second.run.code is not None, "one of the two ends")
        survivor = first if second.run.code is not None else second
        world.outcome.note = f"the {'second' if survivor is first else 'first'} ended"
        survivor.trains(200)
        survivor.run.kill()
    world.trainers = [survivor]
    settle(world, survivor)


JUMPS_S = (86_400.0, -86_400.0, 3.2e8, -3.2e8, 0.0)
"""Of the wall clock: a day and ten years, there and back."""


@scenario("the wall clock jumps by a day and by ten years, there and back")
def clock_jumps(world: World, rng: random.Random) -> None:
    clock = JumpingClock(world)
    world.open_stream(events=500)
    trainer = world.trainer("trainer", *STEADY)
    trainer.start(prelude=clock.prelude)
    with world.stream.flowing():
        trainer.trains()
        for seconds in JUMPS_S:
            clock.jump(seconds)
            world.goes_on([trainer])
            trainer.trains(rng.randrange(100, 300))
    settle(world, trainer)


# its disk -------------------------------------------------------------------------------------------------------------


@scenario("disk full for a while")
def disk_full(world: World, rng: random.Random) -> None:
    directory = world.directory / "trainer"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        raise NotPossibleHere("a disk of its own needs root")
    try:
        trainer = begin(world)
        with world.stream.flowing():
            ballast = directory / "ballast"
            with ballast.open("wb") as file:
                try:
                    while True:
                        file.write(b"\0" * 65_536)
                        file.flush()
                except OSError:
                    pass
            world.until(lambda: trainer.metric("streamer_checkpoint_writable") == 0, "no checkpoint is written")
            trainer.trains(200)
            ballast.unlink()
            world.goes_on([trainer])
            world.until(lambda: trainer.metric("streamer_checkpoint_writable") == 1, "checkpoints are written again")
            trainer.run.kill()
        settle(world, trainer)
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False)


@scenario("checkpoint directory not writable for a while")
def directory_not_writable(world: World, rng: random.Random) -> None:
    trainer = begin(world)
    with world.stream.flowing():
        aside = world.directory / "aside"
        trainer.directory.rename(aside)
        trainer.directory.touch()  # also root cannot write into a file
        world.until(lambda: trainer.metric("streamer_checkpoint_writable") == 0, "no checkpoint is written")
        trainer.trains(200)
        trainer.directory.unlink()
        aside.rename(trainer.directory)
        world.goes_on([trainer])
        world.until(lambda: trainer.metric("streamer_checkpoint_writable") == 1, "checkpoints are written again")
        trainer.run.kill()
    settle(world, trainer)


def newest_file(trainer: Trainer) -> Path:
    return max(trainer.directory.glob("ckpt-*[ae]"), key=lambda path: path.name)


def damaged_by(how: str) -> Function:
    def damage(world: World, rng: random.Random) -> None:
        trainer = begin(world)
        with world.stream.flowing():
            for _ in range(3):
                world.until(lambda: len(list(trainer.directory.glob("ckpt-*[ae]"))) >= 3, "there are checkpoints")
                trainer.trains(100)
                trainer.run.kill()
                path = newest_file(trainer)
                content = bytearray(path.read_bytes())
                place = rng.randrange(len(content))
                if how == "truncated":
                    del content[place:]
                else:
                    content[place] ^= 1 << rng.randrange(8)
                path.write_bytes(content)
                trainer.restart()
        settle(world, trainer)

    return damage


scenario("SIGKILL, newest checkpoint truncated at a random byte, 3 times", "checkpoint_truncated")(
    damaged_by("truncated")
)
scenario("SIGKILL, a random bit of the newest checkpoint flipped, 3 times", "bit_flipped")(damaged_by("flipped"))


# its broker -----------------------------------------------------------------------------------------------------------


def broker_away_for(seconds: float, *options: str) -> Function:
    def away(world: World, rng: random.Random) -> None:
        trainer = begin(world, *STEADY, *options)
        with world.stream.flowing():
            trainer.trains(rng.randrange(1, 300))
            world.kafka.kill()
            try:
                time.sleep(seconds)  # the fault itself
            finally:
                world.kafka.restart()
            world.goes_on([trainer])
            trainer.trains(200)
        settle(world, trainer)

    return away


scenario("broker killed and restarted at once", "broker_killed", short=True)(broker_away_for(0))
IMPATIENT = [
    *("--kafka", "request_timeout_ms=10000", "--kafka", "delivery_timeout_ms=20000"),
    *("--kafka", "max_poll_interval_ms=30000"),
]
"""With the session (`world.SMALL`) these are all timeouts that are longer than what is tried again at once."""
scenario("broker away for 45 s, longer than every timeout of the client", "broker_away")(
    broker_away_for(45, *IMPATIENT)
)


def connection_to_broker(*states: str) -> Function:
    def disturb(world: World, rng: random.Random) -> None:
        proxy = world.kafka.local.proxy  # type: ignore[attr-defined]
        world.bootstrap = world.kafka.local.proxied_bootstrap  # type: ignore[attr-defined]
        trainer = begin(world)
        try:
            with world.stream.flowing():
                for state in states:
                    trainer.trains(rng.randrange(1, 300))
                    proxy.set(state)
                    time.sleep(2 * SESSION_S if state != "slow" else SESSION_S)  # the fault itself
                    proxy.set("open")
                    world.goes_on([trainer])
                    trainer.trains(200)
        finally:
            proxy.set("open")
        settle(world, trainer)

    return disturb


scenario("connection to the broker cut for two sessions, twice", "broker_cut")(connection_to_broker("closed", "closed"))
scenario("connection to the broker slow for a session, twice", "broker_slow")(connection_to_broker("slow", "slow"))
scenario("connections to the broker half open for two sessions", "broker_half_open")(connection_to_broker("silent"))


# its topic ------------------------------------------------------------------------------------------------------------


@scenario("topic deleted and recreated while the trainer runs", short=True)
def topic_recreated(world: World, rng: random.Random) -> None:
    trainer = begin(world, *BRISK)
    world.stream.produce(400)
    world.all_is_committed()
    old = world.stream
    world.kafka.delete_topic(old.name)
    world.until(lambda: not exists(world, old.name), "the topic is gone")
    time.sleep(2)  # the fault itself: a while without it
    new = Stream(world.kafka, 1, old.users, name=old.name)
    new.continue_after(old)
    new.produce(700)
    world.stream = new
    began = time.monotonic()
    world.until(lambda: trainer.run.code is not None or trainer.metric("streamer_lag_records") == 0, "it reacts")
    if trainer.run.code is not None:
        world.outcome.note = f"the trainer ended with {trainer.run.code}, and was started again"
        if "Traceback" in trainer.run.said():
            world.outcome.problems.append("it ended with a traceback")
        trainer.start()
    world.all_is_committed()
    world.outcome.seconds = time.monotonic() - began
    settle(world, trainer, compare=False)


@scenario("topic deleted for good")
def topic_deleted(world: World, rng: random.Random) -> None:
    trainer = begin(world, *BRISK)
    world.stream.produce(rng.randrange(200, 400))
    world.all_is_committed()
    world.kafka.delete_topic(world.stream.name)
    code, _ = trainer.run.ended()
    world.outcome.note = "the trainer ends, and says why"
    said = trainer.run.said()
    if code != 1 or "was deleted while it was read" not in said or "Traceback" in said:
        world.outcome.problems.append(f"it ended with {code}, or does not say why")
    world.account()


def exists(world: World, topic: str) -> bool:
    with world.kafka.admin() as admin:
        return topic in admin.list_topics()


@scenario("partitions added, from 1 to 3")
def partitions_added(world: World, rng: random.Random) -> None:
    trainer = begin(world, *BRISK)
    world.stream.grow(3)
    with world.stream.flowing():
        began = time.monotonic()

        def all_move() -> bool:
            committed = world.stream.committed(world.group)
            return len(committed) == 3 and all(committed.values())

        world.until(all_move, "all partitions are trained")
        world.outcome.seconds = time.monotonic() - began
    world.all_is_committed()
    settle(world, trainer, compare=False)


@scenario("retention overtakes a trainer that is away", short=True)
def retention_overtakes(world: World, rng: random.Random) -> None:
    trainer = begin(world)
    trainer.leave()
    at = world.stream.committed(world.group)[0]
    world.stream.produce(1_000)
    first = at + rng.randrange(200, 400)
    with world.kafka.admin() as admin:
        admin.delete_records({TopicPartition(world.stream.name, 0): first})
    removed = {event for event, (_, offset) in world.stream.events.items() if at <= offset < first}
    world.stream.bad -= first - at - len(removed)
    world.outcome.may_lose = len(removed)
    world.outcome.note = "what retention removed before it was read; counted by `streamer_lost_records_total`"
    trainer.restart()
    settle(world, trainer, compare=False)
    told = trainer.inspect()["accounting"]["lost"]
    if told != first - at:
        world.outcome.problems.append(f"the trainer reports {told} lost records, not {first - at}")


@scenario("topic truncated to its end while the trainer is stopped")
def topic_truncated(world: World, rng: random.Random) -> None:
    trainer = begin(world, *BRISK)
    world.all_is_committed()
    trainer.run.signal(signal.SIGSTOP)
    (at,) = world.stream.ends().values()
    world.stream.produce(2_000)  # the first of them are sent to the trainer that sleeps
    (end,) = world.stream.ends().values()
    with world.kafka.admin() as admin:
        admin.delete_records({TopicPartition(world.stream.name, 0): -1})
    trainer.run.signal(signal.SIGCONT)
    world.stream.produce(300)
    world.goes_on([trainer])
    world.all_is_committed()
    trainer.leave()
    told = trainer.inspect()["accounting"]["lost"]
    removed = {event for event, (_, offset) in world.stream.events.items() if end - told <= offset < end}
    world.outcome.may_lose = len(removed)
    world.outcome.note = "what was removed before it was read; counted by `streamer_lost_records_total`"
    world.stream.bad -= told - len(removed)
    world.account()
    if not 0 < told <= end - at:
        world.outcome.problems.append(f"the trainer reports {told} lost records of {end - at}")


@scenario("transactions aborted, committed, and left open for a while")
def transactions(world: World, rng: random.Random) -> None:
    trainer = begin(world)
    producer = world.stream.new_producer(transactional_id=f"writer-{world.group}")
    producer.init_transactions()
    for kept in (True, False, True, False):
        producer.begin_transaction()
        world.stream.produce(150, producer, counts=kept)
        producer.flush()
        time.sleep(1)  # the fault itself: open
        if kept:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    world.stream.produce(300)
    world.goes_on([trainer])
    trainer.run.kill()
    settle(world, trainer)


BACKLOG = int(os.environ.get("BACKLOG", "100000"))


@scenario(f"backlog of {BACKLOG:,} events, SIGKILL 4 times")
def backlog(world: World, rng: random.Random) -> None:
    world.open_stream(4)
    for _ in range(0, BACKLOG, 20_000):
        world.stream.produce(20_000)
    options = ["--max-age", "0", "--checkpoint-every-events", "4000", "--batch-size", "256"]
    trainer = world.trainer("trainer", *options, "--set", "max_queued_events=4096")
    for _ in range(4):
        trainer.restart()
        trainer.trains(rng.randrange(4_000, 12_000))
        trainer.run.kill()
    settle(world, trainer, compare=False)
