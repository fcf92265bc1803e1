"""TLS and passwords to a real broker and a real Redis, and no secret wherever somebody could look for one.

The product is used by its command line only. docs: SECURITY.md.
"""

from __future__ import annotations

import contextlib
import json
import signal
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from commands import FRESH, Command, until
from faults.broker import SCRAM_PASSWORD, SCRAM_USER, FaultyKafka
from faults.world import Stream
from servers.process import free_ports
from servers.redis import LocalRedis, TlsEndpoint

pytestmark = [pytest.mark.servers, pytest.mark.slow]

REDIS_PASSWORD, TOKEN = "redis-s3cret", "token-s3cret-0123456789"
SECRETS = (SCRAM_PASSWORD, REDIS_PASSWORD, TOKEN)
MODEL = "clicks"
SMALL = ["--dim", "8", "--batch-size", "64", "--cache-size", "64", "--threads", "1", "--max-age", "0.1"]


@pytest.fixture(scope="module")
def broker() -> Iterator[FaultyKafka]:
    server = FaultyKafka()
    try:
        server.start()
        server.add_scram_user()
        yield server
    finally:
        server.delete()


class Place:
    """Where commands run: a directory, and an environment that has the secrets."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory, self.environment = directory, environment
        self._started: list[Command] = []

    def start(self, name: str, *arguments: object, prelude: str = "", **more: str) -> Command:
        """A command that does not outlive the test."""
        env = self.environment | more
        self._started.append(Command(arguments, self.directory / name, prelude, self.directory, **env))
        return self._started[-1]

    def close(self) -> None:
        for command in self._started:
            command.kill()


@pytest.fixture
def place(broker: FaultyKafka, tmp_path: Path) -> Iterator[Place]:
    environment = {
        "STREAMER_BOOTSTRAP_SERVERS": broker.local.secure_bootstrap,
        "STREAMER_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "STREAMER_KAFKA_SSL_CAFILE": str(broker.authority),
        "STREAMER_KAFKA_SASL_MECHANISM": "SCRAM-SHA-256",
        "STREAMER_KAFKA_SASL_USERNAME": SCRAM_USER,
        "STREAMER_KAFKA_SASL_PASSWORD": SCRAM_PASSWORD,
    }
    place = Place(tmp_path, environment)
    yield place
    place.close()


@pytest.fixture
def secured(redis: LocalRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Redis by TLS, with a user that has the rights that docs/sharing.md names, and no others."""
    rights = [f"~{{streamer:{MODEL}}}:*", "~{streamer}:models", "+@all", "-@admin", "-@dangerous"]
    with redis.client() as client:
        client.execute_command("ACL", "SETUSER", "trainer", "on", f">{REDIS_PASSWORD}", *rights)
        client.execute_command("ACL", "SETUSER", "default", "off")
    with TlsEndpoint(redis, tmp_path_factory.mktemp("tls") / "authority.pem") as endpoint:
        where = f"127.0.0.1:{endpoint.port}/0?ssl_ca_certs={endpoint.authority}"
        yield f"rediss://trainer:{REDIS_PASSWORD}@{where}"


def run_arguments(stream: Stream, *more: object) -> list[object]:
    group = f"group-{uuid.uuid4().hex[:8]}"
    return ["run", "--topic", stream.name, "--group-id", group, "--checkpoint-dir", "saved", *SMALL, *more]


