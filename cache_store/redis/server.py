"""The shared state of a model in Redis (6.2 to 8) or Valkey."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from streamer.cache_store.change import DRAWN, Change, Hashes, Version, dtype_of
from streamer.cache_store.errors import StoreRefused, StoreUnavailable
from streamer.cache_store.redis.connection import (
    ERRORS,
    as_store_error,
    connect,
    without_passwords,
)
from streamer.cache_store.redis.schema import (
    EXCHANGE,
    FORMAT,
    FORMAT_FIELD,
    KEEP_DRAWN_S,
    Keys,
)
from streamer.cache_store.server import Answer, Request, StoreServer

FORGET_PROCESSES_S = 3600
"""Processes that were silent for longer are not listed any more."""
IDS_AT_ONCE = 2048
"""More of them in one command would make other clients wait."""


class RedisServer(StoreServer):
    """One model in Redis. `connection` says what a URL may be; `StoreRefused` says what
    is wrong with it.
    """

    kind = "redis"

    def __init__(self, url: str, keys: Keys, timeout_s: float = 5.0) -> None:
        self.url = without_passwords(url)
        self.keys = keys
        self._connect: Callable[[], Any] = partial(connect, url, timeout_s)
        self._client: Any = None
        self._is_checked = False
        with suppress(StoreUnavailable):  # of a cluster: it may respond later
            self.connected()

    def name(self, ids: Mapping[int, str]) -> None:
        encoded = {}
        for h, raw in ids.items():
            encoded[h.to_bytes(8, "little")] = raw.encode(errors="surrogatepass")
        self.call("hset", "ids", mapping=encoded)

    def ids(self, hashes: Hashes) -> list[str | None]:
        found: list[str | None] = []
        for k in range(0, len(hashes), IDS_AT_ONCE):
            names = [h.tobytes() for h in hashes[k : k + IDS_AT_ONCE]]
            try:
                for raw in self.call("hmget", "ids", names):
                    found.append(raw.decode(errors="surrogatepass") if raw else None)
            except UnicodeDecodeError as error:
                raise self._damaged(f"an id is no text: {error!r}") from error
        return found

    def exchange(self, request: Request) -> Answer:
        if not self._is_checked:
            self._check()
        keys = [self.keys.of("tops"), self.keys.of("trainers")]
        arguments: list[Any] = [request.process, request.beat, request.acknowledged]
        arguments += [" ".join(request.owned), 1000 * KEEP_DRAWN_S]
        for change in request.changes:
            keys.append(self.keys.of(change.name))
            arguments += [change.name, _text(change.since), _text(change.to)]
            arguments += [change.hashes.tobytes(), change.values.tobytes()]
        pipeline = self.connected().pipeline(transaction=False)
        pipeline.execute_command("EVAL", EXCHANGE, len(keys), *keys, *arguments)
        if request.reading:
            reading = request.reading.items()
            pipeline.xread({self.keys.of(name): _text(at) for name, at in reading})
        (beat, tops), *streams = self.translated(pipeline.execute)
        if beat < request.acknowledged:
            self._is_checked = False  # it was emptied, or is another server
        found = dict(zip(tops[::2], tops[1::2], strict=True))
        changes = {}
        for key, elements in streams[0] if streams else ():
            name = key.decode().removeprefix(self.keys.of(""))
            changes[name] = self.decoded(name, elements)
        return Answer(beat, self.versions(found), changes)

    def versions(self, tops: Mapping[bytes, bytes]) -> dict[str, Version]:
        """What the hash `tops` says: the version of every entry."""
        try:
            found = {name.decode(): _version(top) for name, top in tops.items()}
        except ValueError as error:
            raise self._damaged(f"a version cannot be read: {error!r}") from error
        found.pop(FORMAT_FIELD, None)
        return found

    def decoded(self, name: str, elements: Any) -> list[Change]:
        """Changes of an entry, from elements of its stream."""
        found = []
        try:
            for to, fields in elements:
                since = _version(fields[b"since"])
                hashes = np.frombuffer(fields[b"hashes"], np.uint64)
                values = np.frombuffer(fields[b"values"], dtype_of(name))
                if len(hashes) != len(values):
                    raise ValueError(f"{len(values)} values of {len(hashes)} items")
                found.append(Change(name, since, _version(to), hashes, values))
        except (KeyError, ValueError) as error:
            raise self._damaged(f"{name} cannot be read: {error!r}") from error
        return found

    def now_s(self) -> float:
        """The server's time, in seconds since the epoch."""
        found = self.translated(self.connected().time)
        if isinstance(found, dict):  # of the nodes of a cluster
            found = next(iter(found.values()))
        return float(found[0]) + float(found[1]) / 1e6

    def leave(self, process: str) -> None:
        self.call("hdel", "trainers", process)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # calls ----------------------------------------------------------------------------

    def call(self, command: str, key: str, *arguments: Any, **options: Any) -> Any:
        """The result of a command of redis-py on a key of the model.

        Raises:
            StoreRefused: the server will never do that.
            StoreUnavailable: it cannot do that now.
        """
        method = getattr(self.connected(), command)
        return self.translated(lambda: method(self.keys.of(key), *arguments, **options))

    def connected(self) -> Any:
        """The client of redis-py."""
        self._client = self._client or self._connect()
        return self._client

    def translated(self, call: Callable[[], Any]) -> Any:
        """What a call of redis-py returns; its errors become ours."""
        try:
            return call()
        except ERRORS as error:
            if "WRONGTYPE" in str(error):
                raise self._damaged(f"a key has another type ({error})") from error
            raise as_store_error(error, self.url) from error

    # checks ---------------------------------------------------------------------------

    def _check(self) -> None:
        """The first time, see that we can read what there is, note the model, and forget
        what has expired.
        """
        self.check_format()
        self.call("hset", "tops", FORMAT_FIELD, FORMAT)
        client = self.connected()
        self.translated(lambda: client.sadd(self.keys.models, self.keys.model))
        forgotten_s = self.now_s() - FORGET_PROCESSES_S
        for process, heartbeat in self.call("hgetall", "trainers").items():
            if float(heartbeat.split(b" ")[0]) < forgotten_s:
                self.leave(process)
        for name in self.versions(self.call("hgetall", "tops")):
            if name.startswith(DRAWN) and not self.call("exists", name):
                self.call("hdel", "tops", name)
        self._is_checked = True

    def check_format(self) -> None:
        """Raise `StoreRefused` if another version wrote the model."""
        found = self.call("hget", "tops", FORMAT_FIELD)
        if found not in (None, b"%d" % FORMAT):
            written = found.decode(errors="replace")
            raise StoreRefused(
                f"the model {self.keys.model!r} in {self.url} has format {written}, this version reads {FORMAT}: "
                "choose another --model, or remove it (`streamer store reset`)"
            )

    def _damaged(self, problem: str) -> StoreRefused:
        return StoreRefused(
            f"the model {self.keys.model!r} in {self.url} is damaged: {problem}. Choose another --model or "
            "--redis-namespace, or remove it (`streamer store reset`)"
        )


def _text(version: Version) -> str:
    return f"{version[0]}-{version[1]}"


def _version(text: bytes) -> Version:
    major, _, minor = text.partition(b"-")
    return int(major or 0), int(minor or 0)
