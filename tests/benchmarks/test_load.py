"""The load generator of `benchmarks/serve.py`: what waits because the server stalls has waited."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from load import closed_loop, open_loop, quantiles_ms
from streamer.errors import StreamerError

STALL_S = 0.5


class Stalling(BaseHTTPRequestHandler):
    """Answers at once, but for the first request to `/stall`."""

    protocol_version = "HTTP/1.1"
    stalled = False

    def do_GET(self) -> None:
        """Answer."""
        if self.path == "/stall" and not Stalling.stalled:
            Stalling.stalled = True
            time.sleep(STALL_S)
        self.send_response({"/nothing": 404, "/slow": 408}.get(self.path, 200))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Stalling)  # one connection at a time
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_requests_that_are_due_while_the_server_stalls_have_waited(port):
    waits = open_loop(port, ["/stall"], rate=100.0, seconds=1.0, connections=1)
    assert len(waits) == 100
    assert sum(wait > 0.1 for wait in waits) > 20  # not the one request alone that met the stall
    assert quantiles_ms(waits)["p99_ms"] >= 1000 * STALL_S * 0.9


def test_a_request_that_the_server_gives_up_has_waited(port):
    assert len(open_loop(port, ["/slow", "/"], rate=100.0, seconds=0.2, connections=1)) == 20


def test_garbage_is_freed_before_the_first_request_and_not_amid_them(port):
    class Garbage:
        """Refers to itself."""

    garbage = Garbage()
    garbage.itself = garbage  # type: ignore[attr-defined]
    left = weakref.ref(garbage)
    del garbage
    gc.disable()
    try:
        open_loop(port, ["/a"], rate=10.0, seconds=0.1, connections=1)
        assert left() is None
    finally:
        gc.enable()
        gc.unfreeze()


def test_what_is_answered_is_counted_and_what_is_refused_is_an_error(port):
    assert closed_loop(port, ["/a", "/b"], seconds=0.3, connections=1) > 1
    with pytest.raises(StreamerError, match="404"):
        closed_loop(port, ["/nothing"], seconds=0.3, connections=1)
