"""TLS and passwords to a real broker and a real Redis, and no secret wherever somebody could look for one.

The product is used by its command line only. docs: SECURITY.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from faults.broker import SCRAM_PASSWORD, SCRAM_USER, FaultyKafka
from faults.world import Stream
from faults.world import until as wait_until
from servers.process import free_ports
from servers.redis import LocalRedis, TlsEndpoint

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
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
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: object, **more: str) -> subprocess.Popen[bytes]:
        """`streamer` with its output in a file of this name; it does not outlive the test."""
        with (self.directory / f"{name}.log").open("wb") as log:
            clean = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "streamer", *map(str, arguments)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean | {"PYTHONPATH": str(ROOT)} | self.environment | more,
            )
        self._started.append(process)
        return process

    def said(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


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


def command_lines(process: subprocess.Popen[bytes]) -> str:
    """What `ps` shows."""
    found = ""
    for pid in family(process.pid):
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/cmdline").read_bytes().decode() + Path(f"/proc/{pid}/comm").read_text()
    return found


def until(process: subprocess.Popen[bytes], said: Callable[[], str], done: Callable[[], object], what: str) -> None:
    def happened() -> object:
        assert process.poll() is None, f"it ended with {process.returncode}: {said()}"
        return done()

    wait_until(happened, what)


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
    trainer = place.start("trainer", *run_arguments(stream, "--checkpoint-every", "0.3", *more))

    # 1. it trains everything, shares it, and a server follows
    def trained() -> bool:
        return value_of(page(f"{live}/metrics"), "streamer_events_trained_total") == len(stream.events)

    until(trainer, lambda: place.said("trainer"), trained, "all is trained")
    port = serving.rsplit(":")[-1]
    arguments = ["serve", "--from", "published", "--port", port, "--topic", stream.name]
    server = place.start("server", *arguments)
    until(server, lambda: place.said("server"), lambda: '"ok":true' in page(f"{serving}/readyz", TOKEN), "it serves")
    assert '"items":[{' in page(f"{serving}/users/u7/recommendations?k=3", TOKEN)

    # 2. what one can look at, also when Redis is gone
    assert place.start("inspect", "inspect", "--checkpoint-dir", "saved", "--model", MODEL).wait(120) == 0
    paths = ["/", "/status", "/metrics", "/healthz", "/readyz", "/data.json", "/openapi.json"]
    redis.kill()
    until(trainer, lambda: place.said("trainer"), lambda: '"ok":false' in page(f"{live}/readyz"), "Redis is missed")
    for url, token in ((live, ""), (serving, TOKEN), (serving, "wrong")):
        for path in paths:
            assert_no_secret(page(url + path, token) or "none", f"{path} of {url}")
    for process in (trainer, server):
        assert_no_secret(command_lines(process), "the process list")
    redis.start()  # empty, and without a user: what it says then is logged, too
    for process in (trainer, server):
        process.send_signal(signal.SIGTERM)
        process.wait(120)

    # 3. what they leave behind
    place.start("doctor", "doctor", "--topic", stream.name, "--checkpoint-dir", "saved", *shared).wait(120)
    assert "***" in place.said("doctor")
    for path in place.directory.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [secret for secret in SECRETS if secret.encode() in content], f"a secret is in {path.name}"


def test_counts_that_are_shared_by_tls_and_acl_are_exact(broker: FaultyKafka, place: Place, secured: str) -> None:
    stream = Stream(broker, 1, users=50)
    stream.produce(400)
    place.environment["STREAMER_REDIS_URL"] = secured
    assert place.start("run", *run_arguments(stream, "--until-end", "--model", MODEL)).wait(120) == 0, place.said("run")
    assert place.start("inspect", "inspect", "--model", MODEL, "--json").wait(120) == 0, place.said("inspect")
    assert json.loads(place.said("inspect"))["store"]["events"] == len(stream.events)


def test_a_wrong_scram_password_is_named_and_not_shown(broker: FaultyKafka, place: Place) -> None:
    stream = Stream(broker, 1, users=50)
    run = place.start("run", *run_arguments(stream, "--until-end"), STREAMER_KAFKA_SASL_PASSWORD="wrong-s3cret")
    wait_until(lambda: run.poll() is not None, "it is refused")
    assert run.poll() == 1
    assert "sasl_password" in place.said("run")
    assert "s3cret" not in place.said("run")
    assert "Assigned partitions" not in place.said("run")


def test_a_broker_that_somebody_else_has_signed_is_not_trusted(
    broker: FaultyKafka, place: Place, tmp_path: Path
) -> None:
    stream = Stream(broker, 1, users=50)
    stream.produce(100)
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    other = str(tmp_path / "other.pem")
    run = place.start("run", *run_arguments(stream, "--until-end"), STREAMER_KAFKA_SSL_CAFILE=other)
    wait_until(lambda: run.poll() is not None or "trying again" in place.said("run"), "it refuses")
    assert run.poll() != 0, place.said("run")
    assert "Assigned partitions" not in place.said("run")
    assert not list(tmp_path.glob("saved/ckpt-*"))
