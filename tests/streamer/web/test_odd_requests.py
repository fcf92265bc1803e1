"""No request makes a trainer's or a server's app fail, whatever it holds: asked in process, without a socket."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from line_harness import events
from prometheus_client import CollectorRegistry
from serve_harness import Client, Trainer

from streamer.metrics.monitor import Monitor
from streamer.web.live import monitor_server

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


@pytest.fixture(scope="module")
def apps(tmp_path_factory) -> Iterator[list[Any]]:
    """Of a server that serves something, and of a trainer."""
    directory = tmp_path_factory.mktemp("odd")
    trainer = Trainer(directory / "points", item_numeric_features=("price",))
    trainer.learn(events(200))
    client = Client(directory, clicks=True).ready()
    live = monitor_server(Monitor(CollectorRegistry()))
    yield [client.server.app, live.app]
    live.close()
    client.close()
    trainer.close()


async def ask(app: Any, method: str, path: str, query: bytes = b"", headers: Any = (), body: bytes = b"") -> int:
    """The status of an answer; 0 for none at all."""
    status, content, sent = 0, b"", [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return sent.pop() if sent else await asyncio.Future()

    async def send(message: Any) -> None:
        nonlocal status, content
        status = message.get("status", status)
        content += message.get("body", b"")

    scope = {"type": "http", "method": method, "path": path, "raw_path": b"/", "query_string": query, "root_path": ""}
    scope |= {"headers": [(b"host", b"localhost"), *headers], "http_version": "1.1", "scheme": "http", "client": None}
    await app(scope, receive, send)
    return status


def odd_json(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind < 3:
        return rng.choice([None, True, -1, 0, 7, 10**400, 1e308, float("nan"), float("inf"), 0.5, -0.0])
    if kind < 6:
        return rng.choice(TEXTS)
    if kind == 6:
        return [odd_json(rng, depth + 1) for _ in range(rng.choice([0, 1, 3, 120]))]
    return {rng.choice(FIELDS): odd_json(rng, depth + 1) for _ in range(rng.randrange(6))}


def odd_request(rng: random.Random) -> tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]:
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


@pytest.mark.parametrize("seed", range(3))
def test_no_random_request_makes_an_app_fail(apps, seed):
    async def ask_all() -> None:
        rng = random.Random(seed)
        for _ in range(600):
            request = odd_request(rng)
            for app in apps:
                status = await ask(app, *request)
                assert 200 <= status < 500 or status == 503, (status, request)

    asyncio.run(ask_all())


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/recommendations", b'{"k": NaN}', 422),
        ("/recommendations", b'{"k": 1e999}', 422),
        ("/recommendations", b'{"user": "\\ud800"}', 422),
        ("/recommendations", b'{"features": {"\\ud800": 1}}', 422),
        ("/recommendations", b'{"features": {"price": NaN}}', 422),
        ("/recommendations/batch", b'{"queries": -1e999}', 422),
        ("/events", b'{"user": "a", "item": "\\udfff"}', 422),
        ("/recommendations", b"[" * 100_000, 400),
        ("/recommendations", b'{"user": "\xff"}', 400),
    ],
)
def test_what_json_cannot_quote_is_refused_and_not_an_error(apps, path, body, expected):
    assert asyncio.run(ask(apps[0], "POST", path, headers=JSON, body=body)) == expected


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("method", "path", "header", "expected"),
    [
        ("PUT", "/hidden/i1", (b"origin", b"http://["), (403, 403)),
        ("GET", "/metrics", (b"accept", b"application/openmetrics-text;version=x;q=y,\xff"), (200, 200)),
        ("GET", "/metrics", (b"content-length", b"9" * 5000), (200, 200)),
        ("GET", "/users/\ud800/recommendations", (b"x", b""), (422, 404)),
    ],
)
def test_odd_headers_and_paths_harm_nobody(apps, number, method, path, header, expected):
    assert asyncio.run(ask(apps[number], method, path, headers=[header])) == expected[number]
