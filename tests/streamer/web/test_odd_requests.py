"""Requests that once made a trainer's or a server's app fail; `tests/fuzz/http.py` looks for more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fuzz import http
from fuzz.http import JSON, ask


@pytest.fixture(scope="module")
def apps() -> Iterator[list[Any]]:
    with http.apps() as found:
        yield found


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
