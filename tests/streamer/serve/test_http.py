"""A server over HTTP: what can be asked, who may ask, and what never comes back."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from line_harness import PATIENCE_S, TOPIC, events
from serve_harness import Client, Trainer, catalogue_events, said, wait_until

import streamer
from streamer.errors import SettingsError, StreamerError
from streamer.event import NO_USER, encode
from streamer.ingest.batcher import MicroBatch
from streamer.serve.service import RecommendRequest, Service
from streamer.serve.settings import ServeSettings
from streamer.sources.base import Partition
from streamer.sources.embedded.log import EmbeddedLog
from streamer.web.recommendations import MAX_BATCH, SLICE_ITEMS, RequestBatcher
from streamer.web.serving import serving

STREAM = [*events(400, users=20, items=120), ("<b>x</b>", "a/b c?&#é"), ("<b>x</b>", "i1")]
TOKEN = "a token of sixteen characters"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory) -> Iterator[Trainer]:
    directory = tmp_path_factory.mktemp("served")
    trainer = Trainer(directory / "points")
    trainer.directory = directory
    trainer.learn(STREAM)
    yield trainer
    trainer.close()


@pytest.fixture
def client(trainer) -> Iterator[Client]:
    client = Client(trainer.directory).ready()
    yield client
    client.close()


def test_a_user_gets_what_recommend_says_with_generation_step_and_age(client, trainer):
    answer = client.get("/users/u3/recommendations?k=7")
    assert [(found["item"], found["score"]) for found in answer["items"]] == said(trainer.learner, "u3", 7)
    assert (answer["generation"], answer["step"]) == (1, trainer.learner.state.trainer.steps)
    assert answer["known"]
    assert answer["age_s"] >= 0
    had = {item for user, item in STREAM if user == "u3"}
    assert not had & {found["item"] for found in answer["items"]}
    assert had & set(client.items("u3", "exclude_seen=false&k=50"))


def test_an_unknown_user_gets_the_prior_and_an_unknown_item_a_clear_404(client):
    answer = client.get("/users/nobody/recommendations")
    assert not answer["known"]
    assert len(answer["items"]) == 10
    status, answer = client.ask("GET", "/items/no%20such%20item/similar")
    assert status == 404
    assert "no such item" in answer["detail"]


def test_ids_are_text_whatever_they_hold(client):
    answer = client.get(f"/users/{quote('<b>x</b>', safe='')}/recommendations?exclude_seen=0")
    assert answer["known"]
    assert answer["recent"][:2] == ["i1", "a/b c?&#é"]
    assert client.get(f"/items/{quote('a/b c?&#é', safe='')}/similar?k=3")["items"]


def test_a_session_gets_recommendations_without_its_items(client):
    recent = ["i1", "i2", "i5", "unheard of"]
    status, answer = client.ask("POST", "/recommendations", {"recent": recent, "k": 60, "explain": True})
    assert status == 200
    assert "unheard of" in answer["note"]
    assert answer["recent"] == ["i5", "i2", "i1"]
    found = [item["item"] for item in answer["items"]]
    assert len(set(found)) == len(found) > 40
    assert not set(recent) & set(found)
    near = {near["item"] for item in answer["items"] for near in item["reasons"]["recent"]}
    assert near
    assert near <= set(recent)
    assert answer["items"][0]["reasons"]["parts"].keys() == {"co-occurrence", "popularity", "own history", "towers"}


def test_several_at_once_are_answered_as_one_by_one(client):
    queries = [{"user": "u3", "k": 5}, {"recent": ["i1"], "k": 3}, {"user": "nobody", "k": 2}]
    status, answer = client.ask("POST", "/recommendations/batch", {"queries": queries})
    assert status == 200
    assert [len(each["items"]) for each in answer["answers"]] == [5, 3, 2]
    assert [item["item"] for item in answer["answers"][0]["items"]] == client.items("u3", "k=5")


def test_excluded_items_do_not_come_back(client):
    best = client.items("u3")
    rest = "&".join(f"exclude={item}" for item in best[:3])
    assert client.items("u3", f"{rest}&k=7") == best[3:]


def test_hiding_is_written_to_the_catalogue_and_refused_where_there_is_none(client, trainer, tmp_path):
    for method in ("PUT", "DELETE"):
        status, answer = client.ask(method, "/hidden/i1")
        assert status == 409
        assert "--catalogue-topic" in answer["detail"]
    assert client.get("/hidden") == {"hidden": []}
    EmbeddedLog(tmp_path).create_topic("items", 1)
    catalogue = {"data_dir": tmp_path, "catalogue_topic": "items", "tail": False}
    with_catalogue = Client(trainer.directory, **catalogue).ready()
    odd = "a/b c?&#é"
    for method in ("PUT", "DELETE"):
        assert with_catalogue.ask(method, f"/hidden/{quote(odd, safe='')}")[0] == 202
    with_catalogue.close()
    written = catalogue_events(tmp_path)
    assert written.items == [odd, odd]
    assert written.item_features == [{"hidden": 1.0}, {"hidden": 0.0}]


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Iterator[tuple[Trainer, Client]]:
    """Items with a category and a price."""
    directory = tmp_path_factory.mktemp("shop")
    trainer = Trainer(directory / "points", item_attributes=("category", "price"))
    trainer.learn(STREAM)
    described = [(f"i{n}", {"category": "tea" if n % 10 else "rare", "price": float(n)}) for n in range(120)]
    batch = MicroBatch([NO_USER] * 120, [item for item, _ in described], [1e9] * 120)
    batch.item_features = [said for _, said in described]
    trainer.learner.features.learn_catalogue(batch)
    trainer.learn(STREAM[:40])
    client = Client(directory).ready()
    wait_until(lambda: client.get("/status")["step"] == trainer.learner.state.trainer.steps, "following")
    yield trainer, client
    client.close()
    trainer.close()


def test_a_filter_is_a_parameter_or_part_of_a_body(shop):
    client = shop[1]
    rare = {f"i{n}" for n in range(0, 60, 10)}
    found = client.items("u3", "filter=category:rare&filter=price%3C60&exclude_seen=0")
    assert set(found) == rare
    wanted = {"and": ["category:rare", {"or": ["price<60", "price:200"]}]}
    queries = [{"user": "u3", "filter": wanted, "exclude_seen": False}, {"user": "u3", "filter": "colour:red"}]
    assert [item["item"] for item in client.ask("POST", "/recommendations", queries[0])[1]["items"]] == found
    answers = client.ask("POST", "/recommendations/batch", {"queries": queries})[1]["answers"]
    assert [item["item"] for item in answers[0]["items"]] == found
    assert "known are category, price" in answers[1]["error"]
    limited = client.items("u3", "max_per=category:2&k=10")
    assert len(limited) == 5  # of tea and rare two each, and one of no category


@pytest.mark.parametrize(
    "asked", ["filter=colour:red", "filter=tea", "filter=", "max_per=category", "max_per=colour:2"]
)
def test_a_filter_that_cannot_be_applied_is_a_400_that_says_why(shop, asked):
    status, answer = shop[1].ask("GET", f"/users/u3/recommendations?{asked}")
    assert status == 400
    assert "known are category, price" in answer["detail"] or "write an attribute" in answer["detail"]
    assert shop[1].items("u3")


def test_a_page_repeats_nothing_that_pages_before_showed_whatever_was_learned_meanwhile(shop):
    trainer, client = shop
    whole = client.items("u3", "k=40")
    other = Client(client.settings.data_dir).ready()
    assert other.items("u3", "k=10&offset=10") == whole[10:20]  # it has shown nothing yet
    assert other.items("u3", "k=10&offset=20") == whole[20:30]
    other.close()
    shown = []
    for offset in range(0, 40, 10):
        page = client.items("u3", f"k=10&offset={offset}")
        assert not set(page) & set(shown)
        shown += page
        trainer.learn([(f"u{n}", whole[-1]) for n in range(10)])
        wait_until(lambda: client.get("/status")["step"] == trainer.learner.state.trainer.steps, "following")
    assert len(shown) == 40
    assert client.items("u3", "k=40") != whole


def test_what_a_user_did_a_moment_ago_counts_before_it_is_learned(client, trainer):
    log = EmbeddedLog(trainer.directory)
    log.create_topic(TOPIC, 1)
    now = time.time()
    streamer.Learner(trainer.learner).learn([("u4", "i1", now)])
    trainer.positions = {Partition(TOPIC, 0): 0}
    trainer.publish()
    wait_until(lambda: client.get("/status")["step"] == trainer.learner.state.trainer.steps, "following")
    log.append(TOPIC, [(b"u3", encode("u3", f"i{n}", now + n), round(now * 1000)) for n in (7, 8)])
    wait_until(lambda: client.get("/users/u3/recommendations")["recent"][:2] == ["i8", "i7"], "seeing")
    assert client.get("/users/u3/recommendations")["step"] == trainer.learner.state.trainer.steps
    assert client.get("/status")["events_not_learned"] == 2
    assert not {"i7", "i8"} & set(client.items("u3", "k=50"))
    streamer.Learner(trainer.learner).learn([("u3", "i7", now + 7), ("u3", "i8", now + 8)])
    trainer.positions = {Partition(TOPIC, 0): 2}
    trainer.publish()
    wait_until(lambda: not client.get("/status")["events_not_learned"], "learning")
    assert client.get("/users/u3/recommendations")["recent"][:2] == ["i8", "i7"]
    wait_until(lambda: client.get("/status")["freshness"]["vectors_s"]["count"] == 2, "counting")
    assert client.get("/status")["freshness"]["recent_items_s"]["count"] == 2


def test_metrics_and_the_description_of_the_interface_are_there(client):
    client.items("u3")
    metrics = client.get("/metrics")
    assert 'streamer_server_requests_total{path="/users/{user:path}/recommendations",status="200"}' in metrics
    assert "streamer_server_ready 1.0" in metrics
    assert {"/users/{user}/recommendations", "/recommendations", "/items/{item}/similar", "/hidden/{item}"} <= {
        path.replace(":path", "") for path in client.get("/openapi.json")["paths"]
    }


def test_health_and_other_requests_are_answered_while_a_large_batch_is_computed(client, monkeypatch):
    """The batch is computed slice by slice; a request that comes later gets its turn before the next slice."""
    computed: list[list[str]] = []
    asked: list[str] = []
    begun, go_on = threading.Event(), threading.Event()
    compute, recommend = Service.recommend_all, RequestBatcher.recommend

    async def recommend_noted(batcher, request):
        asked.append(request.user)
        return await recommend(batcher, request)

    def compute_later(service, requests):
        computed.append([request.user for request in requests])
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return compute(service, requests)

    monkeypatch.setattr("streamer.web.app.REQUEST_S", PATIENCE_S)
    monkeypatch.setattr(Service, "recommend_all", compute_later)
    monkeypatch.setattr(RequestBatcher, "recommend", recommend_noted)
    queries = [{"user": f"u{n}", "k": SLICE_ITEMS // 2, "explain": True} for n in range(4)]
    with ThreadPoolExecutor(2) as pool:
        batch = pool.submit(client.ask, "POST", "/recommendations/batch", {"queries": queries})
        try:
            assert begun.wait(PATIENCE_S)
            single = pool.submit(client.items, "later")
            for path in ("/healthz", "/readyz", "/metrics", "/status", "/hidden", "/"):
                assert client.ask("GET", path)[0] == 200
            wait_until(lambda: "later" in asked, "the second request")
            assert not batch.done()
        finally:
            go_on.set()
        assert len(single.result()) == 10
        status, answer = batch.result()
    assert status == 200
    assert len(answer["answers"]) == 4
    assert computed == [["u0", "u1"], ["later"], ["u2", "u3"]]


def test_a_batch_is_of_one_generation_also_if_a_trainer_starts_between_its_slices():
    generations = iter([1, 2, 2, 2])

    def recommend_all(requests):
        generation = next(generations)
        return [{"generation": generation, "for": request.user} for request in requests]

    async def ask() -> list[Any]:
        batcher = RequestBatcher(SimpleNamespace(recommend_all=recommend_all))
        return await batcher.recommend_all([RecommendRequest(user=f"u{n}") for n in range(MAX_BATCH + 1)])

    answers = asyncio.run(ask())
    assert {answer["generation"] for answer in answers} == {2}
    assert [answer["for"] for answer in answers] == [f"u{n}" for n in range(MAX_BATCH + 1)]


def test_requests_that_wait_together_are_computed_together_and_an_error_is_that_of_each():
    sizes = []

    def recommend_all(requests):
        sizes.append(len(requests))
        if requests[0].user == "u0":
            raise StreamerError("not now")
        return [{"for": request.user} for request in requests]

    async def ask(count: int) -> list[Any]:
        batcher = RequestBatcher(SimpleNamespace(recommend_all=recommend_all))
        requests = [batcher.recommend(RecommendRequest(user=f"u{n}")) for n in range(count)]
        return await asyncio.gather(*requests, return_exceptions=True)

    answers = asyncio.run(ask(MAX_BATCH + 2))
    assert sizes == [MAX_BATCH, 2]
    assert {str(answer) for answer in answers[:MAX_BATCH]} == {"not now"}
    assert answers[MAX_BATCH:] == [{"for": f"u{MAX_BATCH}"}, {"for": f"u{MAX_BATCH + 1}"}]


class TestLimits:
    @pytest.mark.parametrize(
        ("method", "path", "body", "status"),
        [
            ("GET", "/users/u3/recommendations?k=0", None, 422),
            ("GET", "/users/u3/recommendations?k=100000", None, 422),
            ("GET", f"/users/{'x' * 300}/recommendations", None, 422),
            ("POST", "/recommendations", {"recent": ["i1"] * 1001}, 422),
            ("POST", "/recommendations/batch", {"queries": [{"user": "u3"}] * 101}, 422),
            ("POST", "/recommendations/batch", {"queries": [{"user": "u3", "k": 1000}] * 11}, 400),
            ("POST", "/recommendations", {"recent": ["x" * 200] * 9000}, 413),
            ("GET", "/nothing", None, 404),
        ],
    )
    def test_what_is_too_much_is_refused(self, client, method, path, body, status):
        assert client.ask(method, path, body)[0] == status
        assert client.items("u3")

    @pytest.mark.parametrize(
        ("method", "path", "body", "meant"),
        [
            ("GET", "/users/u3/recommendations?kk=3", None, "parameter `kk`: did you mean `k`?"),
            ("GET", "/users/u3/recommendations?k=3&exclude_sen=0", None, "did you mean `exclude_seen`?"),
            ("GET", "/items/i1/similar?limit=3", None, "`limit`: Known are `explain`, `k`."),
            ("GET", "/status?user=u3", None, "Known are `last_s`."),
            ("GET", "/hidden?k=3", None, "`k`: there are none here."),
            (
                "POST",
                "/recommendations",
                {"user": "u3", "exclude_sen": False},
                "key `exclude_sen`: did you mean `exclude_",
            ),
            ("POST", "/recommendations/batch", {"queries": [{"user": "u3"}, {"usr": "u3"}]}, "did you mean `user`?"),
            ("POST", "/recommendations/batch", {"query": [{"user": "u3"}]}, "did you mean `queries`?"),
            ("POST", "/recommendations", {"recents": ["i1"], "\ud800" * 999: 1}, "did you mean `recent`?"),
            ("POST", "/recommendations?k=5", {"user": "u3"}, "parameter `k`: there are none here."),
        ],
    )
    def test_a_name_that_is_not_known_is_refused_with_the_nearest_one(self, client, method, path, body, meant):
        status, answer = client.ask(method, path, body)
        assert status == 400
        assert meant in answer["detail"]

    def test_a_body_without_a_length_is_cut_off(self, client):
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
            head = "POST /recommendations HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head.encode())
            piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
            try:
                for _ in range(40):
                    connection.sendall(piece)
            except OSError:
                pass
            assert b" 413 " in connection.recv(1000)

    def test_pages_of_strangers_are_refused(self, client):
        assert client.ask("GET", "/users/u3/recommendations", Host="evil.example")[0] == 421
        for origin in ("https://evil.example", "http://[", "null"):
            assert client.ask("PUT", "/hidden/i1", Origin=origin)[0] == 403

    def test_a_token_is_asked_for_but_for_health(self, trainer):
        client = Client(trainer.directory, token=TOKEN).ready()
        for path in ("/users/u3/recommendations", "/metrics", "/status", "/openapi.json"):
            assert client.ask("GET", path)[0] == 401
            assert client.ask("GET", path, Authorization="Bearer of bad news")[0] == 401
            assert client.ask("GET", path, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert client.ask("PUT", "/hidden/i1")[0] == 401
        assert client.ask("GET", "/healthz")[0] == 200
        client.close()

    def test_only_this_machine_may_ask_without_a_token(self, tmp_path):
        for host in ("0.0.0.0", "192.0.2.1", "::"):
            with pytest.raises(SettingsError, match="token"), serving(ServeSettings(from_dir=tmp_path, host=host)):
                pass

    def test_a_port_in_use_is_said_so(self, client, trainer):
        settings = ServeSettings(from_dir=trainer.directory, data_dir=trainer.directory, port=client.port)
        with pytest.raises(StreamerError, match="--port"), serving(settings):
            pass


class TestNothingToServe:
    """What is wrong with where a server looks is said at once, in the log and by `/readyz`."""

    @pytest.fixture
    def asked(self, tmp_path, caplog) -> Iterator[Callable[..., str]]:
        clients = []

        def readyz(*expected: str, **settings: Any) -> str:
            client = Client(tmp_path, **settings)
            clients.append(client)
            for words in expected:
                wait_until(lambda words=words: words in client.ask("GET", "/readyz")[1]["reason"], "saying so")
                wait_until(lambda words=words: words in caplog.text, "logging it")
            status, answer = client.ask("GET", "/readyz")
            return f"{status} {answer['reason']}"

        with caplog.at_level("WARNING"):
            yield readyz
        for client in clients:
            client.close()

    def test_a_directory_that_is_not_there_is_named_with_the_trainers_option(self, asked, tmp_path):
        said = asked("there is no directory", tail=False)
        assert said.startswith(f"503 Nothing to serve yet: there is no directory {tmp_path / 'points'}.")
        assert said.endswith(f"Start the trainer with --publish-dir {tmp_path / 'points'}.")

    def test_a_directory_without_state_is_named_with_the_checkpoints_beside_it(self, asked, tmp_path):
        (tmp_path / "points").mkdir()
        (tmp_path / "checkpoints").mkdir()
        said = asked("holds no whole state", tail=False)
        assert said.endswith(f"or serve its checkpoints with --checkpoint-dir {tmp_path / 'checkpoints'}.")

    def test_a_topic_that_is_not_there_is_named_also_before_anything_is_published(self, asked, tmp_path):
        EmbeddedLog(tmp_path).create_topic("clicks", 1)
        said = asked("there is no topic 'click'", "Nothing to serve", topics=("click",))
        assert said.startswith("503 Nothing to serve yet")
        assert "(there: 'clicks')" in said

    def test_a_topic_that_is_not_there_keeps_a_server_from_being_ready_until_it_is(self, tmp_path):
        log = EmbeddedLog(tmp_path)
        log.create_topic("clicks", 1)
        trainer = Trainer(tmp_path / "points")
        trainer.learn(STREAM)
        trainer.close()
        client = Client(tmp_path, topics=("click",))
        wait_until(lambda: client.get("/status")["items"] and client.get("/status")["reason"].startswith("Users"))
        status, answer = client.ask("GET", "/readyz")
        assert (status, answer["ok"]) == (503, False)
        assert answer["reason"].startswith("Users' latest events are not read: there is no topic 'click'")
        assert client.items("u3")
        log.create_topic("click", 1)
        assert client.ready().ask("GET", "/readyz")[1] == {"ok": True, "reason": ""}
        client.close()

    def test_without_a_log_of_events_what_is_published_is_served_with_a_word_about_it(self, tmp_path, trainer):
        client = Client(tmp_path, from_dir=trainer.directory / "points").ready()
        wait_until(lambda: "there is no log of events" in client.get("/readyz")["reason"], "saying so")
        client.close()
