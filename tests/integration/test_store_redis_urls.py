"""Every way to Redis that a URL can name: with user and password, by socket, by TLS, by Sentinels, by cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trustme
from contracts.store_trainer import Trainer, counts_before
from line_harness import until
from redis_harness import started
from servers.redis import LocalRedis, LocalSentinel, TlsEndpoint, local_cluster

from streamer.cache_store.errors import StoreRefused, StoreUnavailable
from streamer.cache_store.redis.schema import Keys

pytestmark = pytest.mark.servers
KEYS = Keys("clicks")
P, Q = "counts:clicks[0]", "counts:clicks[1]"


@pytest.fixture
def tls(redis: LocalRedis, tmp_path: Path) -> Iterator[TlsEndpoint]:
    with TlsEndpoint(redis, tmp_path / "authority.pem") as endpoint:
        yield endpoint


def assert_shared(url: str) -> None:
    """Two trainers count together."""
    ada, ben = started(url, KEYS, "ada", timeout_s=10), started(url, KEYS, "ben", timeout_s=10)
    try:
        ada.claim(P, 0), ben.claim(Q, 0)
        ada.train({P: 5}), ben.train({Q: 3})
        ada.shared.drawn_cache = np.array([0])
        until(lambda: both_have(ada, ben, {P: 5, Q: 3}))
        until(lambda: ben.shared.take_cache() is not None)
    finally:
        ada.store.close(), ben.store.close()


def both_have(ada: Trainer, ben: Trainer, reached: dict[str, int]) -> bool:
    ada.receive(), ben.receive()
    expected = sum((counts_before(name, at) for name, at in reached.items()), Counter())
    return ada.view()[0] == ben.view()[0] == expected


def test_a_server_by_host_and_port(redis: LocalRedis) -> None:
    assert_shared(redis.url)
    assert_shared(f"redis://localhost:{redis.port}/3")


def test_a_server_by_its_socket(redis: LocalRedis) -> None:
    assert_shared(f"unix://{redis.socket}?db=1")


def test_a_server_with_user_and_password_that_may_touch_our_keys_only(redis: LocalRedis) -> None:
    """These rights are enough."""
    with redis.client() as client:
        rights = ["on", ">p@ss:w/rd", "~{streamer:clicks}:*", "~{streamer}:models", "+@all", "-@admin", "-@dangerous"]
        client.execute_command("ACL", "SETUSER", "trainer", *rights)
        client.execute_command("ACL", "SETUSER", "default", "off")
    assert_shared(f"redis://trainer:p%40ss%3Aw%2Frd@127.0.0.1:{redis.port}/0")


def test_a_user_without_permissions_is_refused(redis: LocalRedis) -> None:
    with redis.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~other:*", "+@all")
    with pytest.raises(StoreRefused, match=r"lacks a permission: .*permissions.* It needs the keys ~") as caught:
        started(f"redis://reader:secret@127.0.0.1:{redis.port}/0", KEYS)
    assert "secret" not in str(caught.value)


def test_a_command_that_a_user_may_not_call_is_named(redis: LocalRedis) -> None:
    with redis.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-eval")
    with pytest.raises(StoreRefused, match=r"lacks a permission: .*'eval'"):
        started(f"redis://reader:secret@127.0.0.1:{redis.port}/0", KEYS)


def test_a_server_by_tls(tls: TlsEndpoint) -> None:
    assert_shared(f"rediss://127.0.0.1:{tls.port}/0?ssl_ca_certs={tls.authority}")


def test_a_server_by_tls_that_somebody_else_has_signed_is_not_trusted(tls: TlsEndpoint, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    for ca in (f"?ssl_ca_certs={tmp_path / 'other.pem'}", "", f"?ssl_ca_certs={tmp_path / 'missing.pem'}"):
        with pytest.raises(StoreUnavailable) as caught:
            started(f"rediss://127.0.0.1:{tls.port}/0{ca}", KEYS)
        assert caught.value.reason == "unreachable"


def test_a_cluster(redis: LocalRedis) -> None:
    """One node refuses keys of several slots in one operation as well as many do."""
    with local_cluster() as node:
        assert_shared(f"redis+cluster://127.0.0.1:{node.port}")
        assert_shared(f"redis+cluster://127.0.0.1:{node.port}?socket_timeout=9")


def test_a_cluster_that_is_gone() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        started("redis+cluster://127.0.0.1:1", KEYS)
    assert caught.value.reason == "unreachable"


def test_the_master_that_sentinels_name(redis: LocalRedis) -> None:
    with LocalSentinel(redis, "clicks") as sentinel:
        assert_shared(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/clicks")
        assert_shared(f"redis+sentinel://127.0.0.1:{sentinel.port}/clicks?socket_timeout=9&db=2")
        with pytest.raises(StoreUnavailable, match="unknown") as caught:
            started(f"redis+sentinel://127.0.0.1:{sentinel.port}/unknown", KEYS)
        assert caught.value.reason == "unreachable"


def test_a_failover_by_sentinels_loses_nothing(redis: LocalRedis) -> None:
    with (
        LocalRedis("--replicaof", "127.0.0.1", str(redis.port)) as replica,
        replica.client() as theirs,
        LocalSentinel(redis, "clicks") as sentinel,
        sentinel.client() as watcher,
    ):
        until(lambda: theirs.info("replication")["master_link_status"] == "up")
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/clicks"
        ada, ben = started(url, KEYS, "ada"), started(url, KEYS, "ben")
        ada.claim(P, 0), ben.claim(Q, 0)
        ada.train({P: 5}), ben.train({Q: 3})
        until(lambda: both_have(ada, ben, {P: 5, Q: 3}))
        until(lambda: len(watcher.execute_command("SENTINEL", "REPLICAS", "clicks")) == 1)
        redis.kill()
        ada.train({P: 5}), ben.train({Q: 3})
        until(lambda: theirs.info("replication")["role"] == "master")
        until(lambda: both_have(ada, ben, {P: 10, Q: 6}))
        until(lambda: not ada.store.status().backlog_events and not ben.store.status().backlog_events)
        ada.store.close(), ben.store.close()
