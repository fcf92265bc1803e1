"""Connections to Redis by URL, and what its errors mean.

| URL                                                          | connects to                                     |
|--------------------------------------------------------------|-------------------------------------------------|
| `redis://[user:password@]host[:port][/db]`                   | a server                                        |
| `rediss://...?ssl_ca_certs=ca.pem`                           | a server, by TLS                                |
| `unix://[user:password@]/path/to/socket?db=0`                | a server on this machine                        |
| `redis+sentinel://[user:password@]host:port,host:port/name[/db]` | the master that Sentinels call `name`       |
| `redis+cluster://[user:password@]host:port`                  | a Redis Cluster, by any of its nodes            |

`redis+sentinels://` and `redis+clusters://` are the same by TLS. Options after a `?`
are those of redis-py. In a password, characters that mean something in a URL are
percent-encoded: `@` is `%40`, `:` `%3A`, `/` `%2F`, `?` `%3F`, `#` `%23`.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode, RedisCluster
from redis.connection import URL_QUERY_ARGUMENT_PARSERS, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from streamer.cache_store.errors import StoreError, StoreRefused, StoreUnavailable

ERRORS = (exceptions.RedisError, exceptions.RedisClusterException)
"""Everything that redis-py raises."""
SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "redis+sentinels",
    "redis+cluster",
    "redis+clusters",
)
ENCODE = "write host:port, and percent-encode special characters of the password (@ as %40, / as %2F, # as %23)"
PERMISSIONS = "the keys ~{<namespace>:<model>}:* and ~{<namespace>}:models, and the commands +@all -@admin -@dangerous"
"""That a user of Redis needs."""
UNREACHABLE = "cannot be reached: {}; is it running, and is the URL right?"


def connect(url: str, timeout_s: float) -> Any:
    """A client for a URL. Only a cluster is contacted at once.

    Raises:
        StoreRefused: the URL is wrong.
        StoreUnavailable: no node of a cluster responds.
    """
    options = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        scheme, account, hosts, rest = _parts(url)
        if scheme.startswith("redis+cluster"):
            return _cluster(hosts, options | _options(scheme, account, rest))
        if scheme.startswith("redis+sentinel"):
            client = _sentinel(scheme, account, hosts, rest, options)
        else:
            client = redis.Redis.from_url(url, **options)
        client.connection_pool.make_connection()  # does not connect, but checks the options
        return client
    except (ValueError, TypeError) as error:
        raise StoreRefused(
            f"{without_passwords(url)} is not a valid Redis URL: {error}"
        ) from error
    except ERRORS as error:
        raise as_store_error(error, without_passwords(url)) from error


def _parts(url: str) -> tuple[str, str, list[str], str]:
    """Scheme, account with its `@`, hosts with their ports, and what follows. An error
    does not quote urllib's, which may hold a part of a password.

    Raises:
        ValueError: the URL cannot be read, or a password has characters that cut it
            off.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ValueError(f"begin with one of {', '.join(s + '://' for s in SCHEMES)}")
    place = re.split("[/?#]", rest, maxsplit=1)[0]
    rest = rest.removeprefix(place)
    account, at, named = place.rpartition("@")
    hosts = named.split(",")
    try:
        for host in hosts:
            _ = urlsplit(f"//{account}{at}{host}").port
    except ValueError:
        raise ValueError(f"host and port cannot be read; {ENCODE}") from None
    path, _, query = rest.partition("?")
    options = [option.partition("=")[0] for option in query.split("&")]
    if "#" in rest or "@" in "".join(options) or (place and "@" in path):
        raise ValueError(f"it has an @ or # where none is allowed; {ENCODE}")
    return scheme, account + at, hosts, rest


def _options(scheme: str, account: str, rest: str) -> dict[str, Any]:
    """User, password, database and options, as redis-py reads them from its own URLs."""
    found: dict[str, Any] = parse_url(f"redis://{account}host{rest}")  # type: ignore[no-untyped-call]
    found.pop("host")
    return found | ({"ssl": True} if scheme.endswith("s") else {})


