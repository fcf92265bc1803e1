"""The ASGI app of a process, put together from parts: page, health, metrics, and what
else there is.

A trainer and a server have these parts in common. `Guard` stands before all of them: it
decides who may ask and how much, and counts what is answered.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hmac
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from pathlib import PurePath
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, make_asgi_app
from starlette.exceptions import HTTPException
from starlette.routing import Route

from streamer.metrics.health import Verdict

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 20
TOO_LARGE = f"A body has at most {MAX_BODY_BYTES:,} bytes."
REQUEST_S = 10.0
"""A request that takes longer to arrive and to be answered is given up."""
MIN_COMPRESSED_BYTES = 1024

EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""Plotly adds an empty style element and fills it by script; the rest it styles by
attributes.
"""
CONTENT_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    f"style-src-elem 'self' {EMPTY_STYLE}",
    "style-src-attr 'unsafe-inline'",
    "connect-src 'self'",
    "img-src 'self' data: blob:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
SECURITY_HEADERS = [
    (b"content-security-policy", "; ".join(CONTENT_POLICY).encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
NO_STORE = {"Cache-Control": "no-store"}

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class HealthChecks(Protocol):
    """What Kubernetes asks a process."""

    def alive(self) -> Verdict:
        """Whether it works; if not, it is started again."""

    def ready(self) -> Verdict:
        """Whether it is up to date."""


def new_app(description: str = "") -> FastAPI:
    """An app without any path but `/openapi.json`, if it has a description."""
    app = FastAPI(
        title="Streamer",
        description=description,
        openapi_url="/openapi.json" if description else None,
        docs_url=None,  # these two pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPStatus.NOT_FOUND, _not_found)
    app.add_exception_handler(HTTPStatus.METHOD_NOT_ALLOWED, _not_allowed)
    app.add_exception_handler(Exception, _failed)
    return app


def add_page(app: FastAPI, html: str, *files: str) -> set[str]:
    """Serve a page at `/` and its files by their names; returns all paths of it."""
    names = {"/": html} | {f"/{name}": name for name in files}
    for path, name in names.items():
        add_file(app, path, functools.partial(_static_file, name), "no-cache")
    return set(names)


def add_file(app: FastAPI, path: str, read: Callable[[], bytes], cache: str) -> None:
    """Serve a file, which is read and compressed at the first request for it."""
    read_once = functools.cache(read)
    media_type = MEDIA_TYPES[PurePath(path).suffix or ".html"]

    def file(request: Request) -> Response:
        body = read_once()
        return compressed_response(request, body, media_type, cache, _pack_file)

    app.add_api_route(path, file, include_in_schema=False)


def _static_file(name: str) -> bytes:
    return (resources.files("streamer.web") / "static" / name).read_bytes()


def add_health(app: FastAPI, health: HealthChecks) -> None:
    """Serve `/healthz` and `/readyz`."""

    @app.get("/healthz")
    async def healthz() -> Response:
        """Whether the process works."""
        return _verdict_response(health.alive())

    @app.get("/readyz")
    async def readyz() -> Response:
        """Whether the process is up to date."""
        return _verdict_response(health.ready())


def _verdict_response(verdict: Verdict) -> Response:
    status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return json_response(verdict._asdict(), status)


def add_metrics(
    app: FastAPI,
    registry: CollectorRegistry,
    refresh: Callable[[], None] | None = None,
) -> None:
    """Serve `/metrics`; `refresh` is called before they are read."""
    endpoint = _Metrics(registry, refresh)
    app.router.routes.append(Route("/metrics", endpoint, methods=["GET"]))


class _Metrics:
    """The ASGI app of Prometheus' client."""

    def __init__(
        self, registry: CollectorRegistry, refresh: Callable[[], None] | None
    ) -> None:
        self._app = make_asgi_app(registry)
        self._refresh = refresh

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._refresh is not None:
            self._refresh()
        try:
            await self._app(scope, receive, send)
        except (TypeError, ValueError):
            # A header that the client cannot parse; it has not sent anything yet.
            plain = {**scope, "headers": [], "query_string": b""}
            await self._app(plain, receive, send)


# responses ----------------------------------------------------------------------------


def json_response(value: Any, status: int = HTTPStatus.OK) -> Response:
    """A value as JSON; numbers that are not finite become null."""
    body = msgspec.json.encode(value)
    return Response(body, status, NO_STORE, "application/json")


def error_response(status: int, detail: str) -> Response:
    """What went wrong, as JSON."""
    return json_response({"detail": detail}, status)


def _pack(body: bytes) -> bytes:
    return gzip.compress(body, 1)


@functools.cache
def _pack_file(body: bytes) -> bytes:
    return gzip.compress(body, 6)


def compressed_response(
    request: Request,
    body: bytes,
    media_type: str,
    cache: str,
    pack: Callable[[bytes], bytes] = _pack,
) -> Response:
    """A body that is packed if the client understands gzip and it is worth it."""
    headers = {"Cache-Control": cache, "Vary": "Accept-Encoding"}
    understood = "gzip" in request.headers.get("accept-encoding", "")
    if understood and len(body) >= MIN_COMPRESSED_BYTES:
        headers["Content-Encoding"] = "gzip"
        body = pack(body)
    return Response(body, headers=headers, media_type=media_type)


def _not_found(request: Request, _: Exception) -> Response:
    paths = sorted({route.path for route in request.app.routes})
    detail = f"There is no such path; there are {', '.join(paths)}."
    return error_response(HTTPStatus.NOT_FOUND, detail)


def _not_allowed(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = set((error.headers or {})["Allow"].split(", "))
    if "GET" in allowed:
        allowed.add("HEAD")
    names = ", ".join(sorted(allowed))
    response = error_response(error.status_code, f"Only {names} are allowed here.")
    response.headers["Allow"] = names
    return response


def _failed(_: Request, error: Exception) -> Response:
    detail = "The request failed; the log says why."
    return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, detail)


# who may ask --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask.

    Args:
        only_local: refuse requests for other names than this machine's own.
        token: that requests must carry; None for none.
        open_paths: for which no token is needed.
    """

    only_local: bool = True
    token: str | None = None
    open_paths: Collection[str] = ()


class Guard:
    """Lets requests through that may ask, are small and arrive in time.

    Args:
        app: answers them.
        access: who may ask.
        on_response: called with path, status and seconds of each request.
    """

    def __init__(
        self,
        app: FastAPI,
        access: Access,
        on_response: Callable[[str, int, float], None] | None = None,
    ) -> None:
        self._app = app
        self._access = access
        self._on_response = on_response
        self._authorization = f"Bearer {access.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        began = time.monotonic()
        status: int | None = None
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn leaves the body out

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send_safely)
            else:
                async with asyncio.timeout(REQUEST_S):
                    await self._app(scope, _limited(receive), send_safely)
        except TimeoutError:
            if status is None:
                detail = f"The request took longer than {REQUEST_S:g} s."
                response = error_response(HTTPStatus.REQUEST_TIMEOUT, detail)
                await response(scope, receive, send_safely)
        except Exception:
            logger.exception("A request for %s failed.", _path_label(scope))
        if self._on_response is not None:
            seconds = time.monotonic() - began
            status = status or HTTPStatus.GATEWAY_TIMEOUT
            self._on_response(_path_label(scope), int(status), seconds)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"localhost").decode("latin-1")
        if self._access.only_local and not is_local(host):
            detail = "This address serves local names only, such as 127.0.0.1."
            return error_response(HTTPStatus.MISDIRECTED_REQUEST, detail)
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and scope["method"] != "GET" and not is_same_host(origin, host):
            detail = "Pages of other servers may not write here."
            return error_response(HTTPStatus.FORBIDDEN, detail)
        if not self._is_authorized(scope["path"], headers):
            detail = "This server needs its token: Authorization: Bearer TOKEN"
            return error_response(HTTPStatus.UNAUTHORIZED, detail)
        if int(headers.get(b"content-length") or 0) > MAX_BODY_BYTES:
            return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LARGE)
        return None

    def _is_authorized(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        if self._access.token is None or path in self._access.open_paths:
            return True
        given = headers.get(b"authorization", b"")
        return hmac.compare_digest(given, self._authorization)


def _path_label(scope: Scope) -> str:
    """The path with the names of its parameters, `other` if there is none."""
    return getattr(scope.get("route"), "path", "other")


def is_local(host: str) -> bool:
    """Whether a `Host` header names this machine, as only a program on it would say.

    The page of a stranger may ask a browser for a name of its own that leads to
    127.0.0.1; that name comes along here.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_same_host(origin: str, host: str) -> bool:
    """Whether an `Origin` header is of a page of this server."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _limited(receive: Receive) -> Receive:
    """Receives no more than the allowed bytes of a body."""
    received = 0

    async def receive_some() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LARGE)
        return message

    return receive_some
