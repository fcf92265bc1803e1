"""The HTTP side of a trainer: its live page, metrics and health."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import webbrowser
from collections.abc import Iterator, Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
)

from streamer.metrics.monitor import Monitor
from streamer.serve.settings import is_loopback
from streamer.web.app import (
    Access,
    Guard,
    add_file,
    add_health,
    add_metrics,
    add_page,
    compressed_response,
    new_app,
)
from streamer.web.live_data import page_data
from streamer.web.server import WebServer, listen

logger = logging.getLogger("streamer")

PAGE = ("live.html", "live.js", "common.js", "page.css", "icon.svg")


@contextlib.contextmanager
def serve_metrics(
    source: str, host: str, port: int, show_values: bool = False
) -> Iterator[tuple[Monitor, str]]:
    """A monitor that is served while the block runs, and the address of its page.

    Args:
        source: where events come from, for a person.
        host: address to listen on.
        port: to listen on; 0 for any that is free.
        show_values: let the page show what dead letters hold.

    Raises:
        StreamerError: it cannot listen there.
    """
    # Without a series beside each counter that says when the counter was created.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(PLATFORM_COLLECTOR)
    registry.register(GC_COLLECTOR)
    monitor = Monitor(registry, source)
    with monitor_server(monitor, host, port, show_values) as server:
        yield monitor, server.url


def monitor_server(
    monitor: Monitor,
    host: str = "127.0.0.1",
    port: int = 0,
    show_values: bool = False,
) -> WebServer:
    """A server of what a monitor sees; see `serve_metrics`."""
    app = new_app()
    add_page(app, *PAGE)
    add_health(app, monitor.health)
    add_metrics(app, monitor.registry)
    add_live_data(app, monitor, show_values)
    listening = listen(host, port, "--metrics-")
    access = Access(only_local=is_loopback(listening.getsockname()[0]))
    return WebServer(Guard(app, access), listening)


def add_live_data(app: FastAPI, monitor: Monitor, show_values: bool) -> None:
    """Serve what the live page shows, and the library of its charts."""
    add_file(app, "/plotly.js", _plotly, "public, max-age=86400")

    @app.get("/data.json")
    def data(request: Request, span: str = "recent") -> Response:
        """What the page shows; `span=run` for the whole run."""
        span = "run" if span == "run" else "recent"
        body = msgspec.json.encode(page_data(monitor, span, show_values))
        return compressed_response(request, body, "application/json", "no-store")


def _plotly() -> bytes:
    """The library as the installed package carries it."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script.encode()


def announce(url: str) -> None:
    """Log where the page is."""
    logger.info("live page at %s, metrics at %smetrics", url, url)


def opens_browser(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether somebody sits here who would see a browser open."""
    shown = any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return shown and sys.stderr.isatty() and not environ.get("CI")


def open_browser(url: str) -> None:
    """Open the page, beside everything else: a browser may take its time to start."""
    threading.Thread(
        target=webbrowser.open, args=(url,), name="browser", daemon=True
    ).start()
