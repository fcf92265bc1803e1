"""The shared state of a model in Redis (6.2 to 8) or Valkey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from streamer.cache_store.change import (
    DRAWN,
    NOTHING,
    Change,
    Hashes,
    Version,
    dtype_of,
)
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
    NAME,
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

    def name(self, hashes: Hashes, ids: Sequence[bytes]) -> list[int]:
        pairs: list[bytes] = []
        for h, raw in zip(hashes, ids, strict=True):
            pairs += [h.tobytes(), raw]
        others: list[bytes] = []
        for k in range(0, len(pairs), 2 * IDS_AT_ONCE):
            some = pairs[k : k + 2 * IDS_AT_ONCE]
            others += self.call("eval", NAME, 1, self.keys.ids, *some)
        return [int.from_bytes(name, "little") for name in others]

    def ids(self, hashes: Hashes) -> list[str | None]:
        found: list[str | None] = []
        for k in range(0, len(hashes), IDS_AT_ONCE):
            names = [h.tobytes() for h in hashes[k : k + IDS_AT_ONCE]]
            try:
                for raw in self.call("hmget", self.keys.ids, names):
                    found.append(raw.decode(errors="surrogatepass") if raw else None)
            except UnicodeDecodeError as error:
                raise self._damaged(f"an id is no text: {error!r}") from error
        return found

    def exchange(self, request: Request) -> Answer:
        if not self._is_checked:
            self._check()
        keys = [self.keys.tops, self.keys.trainers]
        arguments: list[Any] = [request.process, request.beat, request.acknowledged]
        arguments += [" ".join(request.owned), 1000 * KEEP_DRAWN_S]
        for change in request.changes:
            keys.append(self.keys.changes(change.name))
            arguments += [change.name, _text(change.since), _text(change.to)]
            arguments += [change.hashes.tobytes(), change.values.tobytes()]
        pipeline = self.connected().pipeline(transaction=False)
        pipeline.execute_command("EVAL", EXCHANGE, len(keys), *keys, *arguments)
        if request.reading:
            pipeline.xread(self._reading(request.reading))
        (beat, tops), *streams = self.translated(pipeline.execute)
        if beat < request.acknowledged:
            self._is_checked = False  # it was emptied, or is another server
        try:
            changes = self._decoded(streams[0]) if streams else {}
            versions = _versions(dict(zip(tops[::2], tops[1::2], strict=True)))
        except ValueError as error:
            raise self._damaged(f"a version cannot be read: {error!r}") from error
        return Answer(beat, versions, changes)

    def tops(self) -> dict[str, Version]:
        """The version of every entry."""
        return _versions(self.call("hgetall", self.keys.tops))

    def changes_of(self, name: str) -> list[Change]:
        """All changes of an entry."""
        found = self._decoded(self.call("xread", self._reading({name: NOTHING})))
        return found.get(name, [])

    def _reading(self, versions: Mapping[str, Version]) -> dict[str, str]:
        found = {}
        for name, version in versions.items():
            found[self.keys.changes(name)] = _text(version)
        return found

    def _decoded(self, streams: Any) -> dict[str, list[Change]]:
        """What XREAD returns: of each stream, its elements."""
        found = {}
        for key, elements in streams:
            name = key.decode().removeprefix(self.keys.changes(""))
            found[name] = [self._change(name, _version(to), f) for to, f in elements]
        return found

    def _change(self, name: str, to: Version, fields: Mapping[bytes, bytes]) -> Change:
        try:
            since = _version(fields[b"since"])
            hashes = np.frombuffer(fields[b"hashes"], np.uint64)
            values = np.frombuffer(fields[b"values"], dtype_of(name))
            if len(hashes) != len(values):
                raise ValueError(f"{len(values)} values of {len(hashes)} items")
        except (KeyError, ValueError) as error:
            raise self._damaged(f"{name} cannot be read: {error!r}") from error
        return Change(name, since, to, hashes, values)

    def now_s(self) -> float:
        """The server's time, in seconds since the epoch."""
        found = self.call("time")
        if isinstance(found, dict):  # of the nodes of a cluster
            found = next(iter(found.values()))
        return float(found[0]) + float(found[1]) / 1e6

    def leave(self, process: str) -> None:
        self.call("hdel", self.keys.trainers, process)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # calls ----------------------------------------------------------------------------

    def call(self, command: str, *arguments: Any, **options: Any) -> Any:
        """The result of a command, by its name in redis-py.

        Raises:
            StoreRefused: the server will never do that.
            StoreUnavailable: it cannot do that now.
        """
        client = self.connected()
        return self.translated(lambda: getattr(client, command)(*arguments, **options))

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
        self.call("hset", self.keys.tops, FORMAT_FIELD, FORMAT)
        self.call("sadd", self.keys.models, self.keys.model)
        forgotten_s = self.now_s() - FORGET_PROCESSES_S
        for process, heartbeat in self.call("hgetall", self.keys.trainers).items():
            if float(heartbeat.split(b" ")[0]) < forgotten_s:
                self.leave(process)
        for name in self.tops():
            is_drawn = name.startswith(DRAWN)
            if is_drawn and not self.call("exists", self.keys.changes(name)):
                self.call("hdel", self.keys.tops, name)
        self._is_checked = True

    def check_format(self) -> None:
        """Raise `StoreRefused` if another version wrote the model."""
        found = self.call("hget", self.keys.tops, FORMAT_FIELD)
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


def _versions(tops: Mapping[bytes, bytes]) -> dict[str, Version]:
    found = {name.decode(): _version(top) for name, top in tops.items()}
    found.pop(FORMAT_FIELD, None)
    return found


def _text(version: Version) -> str:
    return f"{version[0]}-{version[1]}"


def _version(text: bytes) -> Version:
    major, _, minor = text.partition(b"-")
    return int(major or 0), int(minor or 0)
