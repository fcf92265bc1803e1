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
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
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


def connect(url: str, timeout_s: float) -> Any:
    """A client for a URL. Only a cluster is contacted at once.

    Raises:
        StoreRefused: the URL is wrong.
        StoreUnavailable: no node of a cluster responds.
    """
    where = without_passwords(url)
    try:
        return _client(url, timeout_s)
    except (ValueError, TypeError) as error:
        raise StoreRefused(f"{where} is not a valid Redis URL: {error}") from error
    except ERRORS as error:
        raise as_store_error(error, where) from error


def _client(url: str, timeout_s: float) -> Any:
    scheme, account, hosts, rest = _parts(url)
    kind = scheme.partition("+")[2]
    is_secure = kind.endswith("s")
    name = ""
    if kind:  # what redis-py knows is the URL of one server, with the same options
        if kind.startswith("sentinel"):
            path, mark, query = rest.partition("?")
            name, _, db = path.strip("/").partition("/")
            rest = f"/{db}{mark}{query}"
            if not name or (db and not db.isdecimal()):
                raise ValueError(
                    "name the master, and nothing else but the number of a database: "
                    "redis+sentinel://host:26379/NAME/0"
                )
        url = f"redis{'s' if is_secure else ''}://{account}host{rest}"
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    client = redis.Redis.from_url(url, **options)
    client.connection_pool.make_connection()  # does not connect, but checks the options
    if not kind:
        return client
    options |= parse_url(url)  # type: ignore[no-untyped-call]
    options.pop("connection_class", None)
    del options["host"]
    if is_secure:
        options["ssl"] = True
    if kind.startswith("cluster"):
        nodes = [ClusterNode(*_place(host, 6379)) for host in hosts]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, **options)
    places = [_place(host, 26379) for host in hosts]
    own = ("username", "password", "db")  # of the master, not of the Sentinels
    of_sentinels = {k: value for k, value in options.items() if k not in own}
    sentinel = Sentinel(places, sentinel_kwargs=of_sentinels, **options)  # type: ignore[no-untyped-call]
    return sentinel.master_for(name)  # type: ignore[no-untyped-call]


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
    for kind, words, reason, meaning in MEANINGS:
        if isinstance(error, kind) or any(word in text for word in words):
            message = f"{where} {meaning % text}"
            if reason == StoreRefused.reason:
                return StoreRefused(message)
            return StoreUnavailable(reason, message)
    return StoreUnavailable("broken", f"{where} returned an error: {text}")


_LACKS = (
    "accepts our user, which lacks a permission: %s. It needs the keys ~{<namespace>:<model>}:* and "
    "~{<namespace>}:models, and the commands +@all -@admin -@dangerous"
)
_LOGIN = "refused to log us in: %s. Check user and password in --redis-url"
_TYPE = "has a key of another type under our names: %s"
_FULL = "is full (%s): raise its maxmemory or remove other keys"
_READ_ONLY = "is read-only: is it a replica? (%s)"
_LOADING = "is loading its data: %s"
_SLOW = "did not respond in time: %s"
_AWAY = "cannot be reached: %s; is it running, and is the URL right?"
_Kinds = type[Exception] | tuple[type[Exception], ...]
MEANINGS: tuple[tuple[_Kinds, tuple[str, ...], str, str], ...] = (
    (
        exceptions.NoPermissionError,
        ("NOPERM", "The user executing"),
        "refused",
        _LACKS,
    ),
    (exceptions.AuthenticationError, ("NOAUTH",), "refused", _LOGIN),
    ((), ("WRONGTYPE",), "refused", _TYPE),
    (exceptions.OutOfMemoryError, ("OOM",), "full", _FULL),
    (exceptions.ReadOnlyError, ("READONLY",), "read-only", _READ_ONLY),
    (exceptions.BusyLoadingError, ("LOADING",), "loading", _LOADING),
    (exceptions.TimeoutError, (), "slow", _SLOW),
    (
        (
            exceptions.ConnectionError,
            exceptions.ClusterDownError,
            exceptions.RedisClusterException,
        ),
        (),
        "unreachable",
        _AWAY,
    ),
)
"""Classes of errors, words of their texts, the reason, and what we say of the server."""
