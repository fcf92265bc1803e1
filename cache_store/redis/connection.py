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
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode, RedisCluster
from redis.connection import URL_QUERY_ARGUMENT_PARSERS
from redis.retry import Retry
from redis.sentinel import Sentinel

from streamer.cache_store.errors import StoreError, StoreRefused, StoreUnavailable

ERRORS = (exceptions.RedisError, exceptions.RedisClusterException)
"""Everything that redis-py raises."""
PLAIN = ("redis", "rediss", "unix")
SCHEMES = (
    *PLAIN,
    "redis+sentinel",
    "redis+sentinels",
    "redis+cluster",
    "redis+clusters",
)
ENCODE = "write host:port, and percent-encode special characters of the password (@ as %40, / as %2F, # as %23)"
PERMISSIONS = "the keys ~{<namespace>:<model>}:* and ~{<namespace>}:models, and the commands +@all -@admin -@dangerous"
"""That a user of Redis needs."""


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
        parts = _parts(url)
        if "cluster" in parts.scheme:
            return _cluster(parts, options)
        client = (
            redis.Redis.from_url(url, **options)
            if parts.scheme in PLAIN
            else _sentinel(parts, options)
        )
        client.connection_pool.make_connection()  # does not connect, but checks the options
        return client
    except (ValueError, TypeError) as error:
        raise StoreRefused(
            f"{without_passwords(url)} is not a valid Redis URL: {error}"
        ) from error
    except ERRORS as error:
        raise as_store_error(error, without_passwords(url)) from error


def _parts(url: str) -> SplitResult:
    """The parts of a URL. An error does not quote urllib's, which may hold a part of a
    password.

    Raises:
        ValueError: the URL cannot be read, or a password has characters that cut it
            off.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ValueError(f"begin with one of {', '.join(s + '://' for s in SCHEMES)}")
    try:
        place = re.split("[/?#]", rest, maxsplit=1)[
            0
        ]  # newer Pythons refuse [::1] among several hosts
        account = place.removesuffix(place.rpartition("@")[2])
        parts = urlsplit(f"{scheme}://{rest.removeprefix(place)}")._replace(
            netloc=place
        )
        for text in _hosts(parts):
            _ = urlsplit(f"//{account}{text}").port
    except ValueError:
        raise ValueError(f"host and port cannot be read; {ENCODE}") from None
    names = [option.partition("=")[0] for option in parts.query.split("&")]
    if parts.fragment or "@" in "".join(names) or (parts.netloc and "@" in parts.path):
        raise ValueError(f"it has an @ or # where none is allowed; {ENCODE}")
    return parts


def _sentinel(parts: SplitResult, options: dict[str, Any]) -> Any:
    name, _, db = parts.path.strip("/").partition("/")
    if not name:
        raise ValueError("name the master: redis+sentinel://host:26379/NAME")
    if db and not db.isdecimal():
        raise ValueError(
            "only the number of a database may follow the name of the master"
        )
    account = (
        _account(parts) | options | _options(parts) | ({"db": int(db)} if db else {})
    )
    sentinel_options = {
        k: v for k, v in account.items() if k not in ("username", "password", "db")
    }
    hosts = [_host(text, 26379) for text in _hosts(parts)]
    sentinel = Sentinel(hosts, sentinel_kwargs=sentinel_options, **account)  # type: ignore[no-untyped-call]
    return sentinel.master_for(name)  # type: ignore[no-untyped-call]


def _cluster(parts: SplitResult, options: dict[str, Any]) -> Any:
    given = _options(parts)
    unknown = given.keys() - {
        *REDIS_ALLOWED_KEYS,
        *URL_QUERY_ARGUMENT_PARSERS,
    } | given.keys() & {"db"}
    if unknown:  # redis-py would ignore it silently
        raise ValueError(f"a cluster has no option {', '.join(sorted(unknown))}")
    nodes = [ClusterNode(*_host(text, 6379)) for text in _hosts(parts)]  # type: ignore[no-untyped-call]
    return RedisCluster(startup_nodes=nodes, **_account(parts) | options | given)


def _options(parts: SplitResult) -> dict[str, Any]:
    """The options after the `?`, read as redis-py reads them from the URLs that it
    knows.
    """
    found: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query):
        parse: Any = URL_QUERY_ARGUMENT_PARSERS.get(name, str)
        try:
            found[name] = parse(value)
        except (ValueError, TypeError):
            raise ValueError(f"the option {name} cannot be {value!r}") from None
    return found


def _account(parts: SplitResult) -> dict[str, Any]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    found: dict[str, Any] = {"ssl": True} if parts.scheme.endswith("s") else {}
    found |= {"username": unquote(user)} if user else {}
    return found | ({"password": unquote(password)} if password else {})


def _hosts(parts: SplitResult) -> list[str]:
    """Each with its port, if it has one."""
    return parts.netloc.rpartition("@")[2].split(",")


def _host(text: str, port: int) -> tuple[str, int]:
    address = urlsplit(f"//{text}")
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
    if (
        isinstance(error, exceptions.NoPermissionError)
        or "NOPERM" in text
        or "The user executing the script" in text
    ):
        return StoreRefused(
            f"{where} accepts our user, which lacks a permission: {text}. It needs {PERMISSIONS}"
        )
    if isinstance(error, exceptions.AuthenticationError) or "NOAUTH" in text:
        return StoreRefused(
            f"{where} refused to log us in: {text}. Check user and password in --redis-url"
        )
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM" in text:
        return StoreUnavailable(
            "full",
            f"{where} is full ({text}): raise its maxmemory or remove other keys",
        )
    if isinstance(error, exceptions.ReadOnlyError) or "READONLY" in text:
        return StoreUnavailable(
            "read-only", f"{where} is read-only: is it a replica? ({text})"
        )
    if isinstance(error, exceptions.BusyLoadingError) or "LOADING" in text:
        return StoreUnavailable("loading", f"{where} is loading its data")
    if isinstance(error, exceptions.TimeoutError):
        return StoreUnavailable("slow", f"{where} did not respond in time: {text}")
    if isinstance(
        error,
        (
            exceptions.ConnectionError,
            exceptions.ClusterDownError,
            exceptions.RedisClusterException,
        ),
    ):
        message = (
            f"{where} cannot be reached: {text}; is it running, and is the URL right?"
        )
        return StoreUnavailable("unreachable", message)
    if "WRONGTYPE" in text:
        return StoreRefused(
            f"{where} has a key of another type under our names: {text}"
        )
    return StoreUnavailable("broken", f"{where} returned an error: {text}")
