"""A small HTTP server: a few paths, each served by a function. It only reads, and only
GET and HEAD.

Nothing that a client does takes more than a few threads and file descriptors from the
trainer: there are at most `MAX_CONNECTIONS`, of which a new one displaces the oldest,
and each request is over within `REQUEST_S`.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import ipaddress
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from streamer.errors import StreamerError

logger = logging.getLogger(__name__)

REQUEST_S = 30.0
"""A connection is closed that has taken longer to ask and to read the answer, or has
asked nothing for so long.
"""
MAX_CONNECTIONS = 64
MIN_COMPRESSED = 1024
EMPTY = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""The empty string: plotly makes an empty style element and fills it by script; the
rest it styles by attributes.
"""

HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'self'; style-src-elem 'self' {EMPTY}; style-src-attr 'unsafe-inline'; "
        "connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back.

    Args:
        body: the bytes.
        kind: their media type.
        status: HTTP status.
        cache: how long they may be kept, as `Cache-Control` says it.
        packed: the same, gzipped beforehand.
        headers: further ones.
    """

    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    cache: str = "no-store"
    packed: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked: the parameters of the query, and the media types that are
    understood.
    """

    parameters: Mapping[str, str]
    accept: str


Routes = Mapping[str, Callable[[Request], Answer]]


class WebServer:
    """Serves some paths, each request on a thread of its own.

    Args:
        routes: the function that serves each path.
        host: address to listen on.
        port: to listen on; 0 for any that is free.

    Raises:
        StreamerError: it cannot listen there.
    """

    def __init__(self, routes: Routes, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = _listening(host, port, _handler(routes))
        self._server.only_local = ipaddress.ip_address(
            str(self._server.server_address[0])
        ).is_loopback
        self.port: int = self._server.server_address[1]
        self.url = f"http://{_shown(host)}:{self.port}/"
        """Where a browser on this machine finds it."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="web", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _listening(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> _Server:
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        kind = type("_Server", (_Server,), {"address_family": family})
        server: _Server = kind(address[:2], handler)
    except OSError as error:
        raise StreamerError(_explained(error, host, port)) from error
    return server


def _explained(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"--metrics-host {host} is not an address of this machine: try 127.0.0.1, or 0.0.0.0 for all of them"
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another program, perhaps another trainer: "
            f"choose another --metrics-port, or 0 for any free one"
        )
    if error.errno == errno.EACCES:
        return f"no permission to listen on port {port}: choose a --metrics-port from 1024 on, or 0 for any free one"
    return f"cannot listen on {host}:{port}: {error.strerror or error}; see --metrics-host and --metrics-port"


def _shown(host: str) -> str:
    if host in ("0.0.0.0", "", "::"):
        return "127.0.0.1" if host != "::" else "[::1]"
    return f"[{host}]" if ":" in host else host


def is_local(host: str) -> bool:
    """Whether a `Host` header names this machine, as only a program on it would say.

    The page of a stranger may ask a browser for a name of its own that leads to
    127.0.0.1; that name comes along here.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return (
            name == "localhost"
            or name.endswith(".localhost")
            or ipaddress.ip_address(name).is_loopback
        )
    except ValueError:
        return False


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    only_local = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        self._deadlines: dict[
            socket.socket, float
        ] = {}  # of connections, the oldest first
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:  # out of file descriptors: without a pause it would be asked for again at once, without end
            time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        self.renew(request)
        with self._lock:
            displaced = list(self._deadlines)[:-MAX_CONNECTIONS]
        self._hang_up(displaced)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def renew(self, connection: socket.socket) -> None:
        """A connection begins, or waits for its next request."""
        with self._lock:
            self._deadlines.pop(connection, None)
            self._deadlines[connection] = time.monotonic() + REQUEST_S

    def service_actions(self) -> None:
        """Called a few times a second."""
        now = time.monotonic()
        with self._lock:
            overdue = [
                connection
                for connection, deadline in self._deadlines.items()
                if deadline < now
            ]
        self._hang_up(overdue)

    def _hang_up(self, connections: Iterable[socket.socket]) -> None:
        """End connections; the threads that serve them notice and close them."""
        for connection in connections:
            with self._lock:
                self._deadlines.pop(connection, None)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Without the look for our own name that the base does: it may wait for a name
        server.
        """
        socketserver.TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, mostly; nothing that a trainer should print a
        traceback for.
        """
        logger.debug("a request of %s failed", client_address, exc_info=True)


def _handler(routes: Routes) -> type[BaseHTTPRequestHandler]:
    return type("_Handler", (_Handler,), {"routes": routes})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "streamer"
    sys_version = ""
    timeout = REQUEST_S
    routes: Routes
    server: _Server

    def handle_one_request(self) -> None:
        super().handle_one_request()
        if not self.close_connection:
            self.server.renew(self.connection)

    def do_GET(self) -> None:
        host = self.headers.get("Host")
        if self.server.only_local and host is not None and not is_local(host):
            text = f"this is for local names only, such as 127.0.0.1:{self.server.server_port}; see --metrics-host\n"
            self._send(Answer(text.encode(), status=HTTPStatus.MISDIRECTED_REQUEST))
        else:
            self._send(self._answer())

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        self.close_connection = True  # whatever comes with it is not read
        headers = {"Allow": "GET, HEAD", "Connection": "close"}
        self._send(
            Answer(
                b"only GET and HEAD are allowed\n",
                status=HTTPStatus.METHOD_NOT_ALLOWED,
                headers=headers,
            )
        )

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST  # noqa: N815

    def _answer(self) -> Answer:
        try:
            parts = urlsplit(self.path)
            parameters = {
                name: values[-1] for name, values in parse_qs(parts.query).items()
            }
        except ValueError:
            return Answer(b"this is not a valid path\n", status=HTTPStatus.BAD_REQUEST)
        found = self.routes.get(parts.path)
        if found is None:
            known = ", ".join(sorted(self.routes))
            return Answer(
                f"this path does not exist; there are {known}\n".encode(),
                status=HTTPStatus.NOT_FOUND,
            )
        try:
            return found(Request(parameters, self.headers.get("Accept", "")))
        except Exception:
            logger.exception("the request of %s failed", parts.path)
            return Answer(
                b"the request failed; the trainer's log says why\n",
                status=HTTPStatus.INTERNAL_SERVER_ERROR,
            )

    def _send(self, answer: Answer) -> None:
        body = self._packed(answer)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", answer.cache)
        self.send_header("Vary", "Accept-Encoding")
        if body is not answer.body:
            self.send_header("Content-Encoding", "gzip")
        for name, value in {**HEADERS, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _packed(self, answer: Answer) -> bytes:
        """The body as it is sent: gzipped if that is understood and worth it."""
        understood = "gzip" in self.headers.get("Accept-Encoding", "")
        if not understood or len(answer.body) < MIN_COMPRESSED:
            return answer.body
        return (
            answer.packed
            if answer.packed is not None
            else gzip.compress(answer.body, 1)
        )

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s", format % args)
