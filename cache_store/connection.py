"""Connections to Redis by URL, and what its errors mean.

| URL                                                          | connects to                                     |
|--------------------------------------------------------------|-------------------------------------------------|
| `redis://[user:password@]host[:port][/db]`                   | a server                                        |
| `rediss://...?ssl_ca_certs=ca.pem`                           | a server, by TLS                                |
| `unix://[user:password@]/path/to/socket?db=0`                | a server on this machine                        |
| `redis+sentinel://[user:password@]host:port,host:port/name[/db]` | the master that Sentinels call `name`       |
| `redis+cluster://[user:password@]host:port`                  | a Redis Cluster, by any of its nodes            |

`redis+sentinels://` and `redis+clusters://` are the same by TLS.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from cache_store.errors import StoreError, StoreRefused, StoreUnavailable

ERRORS = (exceptions.RedisError, exceptions.RedisClusterException)
"""Whatever redis-py raises."""
PLAIN = ("redis", "rediss", "unix")
SCHEMES = (*PLAIN, "redis+sentinel", "redis+sentinels", "redis+cluster", "redis+clusters")


def connect(url: str, timeout_s: float) -> Any:
    """A client for a URL; nothing is sent yet, but for a cluster.

    Raises:
        StoreRefused: the URL is wrong.
        StoreUnavailable: no node of a cluster answers.
    """
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise StoreRefused(
            f"{shown(url)} is no URL of Redis: begin with one of {', '.join(s + '://' for s in SCHEMES)}"
        )
    options = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    try:
        if "cluster" in scheme:
            return _cluster(url, options)
        client = redis.Redis.from_url(url, **options) if scheme in PLAIN else _sentinel(url, options)
        client.connection_pool.make_connection()  # connects to nothing, but looks at the options
        return client
    except (ValueError, TypeError) as error:
        raise StoreRefused(f"{shown(url)} is no URL of Redis: {error}") from error
    except ERRORS as error:
        raise translated(error, shown(url)) from error


def _sentinel(url: str, options: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    name, _, db = parts.path.strip("/").partition("/")
    if not name:
        raise ValueError("name the master: redis+sentinel://host:26379/NAME")
    account = _account(parts, tls=parts.scheme.endswith("s")) | options | dict(parse_qsl(parts.query))
    hosts = parts.netloc.rpartition("@")[2].split(",")
    sentinel_options = {k: v for k, v in account.items() if k not in ("username", "password")}
    sentinel = Sentinel([_host(h, 26379) for h in hosts], sentinel_kwargs=sentinel_options, **account)  # type: ignore[no-untyped-call]
    return sentinel.master_for(name, db=int(db or 0))  # type: ignore[no-untyped-call]


def _cluster(url: str, options: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    account = _account(parts, tls=parts.scheme.endswith("s")) | options | dict(parse_qsl(parts.query))
    nodes = [ClusterNode(*_host(h, 6379)) for h in parts.netloc.rpartition("@")[2].split(",")]  # type: ignore[no-untyped-call]
    return RedisCluster(startup_nodes=nodes, **account)


def _account(parts: Any, tls: bool) -> dict[str, Any]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    found: dict[str, Any] = {"ssl": True} if tls else {}
    found |= {"username": unquote(user)} if user else {}
    return found | ({"password": unquote(password)} if password else {})


def _host(text: str, port: int) -> tuple[str, int]:
    address = urlsplit(f"//{text}")
    if not address.hostname:
        raise ValueError(f"{text!r} is no host:port")
    return address.hostname, address.port or port


def shown(url: str) -> str:
    """A URL without its password, for messages."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


def translated(error: Exception, where: str) -> StoreError:
    """What an error of Redis means, and what to try."""
    text = str(error)
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError) or "NOAUTH" in text:
        return StoreRefused(f"{where} does not let us in: {text}. Check user and password in --redis-url")
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM" in text:
        return StoreUnavailable("full", f"{where} is full ({text}): raise its maxmemory or remove other keys")
    if isinstance(error, exceptions.ReadOnlyError) or "READONLY" in text:
        return StoreUnavailable("read-only", f"{where} only lets us read: is it a replica? ({text})")
    if isinstance(error, exceptions.BusyLoadingError) or "LOADING" in text:
        return StoreUnavailable("loading", f"{where} is loading its data")
    if isinstance(error, exceptions.TimeoutError):
        return StoreUnavailable("slow", f"{where} did not answer in time: {text}")
    if isinstance(error, (exceptions.ConnectionError, exceptions.ClusterDownError, exceptions.RedisClusterException)):
        told = f"{where} cannot be reached: {text.rstrip('.')}; is it running, and is the URL right?"
        return StoreUnavailable("unreachable", told)
    if "WRONGTYPE" in text:
        return StoreRefused(f"{where} has a key of another type under our names: {text}")
    return StoreUnavailable("broken", f"{where} answered with an error: {text}")
