"""Redis in trouble: slow, gone, empty, old, failed over, full, read-only, closed to us. Training goes on, and in the
end everything is counted once.

The stores here exchange on threads of their own, often; what they should do is waited for, patiently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from contracts.store_trainer import Trainer, counts_before
from line_harness import PATIENCE_S, until
from redis_harness import counted, returns_soon, started
from servers.redis import LocalRedis

from streamer.cache_store.errors import StoreRefused, StoreUnavailable
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.store import CacheStore

pytestmark = pytest.mark.servers
KEYS = Keys("clicks")
P, Q = "counts:clicks[0]", "counts:clicks[1]"


@pytest.fixture
def trainer(redis: LocalRedis) -> Iterator[Callable[..., Trainer]]:
    made: list[Trainer] = []

    def make(name: str = "ada", entry: str = P, url: str = redis.url, **more: Any) -> Trainer:
        made.append(started(url, KEYS, name, **more))
        until(lambda: made[-1].store.try_exchange())
        made[-1].claim(entry, 0)
        return made[-1]

    yield make
    redis.resume()
    for trainer in made:
        trainer.store.close(timeout_s=1)


def expected(*trainers: Trainer) -> Counter[str]:
    reached: dict[str, int] = {}
    for trainer in trainers:
        for name, at in trainer.positions.items():
            reached[name] = max(at, reached.get(name, 0))
    return sum((counts_before(name, at) for name, at in reached.items()), Counter[str]())


def everything_arrives(redis: LocalRedis, *trainers: Trainer) -> None:
    """Wait until the server and everybody has every event that was trained, once."""

    def all_there() -> bool:
        for trainer in trainers:
            trainer.receive()
        have = all(trainer.view()[0] == expected(*trainers) for trainer in trainers)
        sent = not any(trainer.store.status().backlog_events for trainer in trainers)
        return have and sent and counted(redis.url, KEYS.model) == expected(*trainers)

    until(all_there)


def problem(trainer: Trainer, reason: str) -> str:
    """What a trainer says, once it has met an error of this kind."""
    until(lambda: trainer.store.status().errors.get(reason))
    return trainer.store.status().problem or ""


def test_training_never_waits_for_a_server_that_does_not_answer(redis, trainer):
    """The store would wait minutes for an answer, far longer than the test does."""
    ada, ben = trainer("ada", timeout_s=300), trainer("ben", Q)
    ada.train({P: 5}), ben.train({Q: 5})
    everything_arrives(redis, ada, ben)
    redis.pause()

    def goes_on() -> bool:
        for _ in range(50):
            ada.train({P: 2})
            ada.store.status()
        ada.save()
        return True

    assert returns_soon(goes_on)
    redis.resume()
    everything_arrives(redis, ada, ben)


def test_a_slow_server_is_reported_and_not_waited_for(redis, trainer):
    ada = trainer(timeout_s=0.2)
    redis.pause()
    ada.train({P: 301})
    assert "did not respond in time" in problem(ada, "slow")
    assert ada.store.status().backlog_events == 301
    until(lambda: not ada.store.is_live)
    assert ada.store.flush(PATIENCE_S) is False
    redis.resume()
    everything_arrives(redis, ada)
    until(lambda: ada.store.status().problem is None and ada.store.is_live)


@pytest.mark.parametrize("how", ["empty", "old"])
def test_a_server_that_comes_back_without_something_is_given_it_again(redis, trainer, how):
    ada, ben = trainer("ada", timeout_s=0.5), trainer("ben", Q, timeout_s=0.5)
    ada.train({P: 5}, draws=2), ben.train({Q: 3})
    everything_arrives(redis, ada, ben)
    if how == "old":
        with redis.client() as client:
            client.save()
    ada.train({P: 5}), ben.train({Q: 30}, draws=3)
    everything_arrives(redis, ada, ben)
    redis.kill()
    ada.train({P: 5})
    assert "cannot be reached" in problem(ada, "unreachable")
    redis.start()
    everything_arrives(redis, ada, ben)
    until(lambda: ada.receive() or ben.receive() or ada.view() == ben.view())


def test_a_failover_to_a_replica_that_lags_behind_loses_nothing(redis, trainer):
    with LocalRedis("--replicaof", "127.0.0.1", str(redis.port)) as replica, replica.client() as theirs:
        until(lambda: theirs.info("replication")["master_link_status"] == "up")
        ada, ben = trainer("ada"), trainer("ben", Q)
        ada.train({P: 5}), ben.train({Q: 3})
        everything_arrives(redis, ada, ben)
        theirs.replicaof("NO", "ONE")
        ada.train({P: 5}), ben.train({Q: 3})
        everything_arrives(redis, ada, ben)
        for one in (ada, ben):  # the name of the server leads to the replica from now on
            one.shared.server = RedisServer(replica.url, KEYS)
        everything_arrives(replica, ada, ben)


def test_a_full_server_is_reported_and_gets_the_rest_later(redis, trainer):
    ada = trainer()
    ada.train({P: 5})
    everything_arrives(redis, ada)
    with redis.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        client.config_set("maxmemory-policy", "noeviction")
        ada.train({P: 50})
        assert "maxmemory" in problem(ada, "full")
        assert counted(redis.url, KEYS.model) == counts_before(P, 5), "what was refused was refused as a whole"
        client.config_set("maxmemory", "0")
    everything_arrives(redis, ada)


def test_a_server_that_asks_for_a_password_from_now_on(redis, trainer):
    ada = trainer()
    with redis.client() as client:
        client.config_set("requirepass", "secret")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        ada.train({P: 5})
        assert "Check user and password" in problem(ada, "refused")
        client.config_set("requirepass", "")
    everything_arrives(redis, ada)


def test_something_else_under_our_keys_is_reported_and_left_alone(redis, trainer):
    ada, ben = trainer("ada"), trainer("ben", Q)
    ada.train({P: 5})
    everything_arrives(redis, ada, ben)
    with redis.client() as client:
        client.rename(KEYS.changes(P), "aside")
        client.set(KEYS.changes(P), "somebody else's")
        with pytest.raises(StoreRefused, match=r"clicks.* is damaged: a key has another type"):
            started(redis.url, KEYS, "late")
        client.delete(KEYS.changes(P))
        client.xadd(KEYS.changes(P), {"since": "0-0", "hashes": b"12345678", "values": b"123"}, "5-0")
        with pytest.raises(StoreRefused, match=r"damaged: counts:clicks\[0\] cannot be read"):
            started(redis.url, KEYS, "late")
        client.rename("aside", KEYS.changes(P))
        client.hset(KEYS.tops, "format", 99)
        with pytest.raises(StoreRefused, match="has format 99, this version reads 4"):
            started(redis.url, KEYS, "late")


def test_an_entry_that_is_lost_alone_comes_back(redis, trainer):
    """A key was deleted, or evicted against our advice; its version is still there."""
    ada = trainer("ada")
    ada.train({P: 5})
    everything_arrives(redis, ada)
    with redis.client() as client:
        client.delete(KEYS.changes(P))
    ada.train({P: 5})
    everything_arrives(redis, ada)


def test_close_sends_what_waits_and_returns_though_the_server_does_not_answer(redis, trainer):
    ada = trainer(every_s=0.2)
    ada.train({P: 5})
    ada.store.close(timeout_s=PATIENCE_S)
    ada.store.close()
    assert counted(redis.url, KEYS.model) == counts_before(P, 5)
    ben = trainer("ben", Q, timeout_s=300)
    redis.pause()
    ben.train({Q: 5})
    returns_soon(lambda: ben.store.close(timeout_s=0.5) or True)


def test_without_a_server_only_one_with_an_earlier_state_begins(redis, trainer):
    ada = trainer(every_s=3600)
    ada.train({P: 5})
    saved = ada.save()
    redis.kill()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        started(redis.url, KEYS, "ben")
    store = CacheStore(RedisServer(redis.url, KEYS, timeout_s=0.5), "ada", 0.01)
    again = Trainer(store, saved)
    store.start()
    again.shared.owned.add(P)
    again.train({P: 5})
    redis.start()
    everything_arrives(redis, again)
    store.close()


def test_a_read_only_server_is_reported(redis):
    with LocalRedis("--replicaof", "127.0.0.1", str(redis.port)) as replica:
        with replica.client() as theirs:
            until(lambda: theirs.info("replication")["master_link_status"] == "up")
        with pytest.raises(StoreUnavailable) as caught:
            started(replica.url, KEYS)
        assert caught.value.reason == "read-only"


def test_a_wrong_password_is_refused_and_not_shown(redis):
    with redis.client() as client:
        client.config_set("requirepass", "right")
        with pytest.raises(StoreRefused, match="refused to log us in") as caught:
            started(f"redis://:wr0ng@127.0.0.1:{redis.port}/0", KEYS)
        assert "wr0ng" not in str(caught.value)
        client.execute_command("AUTH", "right")
        client.config_set("requirepass", "")
