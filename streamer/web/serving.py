"""A server of recommendations from its settings, and its life."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
from collections.abc import Iterator

import torch

from streamer.errors import SettingsError
from streamer.event import EventDecoder
from streamer.serve.build import (
    catalogue_writer,
    event_tail,
    event_writer,
    nothing_published,
    snapshot_reader,
)
from streamer.serve.follower import Follower, Tail
from streamer.serve.freshness import Freshness
from streamer.serve.metrics import ServerMetrics
from streamer.serve.service import Service
from streamer.serve.settings import ServeSettings, is_loopback
from streamer.web.app import (
    Guard,
    add_health,
    add_metrics,
    add_page,
    new_app,
)
from streamer.web.recommendations import (
    add_hidden_items,
    add_recommendations,
    add_status,
)
from streamer.web.server import WebServer, listen

SWITCH_S = 0.0005
"""How long a thread waits each time it asks another for the interpreter; Python's own
5 ms add up.
"""
PAGE = (
    "recommend.html",
    "recommend.js",
    "recommend.css",
    "common.js",
    "page.css",
    "icon.svg",
)
DOCS = (
    "docs.html",
    "docs.js",
    "docs.css",
    "swagger/swagger-ui.css",
    "swagger/swagger-ui-bundle.js",
)
"""The OpenAPI document for people, by Swagger UI."""


@contextlib.contextmanager
def serving(
    settings: ServeSettings, descriptor: int | None = None
) -> Iterator[WebServer]:
    """A server that follows its trainer while the block runs; it has still to be run.

    With a descriptor, it answers on that socket, which listens already.

    Raises:
        SettingsError: with every problem.
        StreamerError: it cannot listen there.
    """
    if problems := settings.problems():
        raise SettingsError(problems)
    torch.set_num_threads(1)  # a request is too small to be shared
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # what is imported is no garbage: later collections pass it over
    metrics = ServerMetrics()
    service = Service(Freshness(record=metrics.waited))
    follower = Follower(
        service,
        snapshot_reader(settings),
        settings.exact_items,
        lambda: nothing_published(settings),
    )
    tail = None
    if settings.tail:
        decoder = EventDecoder(settings, settings.catalogue_topic)
        tail = Tail(service, event_tail(settings), decoder)
    metrics.watch(follower, tail)
    with contextlib.ExitStack() as stack:
        if descriptor is None:
            listening = listen(settings.host, settings.port, "--")
        else:
            listening = socket.socket(fileno=descriptor)
        server = _web_server(settings, service, metrics, listening)
        stack.callback(server.close)
        for thread in (follower, tail):
            if thread is not None:
                thread.start()
                stack.callback(thread.close)
        yield server


def _web_server(
    settings: ServeSettings,
    service: Service,
    metrics: ServerMetrics,
    listening: socket.socket,
) -> WebServer:
    app = new_app("Recommendations of a model that learns from a stream.")
    add_recommendations(app, service)
    add_hidden_items(app, service, catalogue_writer(settings))
    add_status(app, service, event_writer(settings) if settings.clicks else None)
    add_health(app, service)
    add_metrics(app, metrics.registry, lambda: metrics.refresh(service))
    page_paths = add_page(app, *PAGE) | add_page(app, *DOCS, at="/docs")
    guard = Guard(
        app,
        is_loopback(settings.host),
        settings.token,
        {"/healthz", "/readyz", *page_paths},
        metrics.answered,
    )
    return WebServer(guard, listening, settings.max_connections)
