"""Trainer and server as processes, killed with SIGKILL."""

from __future__ import annotations

import contextlib
import copy
import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from commands import Command, signal_at
from line_harness import NOON_MS, TOPIC, events, values_of
from serve_harness import wait_until
from servers.process import free_ports

from streamer.errors import CheckpointError
from streamer.event import encode
from streamer.learner import OnlineLearner
from streamer.recommender import Recommender
from streamer.sources.embedded.log import EmbeddedLog

pytestmark = pytest.mark.slow

CATALOGUE = ("--catalogue-topic", "items", "--item-feature", "brand", "--item-attribute", "shelf")
MODEL = ("--dim", 8, "--set", "co_occurring_items=16", "--batch-size", 64, "--max-age", 0.2, "--publish-every", 0.1)
USERS = [f"u{n}" for n in range(20)]


class Served:
    """A stream, and a port that servers answer on."""

    def __init__(self, directory: Path) -> None:
        self.directory, (self.port,) = directory, free_ports(1)
        self.log, self.written = EmbeddedLog(directory), 0
        self.log.create_topic(TOPIC, 2)
        self.log.create_topic("items", 2)

    def write(self, count: int) -> None:
        """Append events."""
        stream = events(count, seed=self.written, users=20, items=80)
        records = [(user.encode(), value, 0) for (user, _), value in zip(stream, values_of(stream), strict=True)]
        self.log.append(TOPIC, records)
        self.written += count

    def describe_items(self, first: int, last: int) -> None:
        """Append catalogue events of items `n<first>` on; every third is deleted again."""
        for number in range(first, last):
            item = f"n{number}"
            value = encode(
                None, item, item_features={"brand": f"b{number % 5}", "shelf": number / 2}, title=f"Number {number}"
            )
            self.log.append("items", [(item.encode(), value, NOON_MS)])
            if number % 3 == 0:
                self.log.append("items", [(item.encode(), encode(None, item, deleted=True), NOON_MS)])

    def trainer(self, prelude: str = "") -> Command:
        """`streamer run`."""
        where = ("--data-dir", self.directory, "--publish-dir", self.directory / "points", "--checkpoint-every", 0.5)
        return Command(
            ["run", "--log-format", "plain", *where, *MODEL, *CATALOGUE], self.directory / "run.log", prelude
        )

    def server(self, *source: Any) -> Command:
        """`streamer serve`, from what is published unless another source is given."""
        source = source or ("--from", self.directory / "points")
        where = ("--data-dir", self.directory, "--port", self.port, "--catalogue-topic", "items")
        return Command(["serve", *source, *where], self.directory / f"serve-{self.port}.log")

    def another(self) -> Served:
        """The same, for a server on another port."""
        other = copy.copy(self)
        (other.port,) = free_ports(1)
        return other

    def ask(self, path: str, method: str = "GET") -> Any:
        """An answer; None while there is none."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())
        return None

    def caught_up(self) -> bool:
        """Whether every event that was written is learned and served."""
        status = self.ask("status") or {}
        if not status.get("ready"):
            return False
        try:
            known = OnlineLearner.load(self.directory / "checkpoints")
        except CheckpointError:  # a trainer that is killed early has saved none
            return False
        return known.state.item_counts.total == self.written and known.state.trainer.steps == status["step"]


@pytest.fixture
def served(tmp_path) -> Served:
    return Served(tmp_path)


def assert_equal(served: Served) -> None:
    learner = OnlineLearner.load(served.directory / "checkpoints")
    recommender = Recommender(learner)
    for user in USERS:
        wanted = recommender.recommend([recommender.user(user)], 10, exclude_seen=True)[0]
        answer = served.ask(f"users/{user}/recommendations")
        assert [found["item"] for found in answer["items"]] == [best.item for best in wanted]
        assert answer["step"] == learner.state.trainer.steps


def test_both_may_be_killed_at_any_time_and_what_is_served_is_what_is_learned(served):
    served.write(600)
    with served.trainer() as trainer, served.server() as server:
        wait_until(served.caught_up, "learning")
        assert served.ask("status")["generation"] == 1
        hidden = served.ask("users/u1/recommendations")["items"][0]["item"]
        served.describe_items(0, 9)
        served.ask(f"hidden/{hidden}", "PUT")
        wait_until(lambda: served.ask("hidden") == {"hidden": [hidden]}, "hiding")
        # 1. the trainer is killed: the server goes on, older and older, and knows what happens meanwhile
        trainer.kill()
        age_s = served.ask("users/u1/recommendations")["age_s"]
        served.write(100)
        wait_until(lambda: served.ask("status")["events_not_learned"] == 100, "reading")
        assert served.ask("users/u1/recommendations")["age_s"] > age_s
        assert served.ask("readyz") == {"ok": True, "reason": ""}
        # 2. the server is killed in the middle of what it does
        server.kill()
    other = served.another()
    with served.trainer(), served.server(), other.server():
        for one in (served, other):
            wait_until(one.caught_up, "learning again")
            assert one.ask("status")["generation"] == 2
            assert one.ask("hidden") == {"hidden": [hidden]}
            assert_equal(one)
            answer = one.ask("users/u1/recommendations?filter=shelf%3C3&filter=brand:b2")
            assert [found["item"] for found in answer["items"]] == ["n2"]
        served.ask(f"hidden/{hidden}", "DELETE")
        for one in (served, other):
            wait_until(lambda one=one: one.ask("hidden") == {"hidden": []}, "showing again")
        served.write(200)
        wait_until(served.caught_up, "learning on")
        assert_equal(served)


def test_a_server_follows_the_checkpoints_of_a_running_trainer_also_after_a_kill(served):
    served.write(300)
    with served.server("--checkpoint-dir", served.directory / "checkpoints"):
        for generation in (1, 2):
            with served.trainer() as trainer:
                served.write(200)
                wait_until(served.caught_up, "learning")
                assert_equal(served)
                assert served.ask("status")["generation"] == generation
                trainer.kill()
        assert served.ask("users/u1/recommendations")["items"]


def test_a_trainer_killed_at_any_moment_loses_nothing_of_the_catalogue_and_applies_it_in_order(served):
    served.write(300)
    moments = (("streamer.model.trainer:Trainer:step", 3), ("pathlib:Path:rename", 3), ("os:fsync", 9))
    with served.server():
        for first, (target, nth) in zip(range(0, 90, 30), moments, strict=True):
            served.describe_items(first, first + 30)
            served.write(70)
            with served.trainer(signal_at(target, nth)) as trainer:
                assert trainer.ended()[0] == -signal.SIGKILL
        with served.trainer():
            wait_until(served.caught_up, "learning")
            wanted = {f"n{n}": f"Number {n}" for n in range(90) if n % 3}
            wait_until(lambda: titles(served) == wanted, "the catalogue")
            learner = OnlineLearner.load(served.directory / "checkpoints")
            described = {
                learner.state.items.id_of(row): learner.state.titles.of(row)
                for row in learner.state.cold_items.tolist()
            }
            assert described == wanted
            assert_equal(served)


def titles(served: Served) -> dict[str, str]:
    """Titles in the list of all items."""
    return served.ask("users/u1/recommendations?k=1000&exclude_seen=false")["titles"]
