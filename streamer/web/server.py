"""An ASGI app on a socket: uvicorn with limits on what a client can hold.

There are at most `max_connections`: a new one displaces the one that has been idle for
longest, and is refused if all of them are busy. A connection that completes no request
within `IDLE_S` is closed. So nothing that a client does takes more than a few file
descriptors from a trainer.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from streamer.errors import StreamerError

MAX_CONNECTIONS = 64
IDLE_S = 20.0
"""A connection is closed that has asked nothing for this long, has begun to ask and not
ended, or does not read its answer.
"""
MAX_HEAD_BYTES = 1 << 16
"""Of the first line of a request and its headers."""
BACKLOG = 128


class WebServer:
    """Serves an app, on the caller's thread (`run`) or on one of its own (`with`).

    Args:
        app: an ASGI app.
        listening: socket, see `listen`.
        max_connections: at a time.
    """

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.app = app
        self._socket = listening
        host, port = listening.getsockname()[:2]
        self.port: int = port
        self.url = f"http://{_local_name(host)}:{port}/"
        """Where a browser on this machine finds it."""
        config = uvicorn.Config(
            app,
            http=LimitedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what fails is logged by `Guard`
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=max_connections + 1,
            timeout_keep_alive=int(IDLE_S),
            timeout_graceful_shutdown=2,
        )
        self._uvicorn = _Uvicorn(config)
        self._thread = threading.Thread(target=self.run, name="web", daemon=True)

    def run(self) -> None:
        """Serve until a signal, or until `stop`."""
        self._uvicorn.run(sockets=[self._socket])

    def stop(self) -> None:
        """Have `run` return soon; for another thread."""
        self._uvicorn.should_exit = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Let go of the port; for a server that does not run."""
        self._socket.close()


class LimitedConnection(HttpToolsProtocol):
    """A connection that knows when its client last did something."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, in the place of an idle connection if there are too many."""
        super().connection_made(transport)
        self.active_at = time.monotonic()
        self._head_bytes = 0
        assert self.limit_concurrency is not None
        if len(self.connections) >= self.limit_concurrency:
            self._displace_longest_idle()

    def _displace_longest_idle(self) -> None:
        idle = []
        for connection in self.connections:
            assert isinstance(connection, LimitedConnection)
            if connection is not self and connection.is_idle:
                idle.append(connection)
        if idle:
            longest = min(idle, key=lambda connection: connection.active_at)
            longest.drop()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def drop(self) -> None:
        """Close at once: who does not read would keep `close` waiting."""
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse some bytes of a request; too many headers end the connection."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.drop()

    def on_headers_complete(self) -> None:
        """A request begins."""
        self._head_bytes = 0
        self.active_at = time.monotonic()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a request's body has arrived."""
        self._head_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """A request is answered."""
        self.active_at = time.monotonic()
        super().on_response_complete()


class _Uvicorn(uvicorn.Server):
    async def on_tick(self, counter: int) -> bool:
        """Close idle connections; called ten times a second."""
        idle_since = time.monotonic() - IDLE_S
        for connection in list(self.server_state.connections):
            assert isinstance(connection, LimitedConnection)
            if connection.active_at < idle_since:
                connection.drop()
        return await super().on_tick(counter)


def listen(host: str, port: int, options: str) -> socket.socket:
    """A socket that listens.

    Args:
        host: address to listen on.
        port: to listen on; 0 for any that is free.
        options: beginning of the names of the two options, for errors.

    Raises:
        StreamerError: it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise StreamerError(_problem(error, host, port, options)) from error


def _problem(error: OSError, host: str, port: int, options: str) -> str:
    if (error.errno or 0) < 0:  # as `getaddrinfo` numbers what went wrong
        return (
            f"{options}host {host} is not an address of this machine: "
            "try 127.0.0.1, or 0.0.0.0 for all of them"
        )
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another program: "
            f"choose another {options}port, or 0 for any free one"
        )
    return (
        f"cannot listen on {host}:{port}: {error.strerror or error}; "
        f"see {options}host and {options}port"
    )


def _local_name(host: str) -> str:
    if host == "0.0.0.0":
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host
