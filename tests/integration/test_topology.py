"""compose.yaml as plain processes: a real Kafka, Redis and Prometheus, two trainers, one replay, and the right numbers.

Commands, Prometheus' configuration, rules and dashboard are those of docker/; only addresses, folders, how much is
replayed and how often things are looked at or saved are others.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import deployment
import pytest
from commands import Command
from kafka_harness import KafkaHarness
from servers.process import free_ports
from servers.prometheus import PrometheusServer

from streamer.replay.streams import synthetic_stream

pytestmark = [pytest.mark.servers, pytest.mark.slow]

EVENTS, MORE_EVENTS, BAD = 6_000, 2_000, 5
PATIENCE_S = 150.0
"""When to give up on what should happen; no test waits this long unless it fails."""

MAY_BE_EMPTY = {"Dead letters by reason", "Errors of Redis by reason", "Alerts that fire or are about to"}
"""Panels that show trouble only."""
TOKEN = "only-for-this-machine"


class Topology:
    """The services, each a process of this machine; they do not outlive it."""

    def __init__(self, kafka: KafkaHarness, folder: Path) -> None:
        self._kafka, self._folder, self._processes = kafka, folder, ExitStack()
        partitions = int(deployment.services()["kafka"]["environment"]["KAFKA_NUM_PARTITIONS"])
        self.topic = kafka.make_topic(partitions)
        self.partitions = partitions
        *for_trainers, self._server_port = free_ports(2)
        ports = dict(zip(deployment.trainers(), for_trainers, strict=True))
        self._ports = ports
        self.server = f"127.0.0.1:{self._server_port}"
        self._places = {
            "kafka:9092": kafka.server.bootstrap,
            "--topic=interactions": f"--topic={self.topic}",
            "--checkpoint-every=30": "--checkpoint-every=5",
            **{f"{name}:9308": f"127.0.0.1:{port}" for name, port in ports.items()},
            "--publish-topic=points": f"--publish-topic={self.topic}-points",
            "--host=0.0.0.0": "--host=127.0.0.1",
            "--port=8080": f"--port={self._server_port}",
            "server:8080": self.server,
        }
        self._own = {"STREAMER_GROUP_ID": self.topic}
        self.trainers: dict[str, Command] = {}

    def __enter__(self) -> Topology:
        for name in deployment.trainers():
            self.trainers[name] = self._processes.enter_context(self._trainer(name))
        self._processes.enter_context(self._serving())
        self.prometheus = self._processes.enter_context(PrometheusServer(self._prometheus_config()))
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def instance(self, name: str) -> str:
        """What Prometheus calls a trainer."""
        return self._places[f"{name}:9308"]

    @property
    def instances(self) -> set[str]:
        return {self.instance(name) for name in self._ports}

    def replay(self, events: int, *more: str) -> int:
        """Write a stream, quickly; answers how many events were written."""
        changes = {"--events=5000000": f"--events={events}", "--rate=500": "--rate=4000"}
        arguments = self._here(deployment.services()["replay"]["command"], changes)
        with Command([*arguments, *more, "--json"], self._folder / "replay.log") as command:
            code, out = command.ended()
        assert code == 0, command.said()
        return int(json.loads(out)["written"])

    def write_nonsense(self, count: int) -> None:
        self._kafka.append(self.topic, 0, [b"no event"] * count)

    def stop(self, name: str) -> int:
        """SIGTERM, as `docker compose stop` sends it; answers the return code."""
        self.trainers[name].signal(signal.SIGTERM)
        return self.trainers[name].ended()[0]

    def becomes(self, expression: str, wanted: float | dict[str, float], label: str = "instance") -> None:
        """Wait until Prometheus answers an expression with a value, or with values by label."""

        def answer() -> Any:
            return self.prometheus.value(expression) if isinstance(wanted, (int, float)) else self.by(expression, label)

        self._wait(lambda: answer() == wanted, lambda: f"{expression} is {answer()}, not {wanted}")

    def by(self, expression: str, label: str = "instance") -> dict[str, float]:
        return self.prometheus.values(expression, label)

    def _wait(self, done: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, otherwise() + "\n" + self._said()
            time.sleep(0.2)

    def _said(self) -> str:
        return "\n".join(f"{name}: {command.said()[-2000:]}" for name, command in self.trainers.items())

    def _trainer(self, name: str) -> Command:
        environment = {n: v for n, v in deployment.image_environment().items() if n.startswith("STREAMER_")}
        here = {
            "STREAMER_METRICS_HOST": "127.0.0.1",
            "STREAMER_METRICS_PORT": str(self._ports[name]),
            "STREAMER_DATA_DIR": str(self._folder / name),
            "STREAMER_THREADS": "1",
        }
        arguments = self._here(deployment.services()[name]["command"])
        publishing = "STREAMER_PUBLISH_TOPIC" in deployment.services()[name].get("environment", {})
        here |= {"STREAMER_PUBLISH_TOPIC": f"{self.topic}-points"} if publishing else {}
        return Command(arguments, self._folder / f"{name}.log", **environment | here | self._own)

    def _serving(self) -> Command:
        here = {"STREAMER_DATA_DIR": str(self._folder / "server"), "STREAMER_TOKEN": TOKEN}
        return Command(self._here(deployment.services()["server"]["command"]), self._folder / "server.log", **here)

    def ask(self, path: str) -> Any:
        """What the server answers."""
        request = urllib.request.Request(f"http://{self.server}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def _prometheus_config(self) -> Path:
        path = self._folder / "prometheus.yml"
        often = {"scrape_interval: 5s": "scrape_interval: 1s", "evaluation_interval: 15s": "evaluation_interval: 1s"}
        text = deployment.CONFIG.read_text()
        for theirs, here in {**self._places, **often}.items():
            text = text.replace(theirs, here)
        path.write_text(text)
        shutil.copy(deployment.ALERTS, self._folder)
        return path

    def _here(self, arguments: list[str], changes: dict[str, str] | None = None) -> list[str]:
        """A command line with addresses of this machine."""
        for theirs, here in {**self._places, **(changes or {})}.items():
            arguments = [argument.replace(theirs, here) for argument in arguments]
        return arguments


@pytest.fixture(scope="module")
def topology(kafka_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    """A trainer of two processes that has learned all of a stream with a few bad records in it."""
    folder = tmp_path_factory.mktemp("topology")
    with closing(KafkaHarness(kafka_server)) as harness, Topology(harness, folder) as topology:
        topology.becomes("streamer_group_trainers", dict.fromkeys(topology.instances, 2))
        assert topology.replay(EVENTS) == EVENTS
        topology.write_nonsense(BAD)
        topology.becomes("sum(streamer_model_events)", EVENTS + BAD)
        topology.becomes("sum(streamer_lag_records)", 0)
        topology.becomes("count(streamer_checkpoint_size_bytes > 0)", len(topology.instances))
        yield topology


def users(events: int) -> int:
    """How many people there are in the stream."""
    records = (record for chunk in synthetic_stream(events).chunks(0) for record in chunk)
    return len({json.loads(value or b"")["user_id"] for _, value, _ in records})


def test_what_both_processes_took_in_was_trained_filtered_or_put_aside(topology: Topology):
    """Counters of events are those of the group."""
    rest = "streamer_events_filtered_total - on(instance) sum by (instance) (streamer_dead_letters_total)"
    left = topology.by(f"streamer_events_consumed_total - streamer_events_trained_total - {rest}")
    assert left == dict.fromkeys(topology.instances, 0)
    assert topology.prometheus.value("sum(streamer_events_trained_total)") == EVENTS


@pytest.mark.parametrize("metric", ["streamer_cache_slot_share", "streamer_occurrence_share"])
def test_shares_of_the_cache_sum_to_one_at_each_trainer(topology: Topology, metric: str):
    found = topology.by(f"sum by (instance) ({metric})")
    assert found == pytest.approx(dict.fromkeys(topology.instances, 1.0))


def test_trainer_and_server_are_up_and_ready(topology: Topology):
    for metric in ('up{job="streamer"}', "streamer_alive", "streamer_ready", "streamer_store_live"):
        topology.becomes(metric, dict.fromkeys(topology.instances, 1))
    for metric in ('up{job="streamer-server"}', "streamer_server_ready"):
        topology.becomes(metric, {topology.server: 1})
    assert topology.by("count by (method) (streamer_build_info)", "method") == {"xir": 1}


def test_the_server_recommends_what_was_learned(topology: Topology):
    topology.becomes("streamer_server_ready", {topology.server: 1})
    assert topology.ask("/users/nobody/recommendations?k=5")["items"]


def test_every_panel_of_the_dashboard_has_something_to_show(topology: Topology):
    topology.becomes("count(streamer_server_requests_total > 0) > bool 0", 1)
    empty = [
        expression
        for expression in deployment.drawn(rate_interval="5m")
        if expression.where not in MAY_BE_EMPTY
        and "streamer_evicted_age_seconds" not in expression.text  # nothing was evicted here
        and not any(math.isfinite(float(s["value"][1])) for s in topology.prometheus.query(expression.text))
    ]
    assert empty == []


def test_bad_records_show_by_their_reason(topology: Topology):
    (expression,) = [found for found in deployment.drawn("5m") if found.where == "Dead letters by reason"]
    assert topology.by(expression.text, "reason").keys() == {"not_json"}


def test_all_rules_are_evaluated_and_none_fires(topology: Topology):
    rules = topology.prometheus.rules()
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in deployment.alerts()}
    assert {rule["name"]: rule["health"] for rule in rules if rule["health"] != "ok"} == {}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_when_the_trainer_is_stopped_it_ends_well_and_is_missed(topology: Topology):
    """The last of all."""
    (name,) = deployment.trainers()
    assert topology.stop(name) == 0, topology.trainers[name].said()
    topology.becomes("up == 0", {topology.instance(name): 0})
    topology.becomes('ALERTS{alertname="StreamerDown", alertstate="pending"}', {topology.instance(name): 1})
    assert topology.ask("/users/nobody/recommendations?k=5")["items"], "the server goes on"
