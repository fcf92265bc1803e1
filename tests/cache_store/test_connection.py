"""URLs of Redis, and what its errors mean; nothing here needs a server."""

from __future__ import annotations

import pytest
from redis import exceptions
from redis.sentinel import MasterNotFoundError

from cache_store.connection import connect, shown, translated
from cache_store.errors import StoreRefused, StoreUnavailable
from cache_store.keys import Keys
from cache_store.redis import RedisServer


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis://localhost:port/0",
        "redis://localhost/0?no_such_option=1",
        "redis+sentinel://localhost:26379",
        "redis+sentinel://localhost:26379/",
        "redis+sentinel:///name",
        "redis+sentinel://localhost:26379/name/db",
        "redis+cluster://:6379",
        "redis+cluster://localhost:port",
    ],
)
def test_a_wrong_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(StoreRefused, match="is no URL of Redis"):
        RedisServer(url, Keys("clicks"))


def test_a_message_about_a_url_names_the_schemes_and_no_password() -> None:
    with pytest.raises(StoreRefused, match="redis://, rediss://, unix://") as caught:
        connect("redi://ada:secret@host", 1.0)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://ada:secret@host", "redis://ada:***@host"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis+sentinel://ada:s@a:1,b:2/name", "redis+sentinel://ada:***@a:1,b:2/name"),
        ("unix://ada:se:cr/et@/run/redis.sock", "unix://ada:***@/run/redis.sock"),
    ],
)
def test_passwords_are_not_shown(url: str, safe: str) -> None:
    assert shown(url) == safe


def test_sentinels_may_have_account_database_and_addresses_of_any_kind() -> None:
    client = connect("redis+sentinels://ada:p%40ss@one:26380,two,[::1]:26381/clicks/3?ssl_ca_certs=ca.pem", 2.0)
    pool = client.connection_pool
    sentinels = [s.connection_pool.connection_kwargs for s in pool.sentinel_manager.sentinels]
    assert [(s["host"], s["port"]) for s in sentinels] == [("one", 26380), ("two", 26379), ("::1", 26381)]
    assert all(s.get("password") is None for s in sentinels)
    assert pool.service_name == "clicks"
    options = pool.connection_kwargs
    assert (options["username"], options["password"], options["db"]) == ("ada", "p@ss", 3)
    assert options["socket_timeout"] == 2.0
    assert options["ssl_ca_certs"] == "ca.pem"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (exceptions.TimeoutError("t"), "slow"),
        (exceptions.ConnectionError("c"), "unreachable"),
        (MasterNotFoundError("m"), "unreachable"),
        (exceptions.ClusterDownError("d"), "unreachable"),
        (exceptions.RedisClusterException("d"), "unreachable"),
        (exceptions.BusyLoadingError("LOADING"), "loading"),
        (exceptions.ReadOnlyError("r"), "read-only"),
        (exceptions.ResponseError("@user_script: 3: -READONLY You can't write"), "read-only"),
        (exceptions.OutOfMemoryError("o"), "full"),
        (exceptions.ResponseError("@user_script: 3: -OOM command not allowed"), "full"),
        (exceptions.ResponseError("MISCONF Redis is configured to save"), "broken"),
    ],
)
def test_an_error_that_may_pass_has_a_reason(error: Exception, reason: str) -> None:
    found = translated(error, "redis://host")
    assert isinstance(found, StoreUnavailable)
    assert found.reason == reason
    assert "redis://host" in str(found)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.AuthenticationError("WRONGPASS"),
        exceptions.AuthenticationError("NOAUTH"),
        exceptions.NoPermissionError("NOPERM"),
        exceptions.ResponseError("WRONGTYPE Operation against a key"),
    ],
)
def test_an_error_that_stays_is_a_refusal(error: Exception) -> None:
    assert isinstance(translated(error, "redis://host"), StoreRefused)
