"""Faults of a server and of what is published to it."""

from __future__ import annotations

import json
import random
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands import Command
from servers.process import free_ports

from faults.scenarios import scenario
from faults.world import STEADY, Trainer, World

PUBLISH = ["--publish-every", "0.1"]


class Server:
    """A server that follows a trainer by a directory; what it answers is the state that is published, no more."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world, self.directory = world, directory
        (self._port,) = free_ports(1)
        self.start()

    def start(self) -> None:
        output = self.world.directory / f"server-{len(self.world.others)}"
        arguments = ["serve", "--from", self.directory, "--port", self._port, "--no-tail"]
        self.run = Command(arguments, output)
        self.world.others.append(self.run)

    def get(self, path: str) -> dict[str, Any]:
        """An answer; empty while there is none."""
        assert self.run.code is None, f"the server ended: {self.run.said()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as response:
                found: dict[str, Any] = json.load(response)
                return found
        except OSError:
            return {}

    @property
    def step(self) -> int:
        return int(self.get("/status").get("step") or 0)

    def follows(self) -> None:
        """Measure the seconds until it serves something newer."""
        began, before = time.monotonic(), self.step
        self.world.until(lambda: self.step > before, "the server goes on")
        self.world.outcome.seconds = max(self.world.outcome.seconds or 0.0, time.monotonic() - began)


def begin(world: World) -> tuple[Trainer, Server]:
    published = world.directory / "published"
    world.open_stream(events=500)
    trainer = world.trainer("trainer", *STEADY, "--publish-dir", published, *PUBLISH)
    trainer.start()
    trainer.trains()
    return trainer, Server(world, published)


def settle(world: World, trainer: Trainer, server: Server) -> None:
    """The rest is trained; the server must say what `streamer recommend` says from the last checkpoint."""
    trainer.leave()
    trainer.drain()
    world.account()
    steps = trainer.inspect()["steps"]
    world.until(lambda: server.step == steps, f"the server serves step {steps}")
    users = [f"u{number}" for number in range(0, 50, 5)]
    asked = [part for user in users for part in ("--user", user)]
    found = world.json("recommend", "--checkpoint-dir", trainer.directory, "-k", "10", "--exclude-seen", *asked)
    expected = [answer["items"] for answer in found["recommendations"]]
    answers = [server.get(f"/users/{user}/recommendations?k=10")["items"] for user in users]
    world.outcome.equal = answers == expected
    if not world.outcome.equal:
        world.outcome.problems.append("the server does not answer as the trainer's checkpoint does")


def lose(deltas: list[Path], rng: random.Random) -> None:
    rng.choice(deltas[:-1]).unlink()


def damage(deltas: list[Path], rng: random.Random) -> None:
    path = rng.choice(deltas)
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def double(deltas: list[Path], rng: random.Random) -> None:
    deltas[1].write_bytes(deltas[0].read_bytes())


def swap(deltas: list[Path], rng: random.Random) -> None:
    first, second = deltas[0].read_bytes(), deltas[1].read_bytes()
    deltas[0].write_bytes(second)
    deltas[1].write_bytes(first)


SPOILERS: list[Callable[[list[Path], random.Random], None]] = [lose, damage, double, swap]


@scenario("server: deltas lost, damaged, doubled, out of order, each twice")
def deltas_spoiled(world: World, rng: random.Random) -> None:
    trainer, server = begin(world)
    with world.stream.flowing():
        server.follows()
        for spoil in rng.sample(SPOILERS * 2, 2 * len(SPOILERS)):
            server.run.signal(signal.SIGSTOP)  # so that it has not read them yet
            before = set(server.directory.glob("*.delta"))
            world.until(lambda old=before: len(new_deltas(server, old)) >= 4, "deltas are published")  # type: ignore[misc]
            spoil(new_deltas(server, before)[:3], rng)
            server.run.signal(signal.SIGCONT)
            server.follows()
    world.outcome.note = "it asks for a base, of which there is one in 10 s at most"
    settle(world, trainer, server)


def new_deltas(server: Server, before: set[Path]) -> list[Path]:
    return sorted(set(server.directory.glob("*.delta")) - before)


@scenario("server: killed 3 times, its trainer once")
def server_killed(world: World, rng: random.Random) -> None:
    trainer, server = begin(world)
    with world.stream.flowing():
        for number in range(3):
            server.follows()
            server.run.kill()
            if number == 1:
                trainer.run.kill()
                trainer.restart()
            server.start()
        server.follows()
    settle(world, trainer, server)
