"""The store over Redis: the contract, random interleavings, and what only a server does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from contracts.store_contract import P, Q, StoreContract, settle
from contracts.store_machine import StoreMachine, unhurried
from contracts.store_trainer import Backend, Trainer, events_before, stored
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from redis_harness import RedisBackend
from servers.redis import RedisServer

from streamer.cache_store.redis import server as store_redis
from streamer.cache_store.redis.schema import TYPES
from streamer.cache_store.state import StoreSettings
from streamer.cache_store.store import CacheStore

pytestmark = pytest.mark.servers


@pytest.fixture
def backend(redis_server: RedisServer) -> Iterator[RedisBackend]:
    backend = RedisBackend(redis_server.url)
    yield backend
    backend.close()


class TestRedisStore(StoreContract):
    """With the module's backend."""


def test_random_interleavings(redis_server: RedisServer) -> None:
    class RedisMachine(StoreMachine):
        def backend(self) -> Backend:
            self.redis = RedisBackend(redis_server.url)
            return self.redis

        def teardown(self) -> None:
            super().teardown()
            self.redis.close()

    run_state_machine_as_test(RedisMachine, settings=settings(unhurried, max_examples=10, stateful_step_count=40))


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


def joined(backend: RedisBackend, name: str = "ada", **more: int) -> Trainer:
    store = CacheStore(backend.connect(), StoreSettings(**more), name)
    store.exchange()
    return Trainer(store, name)


def test_it_writes_the_documented_keys_and_no_others(backend: RedisBackend, client: redis.Redis) -> None:
    ada = joined(backend)
    ada.claim(P, timeout_s=0)
    ada.train({P: 3}, cache=["a"])
    settle(ada)
    assert ada.store._server.may_snapshot("ada")
    assert ada.store._server.pause("ada")
    keys = backend.keys
    found = {key: client.type(key) for key in client.scan_iter(f"*{keys.namespace}:{keys.model}*")}
    assert found == {f"{keys.tag}:{name}": kind for name, kind in TYPES.items()}
    assert keys.model in client.smembers(keys.models)
    assert all(
        client.ttl(key) == -1 for name, key in zip(TYPES, keys.all(), strict=True) if name not in ("lease", "paused")
    )


def test_models_do_not_mix(redis_server: RedisServer) -> None:
    backends = [RedisBackend(redis_server.url) for _ in range(2)]
    ada, ben = (joined(backend, name) for backend, name in zip(backends, ("ada", "ben"), strict=True))
    ada.claim(P, timeout_s=0), ben.claim(P, timeout_s=0)
    ada.train({P: 3}), ben.train({P: 5})
    settle(ada, ben)
    assert ada.view()[0] == events_before({P: 3})
    assert ben.view()[0] == events_before({P: 5})
    for backend in backends:
        backend.close()


def test_a_snapshot_is_written_by_one_trainer_at_a_time(backend: RedisBackend, client: redis.Redis) -> None:
    ada, ben = joined(backend, "ada", soft_log_length=1), joined(backend, "ben", soft_log_length=1)
    ada.claim(P, timeout_s=0)
    assert ben.store._server.may_snapshot("ben")
    ada.train({P: 3})
    settle(ada)
    assert ada.store.status().snapshots == 0
    assert 0 < client.pttl(backend.keys.lease) <= store_redis.LEASE_MS
    client.delete(backend.keys.lease)  # ben is gone, and its lease has run out
    ada.train({P: 3})
    settle(ada)
    assert ada.store.status().snapshots == 1
    assert not client.exists(backend.keys.lease)


def test_trainers_send_heartbeats_and_are_forgotten(backend: RedisBackend, client: redis.Redis) -> None:
    client.hset(backend.keys.trainers, "long-gone", "1 clicks-7")
    ada, ben = joined(backend, "ada"), joined(backend, "ben")
    ada.claim(P, timeout_s=0), ada.claim(Q, timeout_s=0)
    ada.store._exchange._heartbeat_at = ben.store._exchange._heartbeat_at = -1e9
    settle(ada, ben)
    heartbeats = client.hgetall(backend.keys.trainers)
    assert heartbeats.keys() == {ada.store.state.trainer, ben.store.state.trainer}
    assert heartbeats[ada.store.state.trainer].split(" ", 1)[1] == f"{P}, {Q}"


def test_scripts_are_loaded_again_when_the_server_forgot_them(backend: RedisBackend, client: redis.Redis) -> None:
    ada = joined(backend)
    client.script_flush()
    ada.claim(P, timeout_s=0)
    ada.train({P: 3})
    settle(ada)
    assert ada.view()[0] == events_before({P: 3})


def test_items_that_were_lost_while_a_server_is_seeded_do_not_begin_a_generation(
    backend: RedisBackend, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is short of memory may drop keys that expire."""
    ada = joined(backend)
    ada.claim(P, timeout_s=0)
    ada.train({P: 5})
    settle(ada)
    backend.wipe()
    put = store_redis.RedisServer._put_items

    def put_and_lose(self, items: str, rows: str, ids: list[str]) -> None:
        put(self, items, rows, ids)
        client.lpop(items)

    with monkeypatch.context() as patch:
        patch.setattr(store_redis.RedisServer, "_put_items", put_and_lose)
        with pytest.raises(store_redis.StoreUnavailable, match="lost items"):
            ada.store.exchange()
    assert not client.exists(backend.keys.meta)
    assert not list(client.scan_iter(f"{backend.keys.tag}:new:*"))
    settle(ada)
    found = stored(backend.connect())
    assert found is not None
    assert found.counts == events_before({P: 5})


@pytest.mark.parametrize("replace", [False, True], ids=["join", "seed"])
def test_a_state_of_a_newer_format_is_neither_read_nor_replaced(backend: RedisBackend, client, replace) -> None:
    ada = joined(backend)
    ada.claim(P, timeout_s=0)
    ada.train({P: 5})
    settle(ada)
    client.hset(backend.keys.meta, mapping={"format": 9, "generation": "another"})
    with pytest.raises(store_redis.StoreRefused, match="format 9, this version reads 1: install a newer one"):
        ada.store.exchange() if replace else joined(backend, "ben")
    assert client.hget(backend.keys.meta, "generation") == "another"


@pytest.mark.parametrize(("policy", "warns"), [("allkeys-lru", True), ("volatile-lru", False), ("noeviction", False)])
def test_a_server_that_may_evict_our_keys_is_warned_of_once(backend, client, caplog, policy, warns) -> None:
    before = client.config_get("maxmemory-policy")["maxmemory-policy"]
    client.config_set("maxmemory-policy", policy)
    try:
        joined(backend, "ada").store.exchange()
        joined(backend, "ben").store.exchange()
    finally:
        client.config_set("maxmemory-policy", before)
    said = [r.getMessage() for r in caplog.records if "evicts keys" in r.getMessage()]
    assert len(said) == (2 if warns else 0), "once by each trainer"
    assert all("allkeys-lru" in message and "noeviction" in message for message in said)
