"""A server from its settings, and its life."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import uvicorn

from streamer.build import event_tail, event_writer, point_reader
from streamer.errors import SettingsError, StreamerError
from streamer.event import EventDecoder
from streamer.serve.app import REQUEST_S, make_app
from streamer.serve.follower import Follower, Tail
from streamer.serve.freshness import Freshness
from streamer.serve.hidden import Hidden
from streamer.serve.metrics import ServerMetrics
from streamer.serve.service import Service
from streamer.settings import ServeSettings, is_loopback

logger = logging.getLogger("streamer")


SWITCH_S = 0.0005
"""How long a request waits each time it asks a following thread for the interpreter;
Python's own 5 ms add up.
"""
IDLE_S = 20.0
"""A connection that has asked nothing for this long, or has begun to ask and not ended,
is closed.
"""


class _Uvicorn(uvicorn.Server):
    """Closes connections on which nothing is asked: they would keep others out."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._since: dict[
            Any, tuple[Any, float]
        ] = {}  # of each connection: its last request, and since when

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % 10 == 0:
            now = time.monotonic()
            before = self._since
            self._since = {}
            for connection in list(self.server_state.connections):
                request = getattr(connection, "cycle", None)
                last, since = before.get(connection, (request, now))
                is_idle = request is None or request.response_complete
                self._since[connection] = (
                    request,
                    since if last is request and is_idle else now,
                )
                if now - self._since[connection][1] > IDLE_S:
                    connection.transport.close()
        return await super().on_tick(counter)


@dataclass(frozen=True, slots=True)
class Server:
    """What answers on a socket, and where that is."""

    url: str
    uvicorn: uvicorn.Server
    socket: socket.socket

    def run(self) -> None:
        """Answer until a signal, or until `stop`."""
        self.uvicorn.run(sockets=[self.socket])

    def stop(self) -> None:
        """End; for another thread."""
        self.uvicorn.should_exit = True


@contextlib.contextmanager
def serving(settings: ServeSettings) -> Iterator[Server]:
    """A server that follows its trainer while the block runs; `run` answers requests.

    Raises:
        SettingsError: with every problem.
        StreamerError: it cannot listen there, or its hidden items cannot be read.
    """
    if problems := settings.problems():
        raise SettingsError(problems)
    torch.set_num_threads(1)  # a request is too small to be shared
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # what is imported is no garbage: a full collection, while requests wait, passes it over
    metrics = ServerMetrics()
    service = Service(
        Hidden(settings.hidden_file or settings.data_dir / "hidden.json"),
        Freshness(record=metrics.waited),
    )
    follower = Follower(service, point_reader(settings), settings.exact_items)
    tail = (
        Tail(
            service,
            event_tail(settings),
            EventDecoder(settings, settings.catalogue_topic),
        )
        if settings.tail
        else None
    )
    metrics.watch(follower, tail)
    app = make_app(
        service,
        metrics,
        token=settings.token,
        only_local=is_loopback(settings.host),
        write_event=event_writer(settings) if settings.clicks else None,
    )
    listening = _listen(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=int(REQUEST_S),
        server_header=False,
        timeout_graceful_shutdown=2,
        proxy_headers=False,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(listening.close)
        for thread in (follower, tail):
            if thread is not None:
                thread.start()
                stack.callback(thread.close)
        yield Server(f"http://{_shown(str(host))}:{port}/", _Uvicorn(config), listening)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        return listening
    except OSError as error:
        raise StreamerError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, or 0"
        ) from error


def _shown(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host
