"""`streamer store`, on what real trainers have put into a real Redis."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import numpy as np
import pytest
import redis
from click.testing import CliRunner, Result
from redis.exceptions import RedisClusterException, RedisError, SlotNotCoveredError
from servers.redis import RedisServer as Redis

from streamer.cache_store.errors import StoreUnavailable
from streamer.cache_store.redis.admin import StoreAdmin
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.store import CacheStore
from streamer.cli.store import store as store_group
from streamer.errors import SettingsError, SharingError

IDS = [b"tea", b"milk", "ïce".encode(), b"salt"]
ENTRY = "counts:p[0]"


class Place:
    """A namespace of its own in a Redis, and trainers that are active in it."""

    def __init__(self, url: str) -> None:
        self.url, self.namespace = url, f"test-{uuid4().hex[:8]}"
        self.client = redis.Redis.from_url(url)
        self._trainers: list[CacheStore] = []

    def keys_of(self, model: str = "shop") -> Keys:
        return Keys(model, self.namespace)

    def filled(self, model: str = "shop") -> CacheStore:
        """A trainer that has counted 7 events of 4 items."""
        trainer = CacheStore(RedisServer(self.url, self.keys_of(model)), "t", 0.01)
        self._trainers.append(trainer)
        trainer.start()
        rows, table = np.arange(4), trainer.table
        lengths = np.array([len(raw) for raw in IDS], np.int32)
        table.ids_of = lambda _: {"utf8": np.frombuffer(b"".join(IDS), np.uint8), "length": lengths}
        table.name_rows(rows)
        table.record([(ENTRY, rows, np.array([4, 1, 1, 1])), (table.own, rows, np.array([5, 0, 2**40, 0]))], {})
        trainer.shared.drawn_cache = np.array([0, 0, 0, 3])
        trainer.shared.owned.add(ENTRY)
        trainer.counted_events += 7
        table.record([], {ENTRY: (7, 0), table.own: table.next_draw()})
        assert trainer.flush(10)
        trainer.exchange()
        return trainer

    def rest(self) -> None:
        """All trainers leave."""
        for trainer in self._trainers:
            trainer.close()

    def keys(self, model: str) -> set[bytes]:
        return set(self.client.scan_iter(self.keys_of(model).pattern))

    def options(self, model: str = "shop") -> list[str]:
        return ["--redis-url", self.url, "--redis-namespace", self.namespace, "--model", model]


@pytest.fixture
def place(redis_server: Redis) -> Iterator[Place]:
    place = Place(redis_server.url)
    yield place
    place.rest()
    for key in place.client.scan_iter(f"{{{place.namespace}*"):
        place.client.delete(key)


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(store_group, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def output(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def answer(*arguments: object) -> dict:
    return json.loads(output(*arguments, "--json"))


# --- inspect -------------------------------------------------------------------------------------------------


def test_inspect_shows_what_the_trainers_of_a_model_have_counted_resampled_and_cached(place):
    place.filled()
    report = answer("inspect", *place.options())
    assert (report["items"], report["events"]) == (4, 7)
    tops = {entry["item"]: entry["events"] for entry in report["popularity"]["top"]}
    assert tops == {"tea": 4, "milk": 1, "ïce": 1, "salt": 1}
    assert report["popularity"]["top"][0] == {"item": "tea", "events": 4, "share": 4 / 7}
    assert report["occurrence"]["total"] == 5 + 2**40
    assert [entry["item"] for entry in report["occurrence"]["top"]] == ["ïce", "tea"]
    assert (report["cache"]["slots"], report["cache"]["distinct"]) == (4, 2)
    assert report["cache"]["bands"]["head"] == 0.75
    (seen,) = report["trainers"]
    assert (seen["trainer"][:2], seen["ago_s"] < 60, seen["entries"]) == ("t:", True, [ENTRY])
    counts, drawn = report["entries"]
    assert counts == {"entry": ENTRY, "version": [7, 0], "owner": seen["trainer"]}
    assert drawn["entry"] == "drawn:t"
    memory = report["memory_bytes"]
    assert {"tops", "ids", "cache", "trainers", ENTRY} <= memory.keys()
    assert memory.pop("total") == sum(memory.values())
    text = " ".join(output("inspect", *place.options()).split())
    for part in ("tea 4 57.14%", "events 7", "slots 4 distinct 2 bands head 75.00%"):
        assert part in text


def test_inspect_of_an_unknown_model_names_those_that_there_are(place):
    place.filled("shop")
    place.filled("news")
    with pytest.raises(SharingError, match=r"no model 'typo'.*there are: news, shop"):
        invoke("inspect", *place.options("typo"))


def test_inspect_of_a_redis_that_does_not_answer_says_so():
    with pytest.raises(SharingError, match="cannot be reached"):
        invoke("inspect", "--redis-url", "redis://127.0.0.1:1/0")


# --- list and reset ------------------------------------------------------------------------------------------


def test_list_names_models_with_their_items_and_trainers(place):
    place.filled("shop")
    place.client.sadd(Keys("x", place.namespace).models, "left", "ba{d")
    place.client.hset(place.keys_of("newer").tops, "format", 9)
    place.client.sadd(Keys("x", place.namespace).models, "newer")
    models = {model["model"]: model for model in answer("list", *place.options())["models"]}
    assert models["shop"] == {"model": "shop", "items": 4, "entries": 2, "trainers": 1}
    assert "none of its keys exists" in models["left"]["problem"]
    assert "without braces" in models["ba{d"]["problem"]
    assert "has format 9, this version reads 4" in models["newer"]["problem"]
    assert "shop" in output("list", *place.options())


def test_reset_removes_every_key_of_a_model_and_none_of_another(place):
    place.filled("shop")
    place.filled("shop*")
    place.rest()
    others = place.keys("shop")
    assert answer("reset", "--yes", *place.options("shop*"))["removed_keys"] >= 5
    assert not place.keys("shop*")
    assert place.keys("shop") == others
    assert [model["model"] for model in answer("list", *place.options())["models"]] == ["shop"]
    with pytest.raises(SharingError, match=r"no model 'shop\*'.*there are: shop"):
        invoke("reset", "--yes", *place.options("shop*"))


def test_reset_refuses_while_a_trainer_is_active_and_without_a_yes(place):
    place.filled()
    with pytest.raises(SharingError, match=r"trainers are active: t:.* \(counts:p\[0\]\), last seen .* ago"):
        invoke("reset", "--yes", *place.options())
    place.rest()
    with pytest.raises(SharingError, match="no terminal to ask at: give --yes"):
        invoke("reset", *place.options())
    output("reset", "--yes", *place.options())


@pytest.mark.parametrize("damage", ["type", "format", "name"])
def test_what_no_trainer_wrote_can_be_removed(place, damage):
    place.filled()
    place.rest()
    keys = place.keys_of()
    if damage == "type":
        place.client.delete(keys.tops)
        place.client.set(keys.tops, "somebody else's")
    elif damage == "format":
        place.client.hset(keys.tops, "format", "x")
    else:
        place.client.delete(*place.keys("shop"))
    with pytest.raises(SharingError, match=r"damaged|format x|none of its keys exists"):
        invoke("inspect", *place.options())
    output("reset", "--yes", *place.options())
    assert answer("list", *place.options())["models"] == []


@pytest.mark.parametrize("error", [RedisClusterException("c"), SlotNotCoveredError("s"), RedisError("r")])
def test_whatever_redis_raises_is_one_of_our_errors(place, monkeypatch, error):
    def fails(*_: object) -> None:
        raise error

    admin = StoreAdmin(place.url, place.keys_of())
    monkeypatch.setattr(admin.connected(), "smembers", fails)
    with pytest.raises(StoreUnavailable):
        admin.models()


@pytest.mark.parametrize(("typed", "left"), [(b"n\n", True), (b"y\n", False)])
def test_reset_asks_at_a_terminal(place, typed, left):
    place.filled()
    place.rest()
    terminal, theirs = pty.openpty()
    code = "from streamer.cli.store import store; store()"
    command = [sys.executable, "-c", code, "reset", *place.options()]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        asked = b""
        while b"[y/N]" not in asked and select.select([terminal], [], [], 60)[0]:
            asked += os.read(terminal, 4096)
        os.write(terminal, typed)
        process.wait(60)
    os.close(terminal)
    assert b"remove shop (4 items)" in asked
    assert bool(place.keys("shop")) == left


@pytest.mark.parametrize("command", [["list"], ["inspect"], ["reset"]])
def test_commands_without_a_redis_ask_for_one(command):
    with pytest.raises(SettingsError, match="--redis-url is missing"):
        invoke(*command)
