"""Requests that nobody should send, to the apps of a server and of a trainer: asked in process, without a socket.

Some are made from what HTTP and JSON are made of, others by schemathesis from the server's own OpenAPI document.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import schemathesis
from hypothesis import strategies as st
from line_harness import events
from prometheus_client import CollectorRegistry
from schemathesis.generation import GenerationMode
from serve_harness import Client, Trainer

from streamer.metrics.monitor import Monitor
from streamer.web.live import monitor_server

PATIENCE_S = 60.0
JSON = [(b"content-type", b"application/json")]
PATHS = "/users/{}/recommendations /items/{}/similar /hidden/{} /recommendations /recommendations/batch /events /status"
PATHS += " /hidden /metrics /healthz /readyz /openapi.json /data.json / /{}"
METHODS = "GET POST PUT DELETE HEAD PATCH OPTIONS TRACE nonsense"
TEXTS = ["u3", "i1", "", "a/b", "\x00", "\ud800", "\udcff", "é\u202e", "x" * 300, "..", "%", "NaN", "-1", "9" * 5000]
QUERIES = b"k= exclude= explain= exclude_seen= last_s= span= %ff= &=&; k[]="
VALUES = b"3 -1 NaN inf 1e999 % %ff%00 %ud800 \xff a&k=7&k=8 " + b"9" * 5000
HEADERS = b"origin accept host content-type authorization range if-range content-length accept-encoding if-none-match"
HEADERS += b" if-modified-since cookie expect transfer-encoding"
ODD_VALUES = b"http://[ \xff\xfe;;=, bytes=9-1,a-b null application/openmetrics-text;version=x;q=y gzip;q=z */* "
ODD_VALUES += b"application/json;charset=utf-7 " + b"9" * 5000 + b" bytes=" + b"0-1," * 999
BODIES = [b"", b"null", b"[" * 90_000, b'{"a":' * 40_000, b"\xff", b'"\\ud800"', b"NaN", b"1" * 5000, b"\x00"]
FIELDS = ["user", "recent", "k", "exclude_seen", "exclude", "explain", "features", "queries", "item", "\ud800"]

Request = tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]


@contextlib.contextmanager
def apps() -> Iterator[list[Any]]:
    """Of a server that serves something, and of a trainer."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        trainer = Trainer(Path(directory) / "points", item_numeric_features=("price",))
        stack.callback(trainer.close)
        trainer.learn(events(200))
        client = Client(Path(directory), clicks=True)
        stack.callback(client.close)
        live = monitor_server(Monitor(CollectorRegistry()))
        stack.callback(live.close)
        yield [client.ready().server.app, live.app]


async def ask(app: Any, method: str, path: str, query: bytes = b"", headers: Any = (), body: bytes = b"") -> int:
    """The status of an answer; 0 for none at all."""
    status, sent = 0, [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return sent.pop() if sent else await asyncio.Future()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {"type": "http", "method": method, "path": path, "raw_path": b"/", "query_string": query, "root_path": ""}
    scope |= {"headers": [(b"host", b"localhost"), *headers], "http_version": "1.1", "scheme": "http", "client": None}
    await asyncio.wait_for(app(scope, receive, send), PATIENCE_S)
    return status


def check(status: int, request: Any) -> None:
    assert 200 <= status < 500 or status == 503, (status, request)


def odd_json(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind < 3:
        return rng.choice([None, True, -1, 0, 7, 10**400, 1e308, float("nan"), float("inf"), 0.5, -0.0])
    if kind < 6:
        return rng.choice(TEXTS)
    if kind == 6:
        return [odd_json(rng, depth + 1) for _ in range(rng.choice([0, 1, 3, 120]))]
    return {rng.choice(FIELDS): odd_json(rng, depth + 1) for _ in range(rng.randrange(6))}


def odd_request(rng: random.Random) -> Request:
    path = rng.choice(PATHS.split()).format(rng.choice(TEXTS))
    method = rng.choice(METHODS.split()[: rng.choice([2, 4, 9])])
    query = b"&".join(rng.choice(QUERIES.split()) + rng.choice(VALUES.split()) for _ in range(rng.randrange(3)))
    headers = [
        (rng.choice(HEADERS.split()), rng.choice(ODD_VALUES.split())) for _ in range(rng.choice([0, 0, 0, 1, 3]))
    ]
    body = rng.choice(BODIES)
    if rng.random() < 0.7:
        body = json.dumps(odd_json(rng)).encode()[: rng.choice([20, 10**6, 10**6])]
    return method, path, query, JSON + headers, body


@contextlib.contextmanager
def odd_requests() -> Iterator[Any]:
    """An input is the seed of a request."""

    async def ask_all(all_apps: list[Any], values: Sequence[bytes]) -> None:
        for value in values:
            request = odd_request(random.Random(value))
            for app in all_apps:
                check(await ask(app, *request), request)

    with apps() as found:
        yield lambda values: asyncio.run(ask_all(found, values))


@contextlib.contextmanager
def schema_requests() -> Iterator[Any]:
    """Some inputs are the seed of as many requests, that fit the OpenAPI document or almost."""
    with apps() as (app, _):
        schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "localhost"})
        operations = [found.ok() for found in schema.get_all_operations()]
        strategies = [found.as_strategy(generation_mode=mode) for found in operations for mode in GenerationMode]

        def send(case: schemathesis.Case) -> None:
            check(case.call(headers={"Host": "localhost"}).status_code, case.as_curl_command())

        def send_all(values: Sequence[bytes]) -> None:
            if not values:
                return
            run = hypothesis.settings(
                max_examples=len(values),
                database=None,
                deadline=None,
                phases=[hypothesis.Phase.generate],
                suppress_health_check=list(hypothesis.HealthCheck),
            )(hypothesis.given(st.one_of(strategies))(send))
            hypothesis.seed(zlib.crc32(b"".join(values)))(run)()

        yield send_all