def page(url: str, token: str = "") -> str:
    """What a GET returns, whatever its status; nothing while nobody listens."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return str(response.headers) + response.read().decode()
    except urllib.error.HTTPError as error:
        return str(error.headers) + error.read().decode()
    except OSError:
        return ""


def value_of(metrics: str, name: str) -> float:
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(f"{name} "))


def family(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def command_lines(command: Command) -> str:
    """What `ps` shows."""
    found = ""
    for pid in family(command.pid):
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/cmdline").read_bytes().decode() + Path(f"/proc/{pid}/comm").read_text()
    assert "streamer" in found
    return found


def assert_no_secret(text: str, where: str) -> None:
    assert text, f"nothing to look at: {where}"
    for secret in SECRETS:
        assert secret not in text, f"a secret is in {where}"


def test_by_tls_scram_and_acl_it_trains_shares_and_serves_and_shows_no_secret(
    broker: FaultyKafka, place: Place, redis: LocalRedis, secured: str
) -> None:
    stream = Stream(broker, 2, users=50)
    stream.produce(1_000)
    live, serving = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    place.environment |= {"STREAMER_REDIS_URL": secured, "STREAMER_TOKEN": TOKEN}
    shared = ["--model", MODEL, "--set", "share_every=0.1"]
    more = [*shared, "--publish-dir", "published", "--metrics-port", live.rsplit(":")[-1], "--log-format", "json"]
    trainer = place.start("trainer", *run_arguments(stream, "--checkpoint-every", "0.3", *more), prelude=FRESH)

    # 1. it trains everything, shares it, and a server follows
    def trained() -> bool:
        return value_of(page(f"{live}/metrics"), "streamer_events_trained_total") == len(stream.events)

    trainer.wait_until(trained)
    port = serving.rsplit(":")[-1]
    arguments = ["serve", "--from", "published", "--port", port, "--topic", stream.name]
    server = place.start("server", *arguments, prelude=FRESH)
    server.wait_until(lambda: '"ok":true' in page(f"{serving}/readyz", TOKEN))
    assert '"items":[{' in page(f"{serving}/users/u7/recommendations?k=3", TOKEN)

    # 2. what one can look at, also when Redis is gone
    assert place.start("inspect", "inspect", "--checkpoint-dir", "saved", "--json").ended()[0] == 0
    code, report = place.start("store", "store", "inspect", "--model", MODEL, "--json").ended()
    assert (code, json.loads(report)["events"]) == (0, len(stream.events)), "the shared counts are exact"
    paths = ["/", "/status", "/metrics", "/healthz", "/readyz", "/data.json", "/openapi.json"]
    redis.kill()
    trainer.wait_until(lambda: '"ok":false' in page(f"{live}/readyz"))
    for url, token in ((live, ""), (serving, TOKEN), (serving, "wrong")):
        for path in paths:
            assert_no_secret(page(url + path, token) or "none", f"{path} of {url}")
    for process in (trainer, server):
        assert_no_secret(command_lines(process), "the process list")
    redis.start()  # empty, and without a user: what it says then is logged, too
    for process in (trainer, server):
        process.signal(signal.SIGTERM)
        process.ended()

    # 3. what they leave behind
    doctor = place.start("doctor", "doctor", "--topic", stream.name, "--checkpoint-dir", "saved", *shared)
    assert "***" in doctor.ended()[1]
    for path in place.directory.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [secret for secret in SECRETS if secret.encode() in content], f"a secret is in {path.name}"


def test_a_wrong_scram_password_is_named_and_not_shown(broker: FaultyKafka, place: Place) -> None:
    stream = Stream(broker, 1, users=50)
    run = place.start("run", *run_arguments(stream, "--until-end"), STREAMER_KAFKA_SASL_PASSWORD="wrong-s3cret")
    assert run.ended()[0] == 1
    assert "sasl_password" in run.said()
    assert "s3cret" not in run.said()
    assert "Assigned partitions" not in run.said()


def test_a_broker_that_somebody_else_has_signed_is_not_trusted(
    broker: FaultyKafka, place: Place, tmp_path: Path
) -> None:
    stream = Stream(broker, 1, users=50)
    stream.produce(100)
    other = str(tmp_path / "other.pem")
    trustme.CA().cert_pem.write_to_path(other)
    run = place.start("run", *run_arguments(stream, "--until-end"), STREAMER_KAFKA_SSL_CAFILE=other)
    until(lambda: run.code is not None or "trying again" in run.said(), "it refuses")
    assert run.code != 0, run.said()
    assert "Assigned partitions" not in run.said()
    assert not list(tmp_path.glob("saved/ckpt-*"))
