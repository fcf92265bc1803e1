"""Faults of several trainers: of a consumer group, of what they share in Redis, and of a group in lockstep."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import redis as client
from servers.process import free_ports
from servers.redis import LocalRedis

from faults.broker import Proxy
from faults.one_trainer import JUMPS_S
from faults.scenarios import Function, scenario
from faults.world import BRISK, SESSION_S, STEADY, JumpingClock, Trainer, World

PATIENT = ["--kafka", "session_timeout_ms=60000"]
"""With these a trainer that is away for a moment keeps its partitions, however busy the machine is."""

# a consumer group without Redis ---------------------------------------------------------------------------------------


def company(world: World, count: int = 2, users: int | None = 50, *options: str) -> list[Trainer]:
    """Trainers of one group, all of which train."""
    world.open_stream(4, events=400, users=users)
    trainers = [world.trainer(f"trainer-{k}", *BRISK, *options) for k in range(count)]
    for trainer in trainers:
        trainer.start()
    with world.stream.flowing():
        for trainer in trainers:
            trainer.trains()
    return trainers


def moves(world: World) -> None:
    """Measure the seconds until the group has saved more of every partition."""
    began, before = time.monotonic(), world.stream.committed(world.group)

    def moved() -> bool:
        now = world.stream.committed(world.group)
        return all(now.get(partition, 0) > offset for partition, offset in before.items())

    world.until(moved, f"all partitions are trained on from {before}")
    world.outcome.seconds = max(world.outcome.seconds or 0.0, time.monotonic() - began)


def unsaved(world: World, victim: Trainer, committed: dict[int, int] | None = None) -> int:
    """Events that a trainer has saved and not committed: its successor may train them again."""
    committed = committed or world.stream.committed(world.group)
    saved = {entry["partition"]: entry["offset"] for entry in victim.inspect()["positions"]}
    return sum(max(0, offset - committed.get(partition, 0)) for partition, offset in saved.items())


def settle(world: World) -> None:
    """All is trained, everybody leaves, and every event is accounted for."""
    world.all_is_committed()
    for trainer in world.trainers:
        if trainer.run.code is None:
            trainer.leave()
    world.account()


@scenario("group of two, one killed for good", short=True)
def killed_for_good(world: World, rng: random.Random) -> None:
    victim, _ = company(world)
    with world.stream.flowing():
        victim.trains(rng.randrange(1, 300))
        victim.run.kill()
        world.outcome.may_double = unsaved(world, victim)
        moves(world)
    settle(world)


@scenario("group of two, one killed and back within its session, 3 times")
def killed_and_back(world: World, rng: random.Random) -> None:
    victim, _ = company(world, 2, 50, *PATIENT)
    with world.stream.flowing():
        for _ in range(3):
            victim.trains(rng.randrange(1, 300))
            victim.run.kill()
            victim.restart()
    settle(world)


def stop_for(world: World, victim: Trainer, seconds: float) -> None:
    """SIGSTOP for a while; if others take its partitions, see that it trains no more of them."""
    heard = len(victim.run.said())
    victim.run.signal(signal.SIGSTOP)
    ends = world.stream.ends()
    committed = world.stream.committed(world.group)
    time.sleep(seconds)  # the fault itself
    if seconds > SESSION_S:
        moves(world)
    victim.run.signal(signal.SIGCONT)
    moves(world)
    if seconds > SESSION_S:
        check_trained(world, victim, heard, ends, committed)
    back(world, victim)


def member_stopped_for(seconds: float) -> Function:
    def stop(world: World, rng: random.Random) -> None:
        victim, _ = company(world, 2, 50, *([] if seconds > SESSION_S else PATIENT))
        with world.stream.flowing():
            for _ in range(2):
                victim.trains(rng.randrange(1, 300))
                stop_for(world, victim, seconds)
        settle(world)

    return stop


def lost(trainer: Trainer, heard: int) -> dict[int, int]:
    """The partitions that a trainer says it has lost, and how far it has trained each; `heard`: what it said before."""
    said = trainer.run.said()[heard:]
    found = re.findall(r"Lost partitions: (.*?)\. Others", said)
    return {
        int(number): int(offset.replace(",", ""))
        for line in found
        for number, offset in re.findall(r"\[(\d+)\] \(trained up to offset ([\d,]+)\)", line)
    }


def check_trained(world: World, victim: Trainer, heard: int, ends: dict[int, int], committed: dict[int, int]) -> None:
    """What a stopped trainer had trained and not committed is in its memory, and its successor trains it again; but
    nothing is trained that came after the stop.
    """
    world.until(lambda: lost(victim, heard), "it has noticed that its partitions are others'")
    trained = lost(victim, heard)
    world.outcome.may_double += sum(offset - committed.get(p, 0) for p, offset in trained.items())
    beyond = {p: offset for p, offset in trained.items() if offset > ends[p]}
    if beyond:
        world.outcome.problems.append(f"{beyond} was trained after a stop, when the partitions ended at {ends}")


def back(world: World, trainer: Trainer) -> None:
    """It goes on by itself."""
    world.until(lambda: trainer.alive() and trainer.metric("streamer_partitions"), "it has partitions")


scenario("group of two, one stopped for less than its session, twice", "member_stop_shorter")(
    member_stopped_for(SESSION_S / 2)
)
scenario("group of two, one stopped for longer than its session, twice", "member_stop_longer", short=True)(
    member_stopped_for(SESSION_S * 1.5)
)


@scenario("members come and go by SIGTERM every few seconds, 8 times")
def coming_and_going(world: World, rng: random.Random) -> None:
    trainers = company(world, 3)
    with world.stream.flowing():
        for _ in range(8):
            trainer = rng.choice(trainers)
            if trainer.run.code is None:
                trainer.leave()
            else:
                trainer.start()
            time.sleep(rng.uniform(0.5, 2))
        for trainer in trainers:
            if trainer.run.code is not None:
                trainer.start()
        moves(world)
    settle(world)


# what is shared -------------------------------------------------------------------------------------------------------


def sharing(world: World, *options: str) -> list[Trainer]:
    """Two trainers that share counts; every event has a user of its own."""
    if world.redis is None:
        world.open_redis()
    return company(world, 2, None, *options)


@scenario("shared counts: trainers killed, stopped and asked to leave at random, 6 times", short=True)
def sharing_disturbed(world: World, rng: random.Random) -> None:
    """Sometimes one is back before anybody has missed it, sometimes its partitions have gone to the others."""
    trainers = sharing(world)
    with world.stream.flowing():
        for what in rng.sample(["kill", "stop", "leave"] * 2, 6):
            victim = rng.choice(trainers)
            victim.trains(rng.randrange(1, 300))
            away_s = rng.choice([0.0, SESSION_S * 1.5])
            if what == "stop":
                stop_for(world, victim, SESSION_S * 1.5)
                continue
            if what == "leave":
                victim.leave()
            else:
                victim.run.kill()
                world.outcome.may_double += unsaved(world, victim)
            time.sleep(away_s)  # the fault itself
            victim.start()
            moves(world)
    settle(world)


@scenario("shared counts: more items than --max-items keeps, a trainer killed", short=True)
def sharing_with_limits(world: World, rng: random.Random) -> None:
    """Items go and come back all the while; what is counted of those that are kept is right."""
    world.keeps_all_items = False
    victim, other = sharing(world, "--max-items", "60", *PATIENT)
    with world.stream.flowing():
        victim.trains(rng.randrange(200, 400))
        victim.run.kill()
        victim.restart()
        other.trains(200)
    settle(world)


def moved_without_redis(how: str) -> Function:
    """Nothing is committed that Redis does not have, so the next owner learns and counts it again."""

    def run(world: World, rng: random.Random) -> None:
        redis = world.open_redis()
        victim, other = sharing(world)
        with world.stream.flowing():
            redis.pause()
            victim.trains(rng.randrange(100, 300))
            if how == "leaves":
                victim.leave()
            else:
                victim.run.kill()
            other.trains(500)
            world.outcome.may_double += unsaved(world, victim)
            redis.resume()
            victim.start()
            moves(world)
        settle(world)

    return run


scenario("shared counts: a trainer is killed while Redis is away", "redis_away_killed", short=True)(
    moved_without_redis("is killed")
)
scenario("shared counts: a trainer leaves while Redis is away", "redis_away_leaves")(moved_without_redis("leaves"))


@scenario("shared counts: SIGKILL after an exchange with Redis, 3 times", short=True)
def sharing_killed_after_exchange(world: World, rng: random.Random) -> None:
    victim, _ = sharing(world, *PATIENT)
    victim.leave()
    with world.stream.flowing():
        for _ in range(3):
            code, _ = victim.start(fault=f"after an exchange:{rng.randrange(4, 30)}:SIGKILL").ended()
            assert code == -signal.SIGKILL, f"it ended with {code}"
        victim.restart()
    settle(world)


@scenario("shared counts: the wall clock of a trainer jumps by a day and by ten years, there and back")
def sharing_clock_jumps(world: World, rng: random.Random) -> None:
    victim, other = sharing(world)
    victim.leave()
    clock = JumpingClock(world)
    victim.start(prelude=clock.prelude)
    with world.stream.flowing():
        for seconds in JUMPS_S:
            victim.trains(rng.randrange(100, 200))
            clock.jump(seconds)
            world.goes_on([victim, other])
    settle(world)


@scenario("shared counts: a copy of a trainer's checkpoint directory is started beside it")
def identity_copied(world: World, rng: random.Random) -> None:
    """Both have the identity of one member: Kafka keeps the later one, and the other must end."""
    first, _ = sharing(world)
    first.leave()
    copy = world.trainer("copy", *BRISK)
    shutil.copytree(first.directory, copy.directory)
    with world.stream.flowing():
        first.restart()
        copy.start()
        world.until(lambda: first.run.code is not None or copy.run.code is not None, "one of the two ends")
        ended, survivor = (first, copy) if first.run.code is not None else (copy, first)
        world.outcome.may_double = ended.inspect()["accounting"]["trained"]
        world.outcome.note = f"{ended.name} ended; twice: what it had trained, of which the other one has no checkpoint"
        if "copy of this checkpoint directory" not in ended.run.said():
            world.outcome.problems.append("the one that ended does not say why")
        survivor.trains(200)
    settle(world)


def redis_disturbed(disturb: str) -> Function:
    """Something happens to Redis while two trainers share; training goes on all the while."""

    def run(world: World, rng: random.Random) -> None:
        redis = world.open_redis()
        trainers = sharing(world)
        with world.stream.flowing():
            for trainer in trainers:
                trainer.trains(rng.randrange(1, 200))
            with redis.client() as admin:
                DISTURBANCES[disturb](world, redis, admin, trainers)
            for trainer in trainers:
                trainer.trains(100)
        settle(world)

    return run


def killed(world: World, redis: LocalRedis, admin: client.Redis, trainers: list[Trainer]) -> None:
    """With everything that it has, for it saves nothing by itself."""
    redis.kill()
    world.goes_on(trainers)
    time.sleep(2)  # the fault itself
    redis.start()


def emptied(world: World, redis: LocalRedis, admin: client.Redis, trainers: list[Trainer]) -> None:
    admin.flushall()
    world.goes_on(trainers)


def rolled_back(world: World, redis: LocalRedis, admin: client.Redis, trainers: list[Trainer]) -> None:
    """Restored from a dump that is some hundred events old."""
    admin.save()
    for trainer in trainers:
        trainer.trains(200)
    redis.kill()
    redis.start()
    world.goes_on(trainers)


def full(world: World, redis: LocalRedis, admin: client.Redis, trainers: list[Trainer]) -> None:
    admin.config_set("maxmemory", 1)
    world.goes_on(trainers)
    for trainer in trainers:
        trainer.trains(300)
    admin.config_set("maxmemory", 0)


def read_only(world: World, redis: LocalRedis, admin: client.Redis, trainers: list[Trainer]) -> None:
    """It has become a replica of a master that does not respond, and then a master again."""
    admin.execute_command("REPLICAOF", "127.0.0.1", free_ports(1)[0])
    world.goes_on(trainers)
    for trainer in trainers:
        trainer.trains(300)
    admin.execute_command("REPLICAOF", "NO", "ONE")


def paused(world: World, redis: LocalRedis, admin: client.Redis, trainers: list[Trainer]) -> None:
    redis.pause()
    world.goes_on(trainers)
    time.sleep(SESSION_S)  # the fault itself
    redis.resume()


DISTURBANCES = {
    "killed and restarted empty": killed,
    "emptied by FLUSHALL": emptied,
    "restored from an old dump": rolled_back,
    "full (OOM)": full,
    "read-only": read_only,
    "stopped for a while (SIGSTOP)": paused,
}
for _disturb, _how in DISTURBANCES.items():
    scenario(f"shared counts: Redis {_disturb}", f"redis_{_how.__name__}")(redis_disturbed(_disturb))


def connection_to_redis(state: str) -> Function:
    def disturb(world: World, rng: random.Random) -> None:
        redis = world.open_redis()
        (port,) = free_ports(1)
        proxy = Proxy(port, redis.port)
        world.redis_url = f"redis://127.0.0.1:{port}/0"
        try:
            trainers = sharing(world)
            with world.stream.flowing():
                proxy.set(state)
                world.goes_on(trainers)
                time.sleep(SESSION_S)  # the fault itself
                proxy.set("open")
                for trainer in trainers:
                    trainer.trains(100)
            settle(world)
        finally:
            proxy.close()

    return disturb


scenario("shared counts: connections to Redis cut", "redis_cut")(connection_to_redis("closed"))
scenario("shared counts: connections to Redis slow", "redis_slow")(connection_to_redis("slow"))
scenario("shared counts: connections to Redis half open", "redis_half_open")(connection_to_redis("silent"))


# a group in lockstep --------------------------------------------------------------------------------------------------


@scenario("lockstep group of two, a trainer killed at random, twice")
def lockstep_killed(world: World, rng: random.Random) -> None:
    world.open_stream(2, events=20_000)
    group = world.trainer("group", *STEADY, "--trainers", "2")
    group.start("--until-end")
    for _ in range(2):
        group.trains(rng.randrange(64, 1_000))
        os.kill(rng.choice(ranks(group)), signal.SIGKILL)
        world.until(lambda: group.trained == 0, "all start again")
        world.goes_on([group], fresh=True)
    code, _ = group.run.ended()
    assert code == 0, f"the group ended with {code}"
    world.account()
    world.compare(group)


def ranks(group: Trainer) -> list[int]:
    """Processes of the trainers that the command has started."""
    found = Path(f"/proc/{group.run.pid}/task/{group.run.pid}/children").read_text().split()
    said = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found}
    return [int(pid) for pid, line in said.items() if b"spawn_main" in line or b"streamer" in line or b"runner" in line]
