"""The services: their file fits its schema, they find each other, and what runs them understands their settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import deployment
import jsonschema
import pytest
import yaml
from kafka import KafkaProducer
from servers.kafka import KAFKA_VERSION, LocalKafka
from servers.process import free_ports

from streamer.cli.main import cli

SERVICES = deployment.services()


def compose_schema() -> dict[str, Any]:
    """The specification's own, which an installed package carries."""
    path = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema: dict[str, Any] = json.loads(path.read_text())
    return schema


def test_it_fits_the_schema_of_compose_files():
    schema = compose_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(deployment.compose(), schema)
    with pytest.raises(jsonschema.ValidationError):  # the schema does look at services
        jsonschema.validate({"services": {"kafka": {"imagine": "apache/kafka"}}}, schema)


def test_the_variant_for_a_gpu_is_another_image_of_the_same_trainer():
    variant = deployment.compose("compose.gpu.yaml")
    jsonschema.validate(variant, compose_schema())
    (trainer,) = variant["services"].values()
    assert trainer["build"]["args"] == {"DEVICE": "gpu"}
    _, *arguments = trainer["command"]
    with cli.get_command(cli.make_context("streamer", ["run"]), "run").make_context("run", arguments) as ctx:
        assert (ctx.params["device"], ctx.params["trainers"]) == ("cuda", None)


def test_there_are_one_replay_one_trainer_of_two_processes_a_server_and_what_they_need():
    assert set(SERVICES) == {"replay", "trainer", "server", "kafka", "prometheus", "grafana"}
    assert deployment.trainers() == ["trainer"]
    assert "--trainers=2" in SERVICES["trainer"]["command"]


@pytest.mark.parametrize("name", deployment.ours())
def test_commands_are_understood_by_streamer(name: str, monkeypatch: pytest.MonkeyPatch):
    own = SERVICES[name].get("environment", {})
    for variable, value in (deployment.image_environment() | own).items():
        if variable.startswith("STREAMER_"):
            monkeypatch.setenv(variable, value)
    command, arguments = cli, SERVICES[name]["command"]
    while hasattr(command, "get_command"):
        found = command.get_command(command.make_context("streamer", list(arguments)), arguments[0])
        assert found is not None, arguments[0]
        command, arguments = found, arguments[1:]
    with command.make_context(name, list(arguments)) as ctx:
        assert ctx.params["bootstrap_servers"] == "kafka:9092"


def test_the_server_follows_the_trainer_and_redis_is_a_variant_that_works_when_uncommented():
    published = SERVICES["trainer"]["environment"]["STREAMER_PUBLISH_TOPIC"]
    assert f"--publish-topic={published}" in SERVICES["server"]["command"]
    text = (deployment.DOCKER / "compose.yaml").read_text()
    variant = re.sub(r"^( *)# (- --|redis:$|  [a-z- ]+:)", r"\1\2", text, flags=re.MULTILINE)
    services = yaml.safe_load(variant)["services"]
    assert services["redis"]["image"].startswith("redis:")
    assert services["trainer"]["command"][-2:] == ["--redis-url=redis://redis:6379/0", "--model=demo"]
    jsonschema.validate(yaml.safe_load(variant), compose_schema())


def test_what_is_waited_for_has_a_health_check():
    for service in SERVICES.values():
        waited = service.get("depends_on", {})
        for name in waited:
            healthy = isinstance(waited, dict) and waited[name]["condition"] == "service_healthy"
            assert not healthy or "healthcheck" in SERVICES[name]
            assert name in SERVICES


def test_volumes_are_declared_and_mounted_files_are_there():
    mounts = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", ())]
    named = {mount for mount in mounts if not mount.startswith(".")}
    assert named == set(deployment.compose()["volumes"])
    assert all((deployment.DOCKER / mount).is_dir() for mount in mounts if mount.startswith("."))


def test_ports_are_open_to_this_machine_only_and_each_once():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_everybody_is_asked_where_they_listen():
    port = deployment.image_environment()["STREAMER_METRICS_PORT"]
    assert deployment.scraped() == [*(f"{name}:{port}" for name in deployment.trainers()), "server:8080"]
    assert SERVICES["server"]["ports"] == ["127.0.0.1:8080:8080"]
    assert all(SERVICES[name]["ports"][0].endswith(f":{port}") for name in deployment.trainers())
    assert SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://kafka:9092"
    text = (deployment.DOCKER / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text()
    (source,) = yaml.safe_load(text)["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert SERVICES["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]


def test_grafana_finds_what_is_mounted():
    mounts = dict(mount.split(":")[:2] for mount in SERVICES["grafana"]["volumes"])
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    text = (deployment.DOCKER / "grafana" / "provisioning" / "dashboards" / "streamer.yml").read_text()
    (provider,) = yaml.safe_load(text)["providers"]
    assert provider["options"]["path"] == mounts["./grafana/dashboards"]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == mounts["./grafana/dashboards"]
    assert (deployment.DOCKER / "grafana" / "dashboards" / home.name).exists()


def test_images_have_versions_and_kafka_the_one_that_is_tested():
    others = {name: service["image"] for name, service in SERVICES.items() if name not in deployment.ours()}
    assert all(re.search(r":v?\d+\.\d+", image) for image in others.values())
    assert others["kafka"] == f"apache/kafka:{KAFKA_VERSION}"


# the broker, with these settings --------------------------------------------------------------------------------------


def properties(environment: dict[str, str]) -> dict[str, str]:
    """Settings of a broker, as the image makes them of its environment."""
    ours = {name: value for name, value in environment.items() if name.startswith("KAFKA_")}
    return {name.removeprefix("KAFKA_").lower().replace("_", "."): value for name, value in ours.items()}


class ComposedKafka(LocalKafka):
    """A broker with the settings of compose.yaml, on ports and in a folder of its own."""

    def __init__(self) -> None:
        super().__init__()
        plain, controller = free_ports(2)
        self.address = f"127.0.0.1:{plain}"
        places = {":9092": f":{plain}", ":9093": f":{controller}", "//:": "//127.0.0.1:", "kafka:": "127.0.0.1:"}
        settings = properties(SERVICES["kafka"]["environment"])
        settings["log.dirs"] = str(self.home / "logs")
        lines = [f"{name}={value}" for name, value in settings.items()]
        for theirs, here in places.items():
            lines = [line.replace(theirs, here) for line in lines]
        self._properties.write_text("\n".join(lines) + "\n")


@pytest.fixture
def broker() -> Iterator[ComposedKafka]:
    with ComposedKafka() as broker:
        yield broker


@pytest.mark.servers
@pytest.mark.slow
def test_a_broker_with_these_settings_starts_and_creates_topics_with_four_partitions(broker: ComposedKafka):
    producer: Any = KafkaProducer(bootstrap_servers=broker.address, max_block_ms=60_000)
    try:
        assert producer.partitions_for("interactions") == {0, 1, 2, 3}
        assert producer.send("interactions", b"{}").get(timeout=60).topic == "interactions"
    finally:
        producer.close()