def _sentinel(
    scheme: str, account: str, hosts: list[str], rest: str, options: dict[str, Any]
) -> Any:
    path, _, query = rest.partition("?")
    name, _, db = path.strip("/").partition("/")
    if not name:
        raise ValueError("name the master: redis+sentinel://host:26379/NAME")
    if db and not db.isdecimal():
        raise ValueError(
            "only the number of a database may follow the name of the master"
        )
    options = options | _options(scheme, account, f"/{db}?{query}")
    of_sentinels = dict(options)
    for name_of_option in ("username", "password", "db"):
        of_sentinels.pop(name_of_option, None)
    places = [_place(host, 26379) for host in hosts]
    sentinel = Sentinel(places, sentinel_kwargs=of_sentinels, **options)  # type: ignore[no-untyped-call]
    return sentinel.master_for(name)  # type: ignore[no-untyped-call]


def _cluster(hosts: list[str], options: dict[str, Any]) -> Any:
    known = {*REDIS_ALLOWED_KEYS, *URL_QUERY_ARGUMENT_PARSERS, "ssl"} - {"db"}
    if unknown := options.keys() - known:  # redis-py would ignore it silently
        raise ValueError(f"a cluster has no option {', '.join(sorted(unknown))}")
    nodes = [ClusterNode(*_place(host, 6379)) for host in hosts]  # type: ignore[no-untyped-call]
    return RedisCluster(startup_nodes=nodes, **options)


def _place(host: str, port: int) -> tuple[str, int]:
    address = urlsplit(f"//{host}")
    if not address.hostname:
        raise ValueError(f"a host is missing; {ENCODE}")
    return address.hostname, address.port or port


def without_passwords(url: str) -> str:
    """A URL for messages. What may belong to a password is left out, too.

    Examples:
        >>> without_passwords("redis://ada:p@ss@cache:6379/0?ssl_password=secret&db=1")
        'redis://ada:***@cache:6379/0?ssl_password=***&db=1'
    """
    masked = re.sub(r"([?&][^=&@]*password=)[^&]*", r"\1***", url, flags=re.IGNORECASE)
    scheme, slashes, _ = masked.rpartition("@")[0].partition("://")
    begin = f"{scheme}{slashes}" if slashes else ""
    account, at, place = masked.removeprefix(begin).rpartition("@")
    user, _, password = account.partition(":")
    return f"{begin}{f'{user}:***' if password else '***' if user else ''}{at}{place}"


def as_store_error(error: Exception, where: str) -> StoreError:
    """The error of the store that an error of Redis means, with what to try."""
    text = str(error).rstrip(". ")
    has_no_permission = isinstance(error, exceptions.NoPermissionError)
    if has_no_permission or "NOPERM" in text or "The user executing" in text:
        return StoreRefused(
            f"{where} accepts our user, which lacks a permission: {text}. It needs {PERMISSIONS}"
        )
    if isinstance(error, exceptions.AuthenticationError) or "NOAUTH" in text:
        return StoreRefused(
            f"{where} refused to log us in: {text}. Check user and password in --redis-url"
        )
    if "WRONGTYPE" in text:
        return StoreRefused(
            f"{where} has a key of another type under our names: {text}"
        )
    for kind, word, reason, message in MEANINGS:
        if isinstance(error, kind) or (word and word in text):
            return StoreUnavailable(reason, f"{where} {message.format(text)}")
    return StoreUnavailable("broken", f"{where} returned an error: {text}")


MEANINGS: tuple[tuple[type[Exception], str, str, str], ...] = (
    (
        exceptions.OutOfMemoryError,
        "OOM",
        "full",
        "is full ({}): raise its maxmemory or remove other keys",
    ),
    (
        exceptions.ReadOnlyError,
        "READONLY",
        "read-only",
        "is read-only: is it a replica? ({})",
    ),
    (exceptions.BusyLoadingError, "LOADING", "loading", "is loading its data"),
    (exceptions.TimeoutError, "", "slow", "did not respond in time: {}"),
    (exceptions.ConnectionError, "", "unreachable", UNREACHABLE),
    (exceptions.ClusterDownError, "", "unreachable", UNREACHABLE),
    (exceptions.RedisClusterException, "", "unreachable", UNREACHABLE),
)
"""Class of an error, a word of its text, the reason, and what we say of the server."""
