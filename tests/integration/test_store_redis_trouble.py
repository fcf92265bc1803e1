"""Redis in trouble: slow, gone, empty, old, failed over, full, read-only, closed to us. Training goes on, and in the
end everything is counted once.

The stores here exchange on threads of their own, often; what they should do is waited for, patiently.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.store_contract import P, Q
from contracts.store_trainer import Stored, Trainer, events_before, stored
from line_harness import PATIENCE_S, until
from redis_harness import returns_soon, started
from servers.redis import LocalRedis

from streamer.cache_store.codec import StoreDelta, pack_delta
from streamer.cache_store.contribution import Contribution, Increments, OffsetSpan
from streamer.cache_store.errors import Fenced, StoreRefused, StoreUnavailable
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.state import StoreSettings
from streamer.cache_store.store import CacheStore

pytestmark = pytest.mark.servers
KEYS = Keys("clicks")


@pytest.fixture
def trainer(redis: LocalRedis) -> Iterator[Callable[..., Trainer]]:
    made: list[Trainer] = []

    def make(name: str = "ada", partition: str = P, url: str = redis.url, **more: Any) -> Trainer:
        made.append(started(url, KEYS, name, **more))
        until(lambda: made[-1].claim(partition, timeout_s=PATIENCE_S))
        return made[-1]

    yield make
    redis.resume()
    for trainer in made:
        trainer.store.close(timeout_s=1)


def held(redis: LocalRedis) -> Stored | None:
    server = RedisServer(redis.url, KEYS)
    try:
        return stored(server)
    finally:
        server.close()


def everything_arrives(redis: LocalRedis, *trainers: Trainer) -> None:
    """Wait until the server and everybody has every event that was trained, once."""
    reached = {name: position for trainer in trainers for name, position in trainer.positions.items()}

    def all_there() -> bool:
        for trainer in trainers:
            trainer.receive()
        return all(trainer.view()[0] == events_before(reached) for trainer in trainers) and not any(
            trainer.store.status().backlog_events for trainer in trainers
        )

    until(all_there)
    found = held(redis)
    assert found is not None
    assert found.counts == events_before(reached)
    assert all(trainer.view() == (found.counts, found.drawn) for trainer in trainers)
    batches = {f"{t.store.state.trainer}:{k + 1}" for t in trainers for k in range(t.batches)}
    assert all(found.drawn[raw] == 1 for raw in batches), "what a batch has resampled is missing, or counted twice"


@pytest.fixture
def ada(redis: LocalRedis, trainer: Callable[..., Trainer]) -> Trainer:
    """A trainer whose first five events have arrived."""
    ada = trainer()
    ada.train({P: 5})
    everything_arrives(redis, ada)
    return ada


def test_training_never_waits_for_a_server_that_does_not_answer(redis, trainer):
    """The store would wait a minute for an answer, ten times as long as the test does."""
    ada, ben = trainer("ada", timeout_s=300), trainer("ben", Q)
    ada.train({P: 5}), ben.train({Q: 5})
    everything_arrives(redis, ada, ben)
    redis.pause()

    def goes_on() -> bool:
        for _ in range(50):
            ada.train({P: 2})
            ada.receive()
            ada.store.status()
            ada.store.release(["elsewhere"])
        ada.checkpoint()
        return True

    assert returns_soon(goes_on)
    assert ada.view()[0] == events_before({P: 105, Q: 5})
    redis.resume()
    everything_arrives(redis, ada, ben)


def test_a_slow_server_is_reported_and_the_backlog_stays_bounded(redis, trainer):
    ada = trainer(timeout_s=0.2, max_waiting=8)
    redis.pause()
    ada.train({P: 1})
    until(lambda: ada.store.status().errors.get("slow"))
    for _ in range(100):
        ada.train({P: 3})
    status = ada.store.status()
    assert status.backlog_contributions <= 8 + 2
    assert status.backlog_events == 301
    assert status.problem is not None
    assert "did not respond in time" in status.problem
    until(lambda: not ada.receive().live)
    assert ada.store.status().staleness_s > 0
    assert ada.store.claim({Q: None}, PATIENCE_S) is False, "a server that is out of touch is not waited for"
    assert ada.store.flush(PATIENCE_S) is False
    redis.resume()
    everything_arrives(redis, ada)
    until(lambda: ada.store.status().problem is None and ada.receive().live)


def test_a_server_that_is_gone_is_reported_and_found_again_empty(redis, trainer):
    ada, ben = trainer("ada", timeout_s=0.5), trainer("ben", Q, timeout_s=0.5)
    for _ in range(5):
        ada.train({P: 3}, cache=["a"]), ben.train({Q: 2})
    everything_arrives(redis, ada, ben)
    redis.kill()
    for _ in range(5):
        ada.train({P: 3}), ben.train({Q: 2})
    until(lambda: ada.store.status().errors.get("unreachable"))
    assert "cannot be reached" in (ada.store.status().problem or "")
    until(lambda: not ada.receive().live)
    redis.start()
    everything_arrives(redis, ada, ben)
    assert ada.store.status().seeds + ben.store.status().seeds >= 2


def test_a_server_that_comes_back_with_old_data_has_everything_again(redis, trainer):
    ada, ben = trainer("ada", timeout_s=0.5), trainer("ben", Q, timeout_s=0.5)
    ada.train({P: 10}), ben.train({Q: 10})
    everything_arrives(redis, ada, ben)
    with redis.client() as client:
        client.save()
    for _ in range(5):
        ada.train({P: 3}), ben.train({Q: 2})
        everything_arrives(redis, ada, ben)
    redis.kill()
    ada.train({P: 3})
    redis.start()
    ben.train({Q: 1})
    everything_arrives(redis, ada, ben)


def test_a_failover_to_a_replica_that_lags_behind_loses_nothing(redis, trainer):
    """The server becomes a replica of the one that lagged behind, takes over its data, and is promoted again."""
    ada, ben = trainer("ada"), trainer("ben", Q)
    with LocalRedis("--replicaof", "127.0.0.1", str(redis.port)) as other, other.client() as theirs:
        ada.train({P: 10})
        everything_arrives(redis, ada, ben)
        at = held(redis)
        until(lambda: (found := held(other)) is not None and at is not None and found.counts == at.counts)
        theirs.execute_command("REPLICAOF", "NO", "ONE")
        ada.train({P: 5}), ben.train({Q: 5})
        everything_arrives(redis, ada, ben)
        with redis.client() as ours:
            ours.execute_command("REPLICAOF", "127.0.0.1", str(other.port))
            ada.train({P: 5})
            until(lambda: ours.info("replication")["master_link_status"] == "up")
            ben.train({Q: 5})
            until(lambda: "is it a replica?" in (ben.store.status().problem or ""))
            assert ben.store.status().errors["read-only"] > 0
            ours.execute_command("REPLICAOF", "NO", "ONE")
        everything_arrives(redis, ada, ben)


def test_a_full_server_is_reported_and_gets_the_backlog_later(redis, trainer):
    ada = trainer()
    ada.train({P: 5})
    everything_arrives(redis, ada)
    with redis.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        client.config_set("maxmemory-policy", "noeviction")
        for _ in range(20):
            ada.train({P: 5})
        until(lambda: ada.store.status().errors.get("full"))
        assert "maxmemory" in (ada.store.status().problem or "")
        found = held(redis)
        assert found is not None
        assert found.counts == events_before(found.following), "what was refused was refused as a whole"
        client.config_set("maxmemory", "0")
    everything_arrives(redis, ada)


def test_a_server_that_asks_for_a_password_from_now_on(redis, ada):
    with redis.client() as client:
        client.config_set("requirepass", "secret")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        ada.train({P: 5})
        until(lambda: ada.store.status().errors.get("refused"))
        assert "Check user and password" in (ada.store.status().problem or "")
        assert ada.view()[0] == events_before({P: 10})
        client.config_set("requirepass", "")
    everything_arrives(redis, ada)


def test_something_else_under_a_key_of_ours_at_run_time_is_named(redis, ada):
    with redis.client() as client:
        client.rename(KEYS.next, "aside")
        client.set(KEYS.next, "somebody else's")
        ada.train({P: 5})
        until(lambda: KEYS.next in (ada.store.status().problem or ""))
        assert "is a string, not a hash" in (ada.store.status().problem or "")
        client.rename("aside", KEYS.next)
    everything_arrives(redis, ada)


def test_an_entry_that_cannot_be_read_is_reported_with_its_place(redis, trainer):
    ada = trainer()
    ada.train({P: 5})
    everything_arrives(redis, ada)
    with redis.client() as client:
        tip = client.hgetall(KEYS.meta)
        entry = client.xadd(KEYS.log, {"n": int(tip[b"number"]) + 1, "b": tip[b"chain"], "c": "x", "d": b"nonsense"})
        client.hset(KEYS.meta, mapping={"number": int(tip[b"number"]) + 1, "chain": "x"})
        until(lambda: ada.store.status().errors.get("broken"))
    assert f"entry {entry.decode()} of the store's log" in (ada.store.status().problem or "")
    ada.train({P: 5})
    assert ada.receive() is not None


def test_a_zombie_finds_out_by_itself(redis, trainer):
    ada, ben = trainer("ada"), trainer("ben", Q)
    ada.train({P: 5})
    everything_arrives(redis, ada, ben)
    until(lambda: ben.claim(P, position=5, timeout_s=PATIENCE_S))
    ada.train({P: 5})

    def is_fenced() -> bool:
        try:
            ada.receive()
        except Fenced:
            return True
        return False

    until(is_fenced)
    assert "fenced" in ada.store.status().errors
    ben.train({P: 2})
    everything_arrives(redis, ben)


def test_close_returns_though_the_server_does_not_answer(redis, trainer):
    ada = trainer(timeout_s=300)
    redis.pause()
    ada.train({P: 5})
    returns_soon(lambda: ada.store.close(timeout_s=0.5) or True)


def test_close_sends_what_waits(redis, trainer):
    ada = trainer(every_s=0.2)
    ada.train({P: 5})
    ada.store.close(timeout_s=PATIENCE_S)
    found = held(redis)
    assert found is not None
    assert found.counts == events_before({P: 5})
    ada.store.close()


class TestAtTheStart:
    def test_no_server_and_no_earlier_state_is_an_error(self, redis):
        redis.kill()
        with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
            started(redis.url, KEYS)
        assert caught.value.reason == "unreachable"
        assert str(redis.port) in str(caught.value)

    def test_no_server_but_an_earlier_state_goes_on(self, redis, trainer):
        ada = trainer("ada")
        ada.train({P: 5})
        everything_arrives(redis, ada)
        ada.train({P: 5})
        saved = ada.checkpoint()
        ada.store.close()
        redis.kill()
        store = CacheStore(RedisServer(redis.url, KEYS, timeout_s=0.5), StoreSettings(every_s=0.01, live_s=1.0))
        again = Trainer.resumed(store, "ada", saved)
        store.start()
        assert store.claim({P: None}, PATIENCE_S) is False
        assert not again.receive().live
        again.train({P: 5})
        assert again.view()[0] == events_before({P: 15})
        redis.start()
        until(lambda: store.status().live)
        found_all = events_before({P: 15})
        until(lambda: (found := held(redis)) is not None and found.counts == found_all)
        store.close()

    def test_a_read_only_server_is_reported(self, redis):
        with LocalRedis("--replicaof", "127.0.0.1", str(redis.port)) as replica:
            with replica.client() as client:
                until(lambda: client.info("replication")["master_link_status"] == "up")
            with pytest.raises(StoreUnavailable, match="is read-only") as caught:
                started(replica.url, KEYS)
            assert caught.value.reason == "read-only"

    @pytest.mark.parametrize("account", ["", ":wrong@", "nobody:wrong@"])
    def test_a_wrong_password_is_refused_and_not_shown(self, redis, account):
        with redis.client() as client:
            client.config_set("requirepass", "right")
        with pytest.raises(StoreRefused, match="refused to log us in") as caught:
            started(f"redis://{account}127.0.0.1:{redis.port}/0", KEYS)
        assert ":wrong@" not in str(caught.value)
        assert str(redis.port) in str(caught.value)

    @pytest.mark.parametrize("name", ["meta", "log", "rows", "snapshot", "cache"])
    def test_something_else_under_a_key_of_ours_is_named_and_left_alone(self, redis, name):
        key = getattr(KEYS, name)
        with redis.client() as client:
            client.zadd(key, {"somebody else's": 1})
            with pytest.raises(StoreRefused, match="not a") as caught:
                started(redis.url, KEYS)
            assert key in str(caught.value)
            assert client.zcard(key) == 1

    def test_an_entry_that_names_a_row_of_no_item_takes_no_memory_and_is_named(self, redis, ada):
        """Nobody who joins, and nobody who has joined, makes room for 300 million items because an entry says so."""
        ada.train({P: 5})
        everything_arrives(redis, ada)
        one, none = Increments(np.array([300_000_000]), np.array([1])), Increments(*np.empty((2, 0), np.int64))
        with redis.client() as client:
            number, chain = int(client.hget(KEYS.meta, "number")) + 1, client.hget(KEYS.meta, "chain")
            packed = pack_delta(StoreDelta("eve", 1, 1, (), one, none))
            client.xadd(KEYS.log, {"n": number, "b": chain, "c": "x", "d": packed})
            client.hset(KEYS.meta, mapping={"number": number, "chain": "x"})
        ben = started(redis.url, KEYS, "ben")
        for store in (ada.store, ben.store):
            until(lambda store=store: "names row 300,000,000, and there are" in (store.status().problem or ""))
            assert store.state.replica.size < 100
        ben.store.close(timeout_s=0)
        ada.train({P: 5})
        assert ada.view()[0] == events_before(ada.positions), "it trains on with its own counts"

    def test_a_snapshot_that_the_server_does_not_take_at_once_is_written_in_parts(self, redis):
        """As one of more than 512 MB with the default setting; nothing large is freed while others wait."""
        with redis.client() as client:
            client.config_set("proto-max-bulk-len", "1mb")
            client.config_resetstat()
            ids = [f"i{k}" for k in range(100_000)]
            counts = np.full(len(ids), 1 << 33)
            ada = CacheStore(RedisServer(redis.url, KEYS), StoreSettings(soft_log_length=1), "ada")
            ada.begin_with(counts, counts + 1, {P: 7}, ids)
            ada.exchange()
            Trainer(ada, "ada").claim(P, 7, timeout_s=0)
            one = Contribution((OffsetSpan(P, 7, 8),), np.zeros(1, np.int32), [7], np.array([5]))
            ada.contribute(one, ids)
            ada.exchange()
            assert ada.status().snapshots == 1
            assert client.llen(KEYS.snapshot) > 3
            ben = CacheStore(RedisServer(redis.url, KEYS), StoreSettings(), "ben")
            ben.exchange()
            assert ben.state.replica.counts.tolist() == [*counts[:5], counts[5] + 1, *counts[6:]]
            assert "cmdstat_del" not in client.info("commandstats")
            assert not client.keys(f"{KEYS.tag}:new:*")
        for store in (ada, ben):
            store.close()

    def test_an_old_copy_of_the_data_is_caught_up(self, redis, trainer, tmp_path: Path):
        """A server that was restored from a backup while nobody was there; the trainer has a later checkpoint."""
        ada = trainer("ada")
        ada.train({P: 5})
        everything_arrives(redis, ada)
        with redis.client() as client:
            client.save()
        shutil.copy(redis.home / "dump.rdb", tmp_path)
        ada.train({P: 5})
        everything_arrives(redis, ada)
        saved = ada.checkpoint()
        ada.store.close()
        redis.kill()
        shutil.copy(tmp_path / "dump.rdb", redis.home)
        redis.start()
        store = CacheStore(RedisServer(redis.url, KEYS), StoreSettings(every_s=0.01))
        again = Trainer.resumed(store, "ada", saved)
        store.start()
        until(lambda: again.claim(P, position=10, timeout_s=PATIENCE_S))
        again.train({P: 2})
        until(lambda: store.flush(PATIENCE_S))
        found = held(redis)
        assert found is not None
        assert found.counts == events_before({P: 12})
        store.close()
