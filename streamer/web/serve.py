"""A line that can be watched over HTTP while it runs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import webbrowser
from collections.abc import Iterator, Mapping

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
)

from streamer.metrics.monitor import Monitor
from streamer.web.routes import routes
from streamer.web.server import WebServer

logger = logging.getLogger("streamer")


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
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a series beside each counter that nobody asks for
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(PLATFORM_COLLECTOR)
    registry.register(GC_COLLECTOR)
    monitor = Monitor(registry, source)
    with WebServer(routes(monitor, show_values), host, port) as server:
        yield monitor, server.url


def announce(url: str) -> None:
    """Say where the page is."""
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
