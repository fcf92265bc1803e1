"""The HTTP side: what is answered, to whom, under which headers, and what happens to odd requests."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from importlib import resources

import pytest
from line_harness import events, micro_batch, small, until
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from streamer.dead_letters.base import DeadLetter, Reason
from streamer.errors import StreamerError
from streamer.learner import OnlineLearner
from streamer.metrics.catalogue import CATALOGUE
from streamer.metrics.monitor import Monitor
from streamer.metrics.sampler_report import SamplerReporter
from streamer.metrics.status import Status
from streamer.sources.base import Partition
from streamer.web.app import Guard, new_app
from streamer.web.live import PAGE, SHOWN_VALUE, monitor_server, new_monitor
from streamer.web.server import MAX_CONNECTIONS, MAX_HEAD_BYTES, WebServer, listen

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def monitor() -> Monitor:
    """Of a line that has taken one step, and met a bad record."""
    found = Monitor(CollectorRegistry(), f"topic {NASTY}")
    learner = OnlineLearner(small())
    found.begin(learner, None)
    found.beat()
    batch = micro_batch([*[("u", NASTY)] * 16, *events(16)], timestamps_s=[1.7e9] * 32)
    value = NASTY.encode() + b"\xff" + b"x" * 1000
    batch.dead_letters = [DeadLetter(Reason.NOT_JSON, "no JSON", "t", 0, 5, 0, None, value)]
    learner.learn_batch(batch)
    found.trained(batch)
    sampler = SamplerReporter(learner).latest()
    found.refreshed(Status(steps=1, partitions={Partition("t", 0): 6}, lag={Partition("t", 0): 4}, sampler=sampler))
    return found


@pytest.fixture(scope="module")
def server(monitor: Monitor) -> Iterator[WebServer]:
    with monitor_server(monitor) as found:
        yield found


def ask(server: WebServer, path: str, method: str = "GET", **headers: str) -> tuple[int, Message, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


# what there is --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGE)
def test_the_page_and_its_parts_are_served_and_nothing_comes_from_elsewhere(server, name):
    status, headers, body = ask(server, "/" if name.endswith(".html") else f"/{name}")
    assert status == 200
    types = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert headers["Content-Type"].startswith(types[name.split(".")[1]])
    assert body == (resources.files("streamer.web") / "static" / name).read_bytes()
    for away in (b"http://", b"https://", b"//cdn"):
        assert away not in body.replace(b'xmlns="http://www.w3.org/2000/svg"', b"")


def test_the_page_has_no_inline_script_or_style(server):
    _, _, body = ask(server, "/")
    assert b"<style" not in body
    assert b"style=" not in body
    assert body.count(b"<script") == body.count(b"<script src=") == 3
    assert not any(name in body for name in (b"onclick", b"onload", b"onerror", b"javascript:"))


@pytest.mark.parametrize("script", ["live.js", "recommend.js", "common.js"])
def test_scripts_set_text_and_never_markup(script):
    body = (resources.files("streamer.web") / "static" / script).read_bytes()
    for way in (b"innerHTML", b"outerHTML", b"insertAdjacentHTML", b"document.write", b"eval("):
        assert way not in body


def test_plotly_is_that_of_the_installed_package(server):
    from plotly.offline import get_plotlyjs

    status, headers, body = ask(server, "/plotly.js", Accept_Encoding="gzip")
    assert status == 200
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body).decode() == get_plotlyjs()
    assert len(body) < 2_000_000
    assert "max-age" in headers["Cache-Control"]


def test_metrics_can_be_parsed_and_are_the_catalogue_beside_those_of_the_process():
    with monitor_server(new_monitor("a log")) as server:
        body = ask(server, "/metrics")[2]
    found = {f.name + ("_total" if f.type == "counter" else "") for f in text_string_to_metric_families(body.decode())}
    others = {name for name in found if name.startswith(("process_", "python_"))}
    assert found - others == set(CATALOGUE)
    assert "process_resident_memory_bytes" in others


def test_probes_answer_with_a_reason(server, monitor):
    status, headers, body = ask(server, "/healthz")
    assert (status, json.loads(body)) == (200, {"ok": True, "reason": "training"})
    assert headers["Cache-Control"] == "no-store"
    status, _, body = ask(server, "/readyz")
    assert (status, json.loads(body)["ok"]) == (200, True)


def test_a_process_that_only_starts_is_alive_and_not_ready_and_one_that_has_ended_is_neither():
    monitor = Monitor(CollectorRegistry())
    with monitor_server(monitor) as server:
        assert ask(server, "/healthz")[0] == 200
        status, _, body = ask(server, "/readyz")
        assert (status, json.loads(body)) == (503, {"ok": False, "reason": "starting"})
        assert json.loads(ask(server, "/data.json")[2])["figures"] is None
        monitor.ended()
        assert ask(server, "/healthz")[0] == ask(server, "/readyz")[0] == 503


# data -----------------------------------------------------------------------------------------------------------------


def test_data_holds_what_the_page_shows(server, monitor):
    data = json.loads(ask(server, "/data.json")[2])
    assert data["figures"]["steps"] == 1
    assert data["figures"]["lag"] == 4
    assert data["partitions"] == [{"topic": "t", "partition": 0, "position": 6, "lag": 4}]
    assert data["timeline"]["columns"][0] == "time"
    assert len(data["timeline"]["rows"]) == 1
    assert len(data["timeline"]["rows"][0]) == len(data["timeline"]["columns"])
    moment = dict(zip(data["timeline"]["columns"], data["timeline"]["rows"][0], strict=True))
    assert moment["head"] + moment["torso"] + moment["tail"] == pytest.approx(1)
    assert len(data["cache"]["curve"][0]) == 3


@pytest.mark.parametrize(("query", "span"), [("", "recent"), ("?span=run", "run")])
def test_the_whole_run_can_be_asked_for_and_what_is_not_a_number_is_null(server, query, span):
    data = json.loads(ask(server, f"/data.json{query}")[2], parse_constant=pytest.fail)
    assert data["timeline"]["span"] == span
    assert data["figures"]["loss"] is None


def test_ids_and_records_go_out_as_they_are_and_the_type_keeps_them_from_being_markup(server):
    _, headers, body = ask(server, "/data.json")
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert NASTY in json.loads(body)["source"]
    assert NASTY in [row["item"] for row in json.loads(body)["cache"]["top"]]


@pytest.mark.parametrize("show_values", [False, True])
def test_only_the_beginning_of_a_dead_letter_is_shown_and_only_where_that_is_wanted(monitor, show_values):
    with monitor_server(monitor, show_values=show_values) as server:
        (letter,) = json.loads(ask(server, "/data.json")[2])["dead_letters"]["recent"]
    value = f"{NASTY}\N{REPLACEMENT CHARACTER}{'x' * 1000}"[:SHOWN_VALUE]
    assert (letter["reason"], letter["offset"]) == ("not_json", 5)
    assert (letter["detail"], letter["value"]) == (("no JSON", value) if show_values else ("", ""))


# odd requests ---------------------------------------------------------------------------------------------------------


def test_every_answer_forbids_scripts_from_elsewhere_and_frames(server):
    for path in ("/", "/data.json", "/nothing"):
        policy = ask(server, path)[1]["Content-Security-Policy"]
        assert "script-src 'self';" in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/../server.py", "/static/live.js", "/%2e%2e/%2e%2e/etc/passwd", "/metrics/", "/%E2%80%A2x"],
)
def test_an_unknown_path_is_not_found_and_the_known_ones_are_named(server, path):
    status, _, body = ask(server, path)
    assert status == 404
    assert b"/metrics" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(server, method):
    status, headers, _ = ask(server, "/", method)
    assert status == 405
    assert headers["Allow"] == "GET"


def test_head_answers_the_length_alone(server):
    status, headers, body = ask(server, "/", "HEAD")
    assert status == 200
    assert body == b""
    assert int(headers["Content-Length"]) == len(ask(server, "/")[2])


@pytest.mark.parametrize(
    "words", [b"nonsense\r\n\r\n", b"GET http://[::bad HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", b""]
)
def test_who_speaks_no_http_harms_nobody(server, words):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass
    assert ask(server, "/healthz")[0] == 200


def test_many_at_once_are_all_answered_while_the_line_goes_on(server, monitor):
    def status(k: int) -> int:
        return ask(server, ("/metrics", "/data.json", "/healthz", "/live.js")[k % 4])[0]

    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(status, k) for k in range(64)]
        for k in range(50):
            lag = {Partition("t", n): k for n in range(k % 5)}
            monitor.refreshed(Status(steps=1, partitions=dict.fromkeys(lag), lag=lag))
        assert {answer.result() for answer in answers} == {200}


def test_a_route_that_fails_is_an_error_of_its_own(caplog):
    app = new_app()

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("inside")

    @app.get("/fine")
    def fine() -> str:
        return "fine"

    with WebServer(Guard(app), listen("127.0.0.1", 0, "--")) as server:
        status, headers, body = ask(server, "/broken")
        assert status == 500
        assert b"inside" not in body
        assert "Content-Security-Policy" in headers
        assert ask(server, "/fine")[2] == b'"fine"'
    assert "A request for /broken failed." in caplog.text
    assert "inside" in caplog.text


def test_a_request_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr("streamer.web.app.REQUEST_S", 0.05)
    app = new_app()

    @app.get("/endless")
    async def endless() -> None:
        await asyncio.Event().wait()

    with WebServer(Guard(app), listen("127.0.0.1", 0, "--")) as server:
        assert ask(server, "/endless")[0] == 408


# clients that take their time -----------------------------------------------------------------------------------------


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(65_536) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_many_slow_clients_hold_few_files_and_others_are_answered(server):
    slow = []
    try:
        for _ in range(4 * MAX_CONNECTIONS):
            slow.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            slow[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert ask(server, "/metrics")[0] == 200
        assert slow[0].recv(1) == b""
        until(lambda: sum(not is_closed(connection) for connection in slow) <= MAX_CONNECTIONS)
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_request_that_never_ends_is_ended(server, monkeypatch, begin):
    """Or never begins. Each of its bytes comes soon after the last; also where the request before it was answered."""
    monkeypatch.setattr("streamer.web.server.IDLE_S", 0.5)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(begin)

        def is_ended() -> bool:
            try:
                connection.send(b"x" if begin else b"")
            except BlockingIOError:
                return False
            except OSError:
                return True
            return is_closed(connection)

        until(is_ended)


def test_headers_without_end_are_ended(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert ask(server, "/healthz")[0] == 200


# names ----------------------------------------------------------------------------------------------------------------


LOCAL = ["localhost", "127.0.0.1", "127.8.8.8:9", "[::1]:80", "LOCALHOST:1", "a.localhost"]


@pytest.mark.parametrize(
    "name", [*LOCAL, "evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "", "["]
)
def test_only_local_names_are_answered_on_loopback(server, name):
    """A browser sends others for the page of a stranger whose name leads to 127.0.0.1."""
    status, _, body = ask(server, "/data.json", Host=name)
    assert (status, b"figures" in body) == ((200, True) if name in LOCAL else (421, False))


def test_any_name_is_answered_where_others_are_served():
    with monitor_server(Monitor(CollectorRegistry()), "0.0.0.0") as server:
        assert ask(server, "/", Host="trainer-1:9308")[0] == 200


# where it listens -----------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_and_a_host_that_is_none_are_named_with_what_to_try(server):
    with pytest.raises(StreamerError, match=rf"port {server.port} on 127.0.0.1 is in use.*--metrics-port, or 0"):
        listen("127.0.0.1", server.port, "--metrics-")
    with pytest.raises(StreamerError, match=r"--metrics-host no\.such\.host\.invalid"):
        listen("no.such.host.invalid", 0, "--metrics-")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "localhost"])
def test_the_address_is_one_that_a_browser_can_open(host):
    try:
        running = monitor_server(Monitor(CollectorRegistry()), host)
    except StreamerError:
        if ":" in host:
            pytest.skip("this machine has no IPv6")
        raise
    with running as server:
        assert urllib.request.urlopen(f"{server.url}healthz").status == 200


def test_after_the_end_the_port_is_free_again(monitor):
    with monitor_server(monitor) as first:
        port = first.port
    with monitor_server(monitor, port=port) as second:
        assert second.port == port
