"""store and inspect, on what real trainers have put into a real Redis."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import numpy as np
import pytest
import redis
from click.testing import CliRunner, Result
from line_harness import run_settings
from redis.exceptions import RedisClusterException, RedisError, SlotNotCoveredError
from servers.redis import RedisServer as Redis

from streamer.build import build_pipeline
from streamer.cache_store.codec import pack_rows
from streamer.cache_store.contribution import Contribution, Increments, OffsetSpan
from streamer.cache_store.errors import StoreUnavailable
from streamer.cache_store.redis.admin import Contents, StoreAdmin
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.state import StoreSettings
from streamer.cache_store.store import CacheStore
from streamer.cli.inspect import inspect
from streamer.cli.store import store as store_group
from streamer.errors import SettingsError, SharingError

IDS = ["tea", "milk", "ïce", "salt"]
SETTINGS = StoreSettings(every_s=0.01, live_s=60)  # the machine may be busy


class Place:
    """A namespace of its own in a Redis, and trainers that are active in it."""

    def __init__(self, url: str) -> None:
        self.url, self.namespace = url, f"test-{uuid4().hex[:8]}"
        self.client = redis.Redis.from_url(url)
        self._trainers: list[CacheStore] = []

    def admin(self, model: str = "shop") -> StoreAdmin:
        return StoreAdmin(self.url, Keys(model, self.namespace))

    def trainer(self, model: str = "shop", settings: StoreSettings = SETTINGS) -> CacheStore:
        trainer = CacheStore(RedisServer(self.url, Keys(model, self.namespace)), settings, "t")
        self._trainers.append(trainer)
        trainer.start()
        return trainer

    def rest(self) -> None:
        """All trainers leave."""
        for trainer in self._trainers:
            trainer.close()

    def keys(self, model: str) -> set[bytes]:
        return {key for key in self.client.scan_iter() if key.startswith(f"{{{self.namespace}:{model}}}".encode())}

    def options(self, model: str = "shop") -> list[str]:
        return ["--redis-url", self.url, "--redis-namespace", self.namespace, "--model", model]

    def contents(self, model: str = "shop") -> Contents:
        admin = self.admin(model)
        _, contents = admin.contents()
        admin.close()
        return contents


@pytest.fixture
def place(redis_server: Redis) -> Iterator[Place]:
    place = Place(redis_server.url)
    yield place
    place.rest()
    for key in place.client.scan_iter(f"{{{place.namespace}*"):
        place.client.delete(key)


def contribution(
    rows: list[int],
    start: int = 0,
    drawn: dict[int, int] | None = None,
    cache: list[int] | None = None,
    p: str = "p[0]",
) -> Contribution:
    """One event of each of these rows, from an offset on."""
    offsets = np.arange(start, start + len(rows))
    counts = drawn or {}
    increments = Increments(np.array(list(counts), np.int64), np.array(list(counts.values()), np.int64))
    spans = (OffsetSpan(p, start, start + len(rows)),)
    kept = np.array(cache, np.int64) if cache is not None else None
    return Contribution(spans, np.zeros(len(rows), np.int32), offsets, np.array(rows, np.int64), increments, kept)


def filled(place: Place, model: str = "shop") -> CacheStore:
    """A trainer that has counted 7 events of 4 items."""
    trainer = place.trainer(model)
    trainer.claim({"p[0]": None})
    trainer.contribute(contribution([0, 0, 0, 1], 0, {0: 5, 2: 2**40}), IDS)
    trainer.contribute(contribution([0, 2, 3], 4, {2: 1}, cache=[0, 0, 0, 3]), IDS)
    assert trainer.flush(10)
    return trainer


def invoke(*arguments: object) -> Result:
    command = inspect if arguments[0] == "inspect" else store_group
    words = [str(argument) for argument in (arguments[1:] if arguments[0] == "inspect" else arguments)]
    result = CliRunner().invoke(command, words)
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
    trainer = filled(place)
    report = answer("inspect", *place.options())["store"]
    assert (report["items"], report["events"]) == (4, 7)
    tops = {entry["item"]: entry["events"] for entry in report["popularity"]["top"]}
    assert tops == {"tea": 4, "milk": 1, "ïce": 1, "salt": 1}
    assert report["popularity"]["top"][0] == {"item": "tea", "events": 4, "share": 4 / 7}
    assert report["occurrence"]["total"] == 5 + 2**40 + 1
    assert [entry["item"] for entry in report["occurrence"]["top"]] == ["ïce", "tea"]
    assert (report["cache"]["slots"], report["cache"]["distinct"]) == (4, 2)
    assert report["cache"]["bands"] == {"head": 0.75, "torso": 0.0, "tail": 0.25}
    epoch = trainer.state.partitions.epochs["p[0]"]
    (partition,) = report["partitions"]
    assert partition.pop("claimed_ago_s") < 60
    assert partition == {"partition": "p[0]", "next": 7, "epoch": epoch, "owner": trainer.state.trainer}
    (seen,) = report["trainers"]
    assert (seen["trainer"], seen["ago_s"] < 60) == (trainer.state.trainer, True)
    assert report["generation"] == place.contents().position.generation


def test_inspect_shows_log_snapshot_and_memory(place):
    filled(place)
    report = answer("inspect", *place.options())["store"]
    entries = place.client.xlen(Keys("shop", place.namespace).log)
    assert report["log"] == {"length": entries, "number": entries}
    assert report["snapshot"]["number"] == 0
    parts = {name: size for name, size in report["memory_bytes"].items() if name != "total"}
    assert report["memory_bytes"]["total"] == sum(parts.values())
    assert {"meta", "log", "items", "rows", "cache", "snapshot"} <= parts.keys()
    assert parts["log"] == place.client.memory_usage(Keys("shop", place.namespace).log)


def test_inspect_of_a_model_with_a_snapshot_counts_what_came_before_it(place):
    trainer = place.trainer(settings=replace(SETTINGS, soft_log_length=2))
    trainer.claim({"p[0]": None})
    for k in range(9):
        trainer.contribute(contribution([k % 4], k), IDS)
        assert trainer.flush(10)
    report = answer("inspect", *place.options())["store"]
    assert report["snapshot"]["number"] > 0
    assert report["snapshot"]["ago_s"] < 60
    assert report["events"] == 9


def test_inspect_is_readable(place):
    filled(place)
    text = output("inspect", *place.options())
    for part in ("tea 4 57.14%", "events 7", "slots 4 distinct 2 bands head 75.00% torso 0.00% tail 25.00%"):
        assert part in " ".join(text.split())
    assert re.search(r"partition +next +epoch +claimed ago +owner\n +p\[0\] +7 +[\d,]+ +\d+ s +t", text)
    assert "checkpoints" not in text


def test_inspect_of_an_unknown_model_names_those_that_there_are(place):
    filled(place, "shop")
    filled(place, "news")
    with pytest.raises(SharingError, match=r"no model 'typo'.*there are: news, shop"):
        invoke("inspect", *place.options("typo"))


def test_inspect_of_a_redis_that_does_not_answer_says_so():
    with pytest.raises(SharingError, match="cannot be reached"):
        invoke("inspect", "--redis-url", "redis://127.0.0.1:1/0")


def test_inspect_shows_store_and_checkpoint_if_both_are_given(place, tmp_path):
    (tmp_path / "events.jsonl").write_text('{"user_id": "u", "item_id": "tea", "timestamp": 1}\n' * 5)
    small = [
        "--dim",
        "4",
        "--set",
        "hash_slots=4096",
        "--set",
        "evaluation_share=0",
        "--threads",
        "1",
        "--device",
        "cpu",
    ]
    where = ["--source", str(tmp_path / "events.jsonl"), "--data-dir", str(tmp_path)]
    build_pipeline(run_settings(*where, *small, *place.options())).run()
    both = answer("inspect", *place.options(), "--data-dir", tmp_path)
    assert (both["store"]["events"], both["accounting"]["trained"]) == (5, 5)
    text = output("inspect", *place.options(), "--data-dir", tmp_path)
    assert {"checkpoints", "store"} <= set(text.splitlines())
    assert answer("inspect", *place.options()).keys() == {"store"}
    assert "store" not in answer("inspect", "--data-dir", tmp_path)


# --- list and reset ------------------------------------------------------------------------------------------


def test_list_names_models_with_their_items_and_trainers(place):
    filled(place, "shop")
    assert answer("list", *place.options())["models"] == [
        {"model": "shop", "items": 4, "log_length": place.client.xlen(Keys("shop", place.namespace).log), "trainers": 1}
    ]
    assert "shop" in output("list", *place.options())


def test_reset_removes_every_key_of_a_model_and_none_of_another(place):
    filled(place, "shop")
    filled(place, "shop*")
    place.rest()
    place.client.rpush(Keys("shop", place.namespace).new("items", "g"), "left over")
    place.client.rpush(Keys("shop*", place.namespace).new("items", "g"), "left over")
    others = place.keys("shop")
    assert answer("reset", "--yes", *place.options("shop*"))["removed_keys"] > 5
    assert place.keys("shop*") == set()
    assert place.keys("shop") == others
    assert place.admin().models() == ["shop"]


def test_reset_without_a_terminal_wants_a_yes(place):
    filled(place)
    place.rest()
    before = place.keys("shop")
    with pytest.raises(SharingError, match="give --yes"):
        invoke("reset", *place.options())
    assert place.keys("shop") == before


def test_reset_refuses_while_a_trainer_is_active(place):
    trainer = filled(place)
    with pytest.raises(SharingError, match=rf"trainers are active: {trainer.state.trainer}.*--force"):
        invoke("reset", "--yes", *place.options())
    assert place.contents().events == 7
    output("reset", "--yes", "--force", *place.options())
    trainer.close()


def test_a_model_is_free_as_soon_as_its_trainers_were_stopped(place):
    trainer = filled(place)
    trainer.close()
    assert answer("list", *place.options())["models"][0]["trainers"] == 0
    output("reset", "--yes", *place.options())
    assert place.keys("shop") == set()


def test_a_trainer_that_was_killed_counts_as_active_for_a_while(place):
    filled(place)
    place.rest()
    now, _ = place.client.time()
    place.client.hset(Keys("shop", place.namespace).trainers, "killed", f"{now - 5} p[0]")
    with pytest.raises(SharingError, match=r"active: killed \(p\[0\]\), last seen \d+ s ago"):
        invoke("reset", "--yes", *place.options())
    place.client.hset(Keys("shop", place.namespace).trainers, "killed", f"{now - 11} p[0]")
    output("reset", "--yes", *place.options())


def test_reset_of_an_unknown_model_names_those_that_there_are(place):
    filled(place)
    with pytest.raises(SharingError, match="there are: shop"):
        invoke("reset", "--yes", *place.options("typo"))


# --- damage --------------------------------------------------------------------------------------------------


def test_a_cache_that_is_not_ours_counts_as_none_and_is_noted(place):
    filled(place)
    key = Keys("shop", place.namespace).cache
    place.client.set(key, "garbage")
    report = answer("inspect", *place.options())["store"]
    assert (report["events"], report["cache"]["slots"]) == (7, 0)
    assert f"{key} cannot be read" in report["cache"]["note"]
    assert f"{key} cannot be read" in output("inspect", *place.options())


def test_a_cache_of_items_that_there_are_not_counts_as_none(place):
    filled(place)
    place.client.set(Keys("shop", place.namespace).cache, pack_rows(np.array([0, 4])))
    assert "it names row 4, and there are 4 items" in answer("inspect", *place.options())["store"]["cache"]["note"]


def meta_gone(client: redis.Redis, keys: Keys) -> None:
    client.delete(keys.meta)


def no_generation(client: redis.Redis, keys: Keys) -> None:
    client.hdel(keys.meta, "generation")


def no_number(client: redis.Redis, keys: Keys) -> None:
    client.hset(keys.meta, "number", "many")


def another_type(client: redis.Redis, keys: Keys) -> None:
    client.delete(keys.next)
    client.set(keys.next, "somebody else's")


def odd_trainers(client: redis.Redis, keys: Keys) -> None:
    client.hset(keys.trainers, "t", "whenever")


def odd_format(client: redis.Redis, keys: Keys) -> None:
    client.hset(keys.meta, "format", "odd")


DAMAGES = {
    meta_gone: "shop}:meta is missing",
    no_generation: "shop}:meta is missing, or names no generation",
    no_number: "its hashes hold values that no trainer writes .*many",
    another_type: "shop}:next is a string, not a hash",
    odd_trainers: "its hashes hold values that no trainer writes .*whenever",
    odd_format: "its format is 'odd'",
}


@pytest.mark.parametrize(("damage", "problem"), DAMAGES.items())
def test_a_damaged_model_is_reported_hides_no_other_and_can_be_removed(place, damage, problem):
    filled(place, "news")
    filled(place)
    place.rest()
    damage(place.client, Keys("shop", place.namespace))
    with pytest.raises(SharingError, match=f"{problem}.*store reset"):
        invoke("inspect", *place.options())
    news, shop = answer("list", *place.options())["models"]
    assert (news["items"], "problem" in news) == (4, False)
    assert (shop["items"], shop["log_length"], shop["trainers"]) == (None, None, None)
    assert re.search(problem, shop["problem"])
    assert re.search(rf"shop +- +- +-\nnote: .*{problem}", output("list", *place.options()))
    removed = invoke("reset", "--yes", *place.options())
    assert (removed.exit_code, place.keys("shop")) == (0, set())
    assert re.search(problem, removed.stderr)
    assert place.admin().models() == ["news"]


def test_a_damaged_model_is_not_removed_under_an_active_trainer(place):
    filled(place)
    place.rest()
    keys = Keys("shop", place.namespace)
    another_type(place.client, keys)
    place.client.hset(keys.trainers, "ada", f"{place.client.time()[0]} p[0]")
    with pytest.raises(SharingError, match=r"active: ada \(p\[0\]\)"):
        invoke("reset", "--yes", *place.options())
    place.client.delete(keys.trainers)
    place.client.set(keys.trainers, "nobody can tell")
    output("reset", "--yes", *place.options())


def test_a_model_of_which_only_the_name_is_left_is_reported_and_can_be_removed(place):
    filled(place)
    place.rest()
    place.client.delete(*place.keys("shop"))
    with pytest.raises(SharingError, match=r"'shop' in .* is gone: .*store reset"):
        invoke("inspect", *place.options())
    (shop,) = answer("list", *place.options())["models"]
    assert "is gone" in shop["problem"]
    assert answer("reset", "--yes", *place.options()) == {"model": "shop", "removed_keys": 0}
    assert answer("list", *place.options())["models"] == []


@pytest.mark.parametrize("lost", ["snapshot", "items", "log"])
def test_a_model_that_has_lost_a_part_is_reported(place, lost):
    filled(place)
    place.rest()
    key = getattr(Keys("shop", place.namespace), lost)
    place.client.delete(key)
    with pytest.raises(SharingError, match=key):
        invoke("inspect", *place.options())


@pytest.mark.parametrize("name", ["snapshot", "log"])
def test_what_was_not_packed_by_us_is_reported_with_its_key(place, name):
    trainer = filled(place)
    trainer.close()
    keys = Keys("shop", place.namespace)
    if name == "snapshot":
        place.client.delete(keys.snapshot)
        place.client.rpush(keys.snapshot, "garbage")
    else:
        tip = place.client.hgetall(keys.meta)
        number = int(tip[b"number"]) + 1
        place.client.xadd(keys.log, {"n": number, "b": tip[b"chain"], "c": "x", "d": b"garbage"})
        place.client.hset(keys.meta, mapping={"number": number, "chain": "x"})
    with pytest.raises(SharingError, match=f"{getattr(keys, name)} cannot be read"):
        invoke("inspect", *place.options())


def test_a_name_that_no_model_can_have_does_not_hide_the_others(place):
    filled(place)
    place.client.sadd(Keys("shop", place.namespace).models, "{odd}", b"\xff")
    found = {listed["model"]: listed for listed in answer("list", *place.options())["models"]}
    assert found["shop"]["items"] == 4
    assert "without braces" in found["{odd}"]["problem"]
    assert "problem" in found["\ufffd"]


def test_something_else_under_the_names_of_all_models_is_reported(place):
    filled(place)
    place.rest()
    key = Keys("shop", place.namespace).models
    place.client.delete(key)
    place.client.set(key, "somebody else's")
    for command in (["list"], ["reset", "--yes"]):
        with pytest.raises(SharingError, match=f"{key} is a string, not a set"):
            invoke(*command, *place.options())
    assert place.contents().events == 7


def test_a_newer_format_is_refused(place):
    filled(place)
    place.rest()
    place.client.hset(Keys("shop", place.namespace).meta, "format", 9)
    for command in (["inspect"], ["reset", "--yes"]):
        with pytest.raises(SharingError, match="format 9, this version reads 1: install a newer one"):
            invoke(*command, *place.options())
    assert "format 9" in answer("list", *place.options())["models"][0]["problem"]


@pytest.mark.parametrize("error", [RedisClusterException("c"), SlotNotCoveredError("s"), RedisError("r")])
def test_whatever_redis_raises_is_one_of_our_errors(place, monkeypatch, error):
    def fails(*_: object) -> None:
        raise error

    admin = place.admin()
    monkeypatch.setattr(admin._server._connected(), "smembers", fails)
    with pytest.raises(StoreUnavailable):
        admin.models()


@pytest.mark.parametrize(("typed", "left"), [(b"n\n", True), (b"y\n", False)])
def test_reset_asks_at_a_terminal(place, typed, left):
    filled(place)
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


@pytest.mark.parametrize("command", [["list"], ["reset"]])
def test_commands_without_a_redis_ask_for_one(command):
    with pytest.raises(SettingsError, match="--redis-url is missing"):
        invoke(*command)


# --- contents ---------------------------------------------------------------------------------------


def test_what_is_retired_is_not_part_of_the_contents(place):
    trainer = filled(place)
    trainer.retire(np.array([1]), IDS)
    trainer.exchange()
    assert answer("inspect", *place.options())["store"]["items"] == 3
    contents = place.contents()
    assert list(contents.ids) == [IDS[0], IDS[2], IDS[3]]
    assert contents.counts.tolist() == [4, 1, 1]
    assert contents.drawn.tolist() == [5, 2**40 + 1, 0]
    assert contents.cache.tolist() == [0, 0, 0, 2]


def test_contents_hold_snapshot_and_log(place):
    trainer = place.trainer(settings=replace(SETTINGS, soft_log_length=4))
    trainer.claim({"p[0]": None})
    for k in range(11):
        trainer.contribute(contribution([k % 4, 0], 2 * k, {k % 4: k}), IDS)
        assert trainer.flush(10)
    summary = place.admin().summary()
    assert 0 < summary.snapshot_number < summary.number
    contents = place.contents()
    wanted = Counter({0: 11}) + Counter(k % 4 for k in range(11))
    assert contents.counts.tolist() == [wanted[row] for row in range(4)]
    assert contents.drawn.sum() == sum(range(11))
    assert (contents.position.number, contents.next) == (summary.number, {"p[0]": 22})


def test_contents_are_of_one_moment_while_trainers_go_on_and_trim_the_log(place):
    trainers = [place.trainer(settings=replace(SETTINGS, every_s=0.001, soft_log_length=6)) for _ in range(2)]
    stop = threading.Event()

    def go_on(k: int) -> None:
        trainers[k].claim({f"p[{k}]": None})
        at = 0
        while not stop.is_set():
            trainers[k].contribute(contribution([at % 4, 3], at, {at % 4: 2}, p=f"p[{k}]"), IDS)
            trainers[k].flush(10)
            at += 2

    threads = [threading.Thread(target=go_on, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    moments = [place.contents() for _ in range(60)]
    stop.set()
    for thread in threads:
        thread.join()
    for contents in moments:
        assert contents.events == contents.counts.sum() == contents.drawn.sum() == sum(contents.next.values())
    assert moments[-1].events > moments[0].events
    assert place.admin().summary().snapshot_number > 0


def test_contents_are_read_anew_if_the_log_is_trimmed_meanwhile(place):
    trainer = place.trainer(settings=replace(SETTINGS, soft_log_length=4))
    trainer.claim({"p[0]": None})

    def go_on(first: int, last: int) -> None:
        for k in range(first, last):
            trainer.contribute(contribution([k % 4], k), IDS)
            assert trainer.flush(10)

    go_on(0, 2)
    admin, summaries = place.admin(), []

    def summary_then_lag(**options):
        summaries.append(StoreAdmin.summary(admin, **options))
        if len(summaries) == 1:
            go_on(2, 12)
        return summaries[-1]

    admin.summary = summary_then_lag
    summary, contents = admin.contents()
    assert (len(summaries), summary.snapshot_number > summaries[0].number) == (2, True)
    assert (contents.events, contents.counts.tolist()) == (12, [3, 3, 3, 3])
