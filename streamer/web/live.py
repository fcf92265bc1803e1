"""The HTTP side of a trainer: its live page, metrics and health."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from fastapi import Response
from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
)

from streamer.metrics.monitor import Monitor
from streamer.metrics.status import Status
from streamer.serve.settings import is_loopback
from streamer.sources.base import Partition
from streamer.web.app import (
    Guard,
    add_file,
    add_health,
    add_metrics,
    add_page,
    json_response,
    new_app,
)
from streamer.web.server import WebServer, listen

SHOWN_VALUE = 160
"""Characters of a dead letter's value that are shown."""
PAGE = ("live.html", "live.js", "common.js", "page.css", "icon.svg")


def new_monitor(source: str) -> Monitor:
    """A monitor of this process.

    Args:
        source: where events come from, for a person.
    """
    # Without a series beside each histogram that says when it was created.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(PLATFORM_COLLECTOR)
    registry.register(GC_COLLECTOR)
    return Monitor(registry, source)


def monitor_server(
    monitor: Monitor,
    host: str = "127.0.0.1",
    port: int = 0,
    show_values: bool = False,
) -> WebServer:
    """A server of what a monitor sees.

    Args:
        monitor: what watches the line.
        host: address to listen on.
        port: to listen on; 0 for any that is free.
        show_values: let the page show what dead letters hold.

    Raises:
        StreamerError: it cannot listen there.
    """
    app = new_app()
    add_page(app, *PAGE)
    plotly = Path(str(resources.files("plotly") / "package_data" / "plotly.min.js"))
    add_file(app, "/plotly.js", plotly, "public, max-age=86400")
    add_health(app, monitor.health)
    add_metrics(app, monitor.registry)

    @app.get("/data.json")
    def data(span: Literal["recent", "run"] = "recent") -> Response:
        """What the page shows; `span=run` for the whole run."""
        return json_response(page_data(monitor, span, show_values))

    listening = listen(host, port, "--metrics-")
    only_local = is_loopback(listening.getsockname()[0])
    return WebServer(Guard(app, only_local), listening)


def opens_browser(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether somebody sits here who would see a browser open."""
    shown = any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return shown and sys.stderr.isatty() and not environ.get("CI")


def open_browser(url: str) -> None:
    """Open the page, beside everything else: a browser may take its time to start."""
    threading.Thread(
        target=webbrowser.open, args=(url,), name="browser", daemon=True
    ).start()


# what the page shows ------------------------------------------------------------------


def page_data(
    monitor: Monitor, span: str = "recent", show_values: bool = False
) -> dict[str, Any]:
    """Everything that the page shows.

    Args:
        monitor: what watches the line.
        span: of the charts: `recent` for the last minutes, `run` for all of it.
        show_values: also what dead letters hold.
    """
    timeline = monitor.timeline
    rows = timeline.run() if span == "run" else timeline.recent()
    status = monitor.status or Status()
    partitions = []
    for (topic, number), position in sorted(status.partitions.items()):
        lag = status.lag.get(Partition(topic, number))  # of a file nobody knows it
        row = {"topic": topic, "partition": number, "position": position, "lag": lag}
        partitions.append(row)
    members = []
    for member in status.members:
        numbers = [partition.number for partition in member.partitions]
        members.append(member._asdict() | {"partitions": numbers})
    published = status.publishing
    return {
        "now": time.time(),
        "started": monitor.started_at,
        "source": monitor.source,
        "build": monitor.build,
        "alive": monitor.health.alive()._asdict(),
        "ready": monitor.health.ready()._asdict(),
        "timeline": {"span": span, "columns": timeline.columns, "rows": rows},
        "figures": status.figures() if monitor.status is not None else None,
        "cache": status.sampler,
        "ranking": {
            "influence": status.influence,
            "towers": str(status.towers) if status.towers is not None else None,
        },
        "shop": status.shop,
        "partitions": partitions,
        "members": members,
        "dead_letters": {
            "reasons": status.accounting["dead_letters"],
            "recent": _dead_letters(monitor, show_values),
            "shows_values": show_values,
            "backpressure_reason": status.backpressure_reason,
        },
        "store": status.store,
        "checkpoint": {
            "age_s": status.checkpoint_age_s and monitor.checkpoint_age_s(),
            **dataclasses.asdict(status.saves),
        },
        "publishing": published
        and {
            "age_s": published.at_s and time.time() - published.at_s,
            **dataclasses.asdict(published),
        },
    }


def _dead_letters(monitor: Monitor, show_values: bool) -> list[dict[str, Any]]:
    """The latest dead letters; their details may quote what they hold."""
    found = []
    for time_s, letter in monitor.letters():
        value = (letter.value or b"")[: 4 * SHOWN_VALUE].decode(errors="replace")
        shown = {
            "time": time_s,
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "reason": str(letter.reason),
            "detail": letter.detail if show_values else "",
            "value": value[:SHOWN_VALUE] if show_values else "",
        }
        found.append(shown)
    return found
