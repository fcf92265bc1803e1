"""What is served: the live page and its data, metrics for Prometheus, health for
Kubernetes.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable
from http import HTTPStatus
from importlib import resources

import msgspec
from prometheus_client.exposition import choose_encoder

from streamer.metrics.health import Verdict
from streamer.metrics.monitor import Monitor
from streamer.web.server import Answer, Request, Routes

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def routes(monitor: Monitor, show_values: bool = False) -> Routes:
    """Everything that can be asked; what dead letters hold only if `show_values`."""
    return {
        **{
            path: functools.partial(_file, name, kind)
            for path, (name, kind) in FILES.items()
        },
        "/plotly.js": plotly,
        "/data.json": lambda request: _data(monitor, request, show_values),
        "/metrics": lambda request: _metrics(monitor, request),
        "/healthz": lambda _: _health(monitor.health.alive),
        "/readyz": lambda _: _health(monitor.health.ready),
    }


def _file(name: str, kind: str, _: Request) -> Answer:
    body = (resources.files("streamer.web") / "static" / name).read_bytes()
    return Answer(body, kind, cache="no-cache")


@functools.cache
def _plotly_packed() -> tuple[bytes, bytes]:
    from plotly.offline import get_plotlyjs

    script = get_plotlyjs().encode()
    return script, gzip.compress(script, 6)


def plotly(_: Request) -> Answer:
    """The charts' library, as the installed package carries it."""
    script, packed = _plotly_packed()
    return Answer(
        script,
        "text/javascript; charset=utf-8",
        cache="public, max-age=86400",
        packed=packed,
    )


def _data(monitor: Monitor, request: Request, show_values: bool) -> Answer:
    from streamer.web.data import page_data

    span = "run" if request.parameters.get("span") == "run" else "recent"
    body = msgspec.json.encode(
        page_data(monitor, span, show_values)
    )  # numbers that are not finite become null
    return Answer(body, "application/json")


def _metrics(monitor: Monitor, request: Request) -> Answer:
    encode, kind = choose_encoder(request.accept)
    return Answer(encode(monitor.registry), kind)


def _health(verdict: Callable[[], Verdict]) -> Answer:
    ok, reason = verdict()
    status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(
        msgspec.json.encode({"ok": ok, "reason": reason}), "application/json", status
    )
