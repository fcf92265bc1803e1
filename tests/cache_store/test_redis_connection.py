"""URLs of Redis, and what its errors mean; nothing here needs a server."""

from __future__ import annotations

import re

import pytest
from redis import exceptions
from redis.sentinel import MasterNotFoundError

from streamer.cache_store.errors import StoreRefused, StoreUnavailable
from streamer.cache_store.redis.connection import as_store_error, connect, without_passwords
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer


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
    with pytest.raises(StoreRefused, match="is not a valid Redis URL"):
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
        ("redis://localhost:17002?password=hunter2", "redis://localhost:17002?password=***"),
        (
            "redis://localhost?db=1&password=hun@t#er&ssl_password=x",
            "redis://localhost?db=1&password=***&ssl_password=***",
        ),
        ("redis://:p@ss:word@localhost:17002", "redis://:***@localhost:17002"),
        ("redis://:hun#ter@localhost", "redis://:***@localhost"),
        ("redis://:hun?t/er@localhost", "redis://:***@localhost"),
        ("redis://secret@localhost", "redis://***@localhost"),
        ("redis:ada:secret@localhost", "redis:***@localhost"),
        ("localhost:6379", "localhost:6379"),
        ("redis://cache/?PASSWORD=secret&db=1", "redis://cache/?PASSWORD=***&db=1"),
    ],
)
def test_passwords_are_not_shown(url: str, safe: str) -> None:
    assert without_passwords(url) == safe


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster"])
@pytest.mark.parametrize(
    "password", ["hun#ter", "hun/ter", "hun?ter", "hun[ter", "12#34", "12/34", "12?34", "hun\u2100ter"]
)
def test_a_password_that_spoils_its_url_is_not_shown_and_the_remedy_is(scheme: str, password: str) -> None:
    with pytest.raises(StoreRefused, match="percent-encode special characters of the password") as caught:
        connect(f"{scheme}://:{password}@host:1/name", 1.0)
    message = str(caught.value).replace(f"{scheme}://:***@host:1/name", "")
    assert not {"hun", "ter", "12", "34"} & set(re.findall(r"[a-z]+|\d+", message))


@pytest.mark.parametrize("url", ["redis://:p@ss:word@host:1", "redis+sentinel://:p@ss:word@host:1/name"])
def test_a_password_may_have_what_ends_no_url(url: str) -> None:
    assert connect(url, 1.0).connection_pool.connection_kwargs["password"] == "p@ss:word"


def test_options_of_sentinels_are_read_as_those_of_other_urls() -> None:
    query = "socket_timeout=2&ssl_check_hostname=false&health_check_interval=7&db=3"
    pool = connect(f"redis+sentinels://h:1/name?{query}", 5.0).connection_pool
    read = {name: pool.connection_kwargs[name] for name in ("socket_timeout", "health_check_interval", "db")}
    assert read == {"socket_timeout": 2.0, "health_check_interval": 7, "db": 3}
    assert pool.connection_kwargs["ssl_check_hostname"] is False
    (sentinel,) = pool.sentinel_manager.sentinels
    assert sentinel.connection_pool.connection_kwargs["socket_timeout"] == 2.0
    assert not sentinel.connection_pool.connection_kwargs.get("db"), "Sentinels have no databases"


def test_options_of_a_cluster_are_read_as_those_of_other_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}
    cluster = "streamer.cache_store.redis.connection.RedisCluster.__init__"
    monkeypatch.setattr(cluster, lambda self, **options: given.update(options))
    connect("redis+clusters://h:1?socket_timeout=2&ssl_check_hostname=false", 5.0)
    assert (given["socket_timeout"], given["ssl_check_hostname"], given["ssl"]) == (2.0, False, True)


@pytest.mark.parametrize("place", ["redis://h:1", "redis+sentinel://h:1/name", "redis+cluster://h:1"])
@pytest.mark.parametrize("option", ["socket_timeout=soon", "no_such=1"])
def test_a_wrong_option_is_named(place: str, option: str) -> None:
    with pytest.raises(StoreRefused, match=f"is not a valid Redis URL: .*{option.partition('=')[0]}"):
        connect(f"{place}?{option}", 5.0)


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
    found = as_store_error(error, "redis://host")
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
    assert isinstance(as_store_error(error, "redis://host"), StoreRefused)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.NoPermissionError("User ada has no permissions to run the 'evalsha' command"),
        exceptions.ResponseError("@user_script: 3: -NOPERM this user has no permissions to run the 'evalsha' command"),
    ],
)
def test_a_right_that_is_missing_is_no_wrong_password(error: Exception) -> None:
    message = str(as_store_error(error, "redis://host"))
    assert "lacks a permission" in message
    assert "'evalsha'" in message
    assert "+@all" in message
    assert "password" not in message


@pytest.mark.parametrize("text", ["user is disabled.", "user is disabled"])
def test_a_sentence_ends_with_one_dot(text: str) -> None:
    message = str(as_store_error(exceptions.AuthenticationError(text), "redis://host"))
    assert "is disabled. Check user and password" in message
