"""The ASGI app of a process, put together from parts: page, health, metrics, and what
else there is.

A trainer and a server have these parts in common. `Guard` stands before all of them: it
decides who may ask and how much, and counts what is answered.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import FileResponse
from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    generate_latest,
)
from starlette.exceptions import HTTPException

from streamer.metrics.health import Verdict
from streamer.serve.names import UNKNOWN_NAME, unknown_name

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 20
TOO_LARGE = f"A body has at most {MAX_BODY_BYTES:,} bytes."
REQUEST_S = 10.0
"""A request that takes longer to arrive and to be answered is given up."""
MIN_COMPRESSED_BYTES = 1024
STATIC = Path(__file__).parent / "static"

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
        dependencies=[Depends(_check_parameters)],
    )
    app.add_middleware(GZipMiddleware, MIN_COMPRESSED_BYTES, compresslevel=1)
    app.add_exception_handler(HTTPStatus.NOT_FOUND, _not_found)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(Exception, _failed)
    return app


def add_page(app: FastAPI, html: str, *files: str, at: str = "/") -> set[str]:
    """Serve a page and its files by their names; returns all paths of it."""
    names = {at: html} | {f"/{name}": name for name in files}
    for path, name in names.items():
        add_file(app, path, STATIC / name, "no-cache")
    return set(names)


def add_file(app: FastAPI, path: str, file: Path, cache: str) -> None:
    """Serve a file; browsers keep it as `cache` says."""
    media_type = MEDIA_TYPES[file.suffix]

    def get_file() -> Response:
        return FileResponse(
            file, headers={"Cache-Control": cache}, media_type=media_type
        )

    app.add_api_route(path, get_file, include_in_schema=False)


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
    refresh: Callable[[], None] = lambda: None,
) -> None:
    """Serve `/metrics`; `refresh` is called before they are read."""

    @app.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        refresh()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


# responses ----------------------------------------------------------------------------


def json_response(value: Any, status: int = HTTPStatus.OK) -> Response:
    """A value as JSON; numbers that are not finite become null."""
    body = msgspec.json.encode(value)
    return Response(body, status, NO_STORE, "application/json")


def error_response(status: int, detail: Any) -> Response:
    """What went wrong, as JSON."""
    return json_response({"detail": detail}, status)


def _not_valid(_: Request, error: Exception) -> Response:
    """Say what is wrong, and where; what was sent is not quoted, because it may be
    anything, also text that has no encoding.
    """
    assert isinstance(error, RequestValidationError)
    problems = []
    for problem in error.errors():
        if problem["type"] == UNKNOWN_NAME:
            return error_response(HTTPStatus.BAD_REQUEST, problem["msg"])
        place = [str(part).encode(errors="replace").decode() for part in problem["loc"]]
        problems.append({"loc": place, "msg": problem["msg"], "type": problem["type"]})
    return error_response(HTTPStatus.UNPROCESSABLE_ENTITY, problems)


def _not_found(request: Request, _: Exception) -> Response:
    paths = sorted({route.path for route in request.app.routes})
    detail = f"There is no such path; there are {', '.join(paths)}."
    return error_response(HTTPStatus.NOT_FOUND, detail)


def _failed(_: Request, error: Exception) -> Response:
    detail = "The request failed; the log says why."
    return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, detail)


async def _check_parameters(request: Request) -> None:
    """Refuse parameters that the path does not have; pages and metrics may get any."""
    route = request.scope["route"]
    if not request.query_params or not route.include_in_schema:
        return
    known = {field.alias for field in route.dependant.query_params}
    for name in request.query_params:
        if name not in known:
            detail = unknown_name("parameter", name, known)
            raise HTTPException(HTTPStatus.BAD_REQUEST, detail)


# who may ask --------------------------------------------------------------------------


class Guard:
    """Lets requests through that may ask, are small and arrive in time.

    Args:
        app: answers them.
        only_local: refuse requests for other names than this machine's own.
        token: that requests must carry; None for none.
        open_paths: for which no token is needed.
        on_response: called with path, status and seconds of each request.
    """

    def __init__(
        self,
        app: FastAPI,
        only_local: bool = True,
        token: str | None = None,
        open_paths: Collection[str] = (),
        on_response: Callable[[str, int, float], None] | None = None,
    ) -> None:
        self._app = app
        self._only_local = only_local
        self._token = token
        self._open_paths = open_paths
        self._on_response = on_response

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
        if self._only_local and not is_local(host):
            detail = "This address serves local names only, such as 127.0.0.1."
            return error_response(HTTPStatus.MISDIRECTED_REQUEST, detail)
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and scope["method"] != "GET" and not is_same_host(origin, host):
            detail = "Pages of other servers may not write here."
            return error_response(HTTPStatus.FORBIDDEN, detail)
        if not self._is_authorized(scope["path"], headers):
            detail = "This server needs its token: Authorization: Bearer TOKEN"
            return error_response(HTTPStatus.UNAUTHORIZED, detail)
        return None

    def _is_authorized(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        if self._token is None or path in self._open_paths:
            return True
        given = headers.get(b"authorization", b"")
        return hmac.compare_digest(given, f"Bearer {self._token}".encode())


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
