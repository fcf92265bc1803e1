"""From the command line to the page: ports, what is printed, and what is not loaded for it."""

from __future__ import annotations

import urllib.request
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from crash_harness import TINY

from streamer.cli.run import run, watching
from streamer.errors import StreamerError
from streamer.metrics.observer import Observer
from streamer.web import live, serving
from streamer.web.live import opens_browser
from streamer.web.server import listen

QUICK = [part for part in TINY if part not in ("--event-type", "buy", "--json")]


def test_without_a_port_nobody_listens_and_nothing_is_watched():
    pipeline = SimpleNamespace(watch=lambda observer: pytest.fail("it is watched"))
    with watching("a log", "127.0.0.1", None) as watch:
        assert watch(pipeline) is None


def test_with_a_port_a_pipeline_is_watched_and_the_address_told(caplog):
    seen: list[Observer] = []
    pipeline = SimpleNamespace(watch=seen.append)
    with (
        caplog.at_level("INFO"),
        watching("a log", "127.0.0.1", 0) as watch,
    ):
        url = watch(pipeline)
        assert urllib.request.urlopen(f"{url}healthz").status == 200
    assert len(seen) == 1
    assert f"live page at {url}, metrics at {url}metrics" in caplog.text


def test_a_port_in_use_ends_the_run_before_anything_is_loaded(tmp_path):
    with listen("127.0.0.1", 0, "--") as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(run, ["--data-dir", str(tmp_path / "data"), "--metrics-port", str(port)])
        assert isinstance(result.exception, StreamerError)
        assert f"port {port} on 127.0.0.1 is in use" in str(result.exception)
    assert not (tmp_path / "data").exists()


def test_the_pages_have_every_file_of_the_package():
    static = Path(str(resources.files("streamer.web") / "static"))
    files = {str(path.relative_to(static)) for path in static.rglob("*") if path.is_file()}
    licences = {f"swagger/{name}" for name in ("LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt")}
    assert files == {*live.PAGE, *serving.PAGE, *serving.DOCS, *licences}


@pytest.mark.parametrize(
    ("environ", "terminal", "opens"),
    [
        ({"DISPLAY": ":0"}, True, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True, True),
        ({"DISPLAY": ":0"}, False, False),
        ({"DISPLAY": ":0", "CI": "1"}, True, False),
        ({"DISPLAY": ""}, True, False),
        ({}, True, False),
    ],
)
def test_a_browser_opens_only_where_somebody_sees_it(monkeypatch, environ, terminal, opens):
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: terminal))
    assert opens_browser(environ) is opens


def test_the_documentation_names_what_is_served():
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    for path in ("`/`", "`/metrics`", "`/healthz`", "`/readyz`", "`/data.json`", "--metrics-port", "--metrics-host"):
        assert path in text
