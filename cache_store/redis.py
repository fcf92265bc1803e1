"""The shared state of a model in Redis (6.2 to 8) or Valkey. Keys are in `keys`, Lua in `scripts`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from streamer.cache_store import scripts
from streamer.cache_store.codec import FORMAT, fingerprint
from streamer.cache_store.connection import ERRORS, connect, shown, translated
from streamer.cache_store.errors import Damaged, StoreRefused, StoreUnavailable
from streamer.cache_store.keys import Keys
from streamer.cache_store.replica import Position
from streamer.cache_store.server import (
    HARD_LOG_LENGTH,
    RESEED_S,
    Claim,
    Pulled,
    Push,
    Pushed,
    Seed,
    Stamped,
    Stand,
    Tip,
    Wanted,
)

logger = logging.getLogger(__name__)

LEASE_MS = 30_000
FORGET_TRAINERS_S = 3600
NEW_KEYS_S = 300
IDS_A_COMMAND = 1000
"""Arguments of one command: a longer one would make others wait."""


class RedisServer:
    """One model in Redis.

    Args:
        url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://` or `redis+cluster://`, with user and password.
        keys: the model's.
        timeout_s: how long to wait for an answer.
        hard_log_length: entries of the log beyond which nothing is added until it is trimmed.

    Raises:
        StoreRefused: the URL is wrong.
    """

    kind = "redis"
    inline = False

    def __init__(self, url: str, keys: Keys, timeout_s: float = 5.0, hard_log_length: int = HARD_LOG_LENGTH) -> None:
        self.url, self.keys, self._hard = shown(url), keys, hard_log_length
        self._connect: Callable[[], Any] = partial(connect, url, timeout_s)
        self._client: Any = None
        self._scripts: dict[str, Any] = {}
        self._seen_policy = False
        with suppress(StoreUnavailable):  # of a cluster: it may answer later
            self._connected()

    def assign(self, generation: str, ids: Sequence[str]) -> list[int] | None:
        rows: list[int] = []
        for start in range(0, len(ids), IDS_A_COMMAND):
            found = self._run("ASSIGN", ("meta", "rows", "items"), [generation, *ids[start : start + IDS_A_COMMAND]])
            if found == [-1]:
                return None
            rows += found
        return rows

    def ids(self, generation: str, first: int, count: int) -> list[str] | None:
        found = self._run("IDS", ("meta", "items"), [generation, first, first + count - 1])
        return None if found == -1 else [raw.decode() for raw in found]

    def claim(self, generation: str, trainer: str, wanted: Mapping[str, Wanted]) -> dict[str, Claim] | None:
        arguments: list[Any] = [generation, trainer]
        for name, (epoch, end, anew) in wanted.items():
            arguments += [name, epoch, -1 if end is None else end, int(anew)]
        found = self._run("CLAIM", ("meta", "epochs", "next", "owners"), arguments)
        if found == [-1]:
            return None
        answers = zip(found[::3], found[1::3], found[2::3], strict=True)
        return {
            name: Claim(epoch, None if following < 0 else following, bool(ours))
            for name, (epoch, following, ours) in zip(wanted, answers, strict=True)
        }

    def push(self, push: Push) -> Pushed:
        arguments: list[Any] = [push.generation, push.chain, push.packed, push.cache or b"", self._hard, push.items]
        arguments += _told(push.stand)
        for span, epoch in push.spans:
            arguments += [span.partition, epoch, span.start, span.stop]
        outcome, length, *more = self._run("PUSH", ("meta", "log", "next", "epochs", "cache", "items"), arguments)
        name = outcome.decode()
        if name == "overlap":
            told = [m.decode() for m in more]
            return Pushed(name, next=dict(zip(told[::2], map(int, told[1::2]), strict=True)))
        if name == "fenced":
            return Pushed(name, partition=more[0].decode())
        pulled = _up_to(push, push.stand, length, more) if push.stand is not None and name == "added" else None
        return Pushed(name, length=length, pulled=pulled)

    def pull(self, after: Position, count: int, cache_chain: str) -> Pulled:
        found = self._run(
            "PULL", ("meta", "log", "items", "cache"), [after.generation, after.entry, count, cache_chain]
        )
        if not found:
            return Pulled(None, [])
        generation, number, chain, items, length, names, entries, cache, newest = found
        tip = Tip(generation.decode(), number, chain.decode(), items, length, names.decode())
        stamped = [_stamped(tip.generation, entry, fields) for entry, fields in entries]
        return Pulled(tip, stamped, cache or None, newest.decode())

    def snapshot(self) -> bytes | None:
        self._see_policy()
        self._check_format()
        found: bytes | None = self._do("get", self.keys.snapshot)
        return found

    def save_snapshot(self, trainer: str, position: Position, packed: bytes) -> bool:
        arguments = [position.generation, position.number, position.entry, packed, trainer, position.chain]
        return bool(self._run("SAVE_SNAPSHOT", ("meta", "log", "snapshot", "lease"), arguments))

    def may_snapshot(self, trainer: str) -> bool:
        return bool(self._do("set", self.keys.lease, trainer, nx=True, px=LEASE_MS))

    def seed(self, seed: Seed) -> bool:
        self.check_types()
        self._check_format()
        self._see_policy()
        items, rows = self.keys.new("items", seed.generation), self.keys.new("rows", seed.generation)
        self._put_items(items, rows, seed.ids)
        origin = seed.origin or Position("", 0, "", "")
        arguments: list[Any] = [seed.generation, seed.snapshot, origin.generation, origin.number, seed.instead_of]
        arguments += [RESEED_S, FORMAT, len(seed.ids), fingerprint(seed.ids), len(seed.next), seed.events]
        arguments += [part for pair in seed.next.items() for part in pair]
        arguments += [part for pair in seed.epochs.items() for part in pair]
        named = ("meta", "log", "snapshot", "items", "rows", "next", "epochs", "cache")
        keys = [*(getattr(self.keys, name) for name in named), items, rows, self.keys.owners]
        seeded = self._call(lambda client: self._script(client, "SEED")(keys, arguments))
        self._do("delete", items, rows)
        if seeded < 0:
            raise StoreUnavailable("broken", f"{self.url} lost items while it was seeded; it is tried again")
        if seeded:
            self._do("sadd", self.keys.models, self.keys.model)
        return bool(seeded)

    def _put_items(self, items: str, rows: str, ids: Sequence[str]) -> None:
        """Write items beside those that are there; they take their place when the generation begins."""
        for start in range(0, len(ids), IDS_A_COMMAND):
            part = ids[start : start + IDS_A_COMMAND]
            mapping = {raw: start + k for k, raw in enumerate(part)}
            self._do("rpush", items, *part)
            self._do("hset", rows, mapping=mapping)
            for key in (items, rows):
                self._do("expire", key, NEW_KEYS_S)

    def beat(self, trainer: str, about: str) -> None:
        self._run("BEAT", ("trainers",), [trainer, about, FORGET_TRAINERS_S])

    def leave(self, trainer: str) -> None:
        self._do("hdel", self.keys.trainers, trainer)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        named = [getattr(self.keys, name) for name in keys]
        return self._call(lambda client: self._script(client, script)(named, list(arguments)))

    def _script(self, client: Any, name: str) -> Any:
        if name not in self._scripts:
            self._scripts[name] = client.register_script(getattr(scripts, name))
        return self._scripts[name]

    def _do(self, command: str, *arguments: Any, **options: Any) -> Any:
        return self._call(lambda client: getattr(client, command)(*arguments, **options))

    def _connected(self) -> Any:
        self._client = self._client or self._connect()
        return self._client

    def _call(self, call: Callable[[Any], Any]) -> Any:
        """Call Redis; its errors become ours.

        Raises:
            StoreRefused: it will never do that.
            StoreUnavailable: it cannot do that now.
        """
        client = self._connected()
        try:
            return call(client)
        except ERRORS as error:
            if "WRONGTYPE" in str(error):
                self.check_types()
            raise translated(error, self.url) from error

    def _see_policy(self) -> None:
        """Say once if this server may throw away our keys, as far as it tells."""
        if self._seen_policy:
            return
        self._seen_policy = True
        with suppress(*ERRORS, AttributeError, TypeError):
            policy = str(self._connected().info("memory").get("maxmemory_policy", ""))
            if policy.startswith("allkeys"):
                logger.warning(
                    "%s evicts keys when its memory is full (maxmemory-policy %s): what trainers share may be lost. "
                    "Set maxmemory-policy to noeviction",
                    self.url,
                    policy,
                )

    def check_types(self) -> None:
        """See that our keys hold what we write.

        Raises:
            Damaged: with every key that does not.
        """
        wrong = []
        for key, wanted in self.keys.types().items():
            found = self._do("type", key).decode()
            if found not in ("none", wanted):
                wrong.append(f"{key} is a {found}, not a {wanted}")
        if wrong:
            raise Damaged(
                f"{self.url} has something else under our keys: {'; '.join(wrong)}. "
                "Choose another --model or --redis-namespace, or remove them (`streamer store reset` removes a model)"
            )

    def _check_format(self) -> None:
        """See that we can read what is there.

        Raises:
            StoreRefused: a newer version wrote it.
        """
        found = self._do("hget", self.keys.meta, "format")
        check_format((found or b"1").decode(errors="replace"), f"the model {self.keys.model!r} in {self.url}")


def check_format(found: str, which: str) -> None:
    """See that we can read a model, by the format that it says it has.

    Raises:
        StoreRefused: a newer version wrote it.
        Damaged: no version writes that.
    """
    if not found.isdecimal():
        raise Damaged(f"{which} is damaged: its format is {found!r}, not a number. `streamer store reset` removes it")
    if int(found) > FORMAT:
        raise StoreRefused(
            f"{which} has format {found}, this version reads {FORMAT}: install a newer one, or choose another --model"
        )


def _told(stand: Stand | None) -> list[Any]:
    if stand is None:
        return ["", "", 0, "", "", 0]
    position, items, names, cache_chain, most = stand
    return [position.entry, position.chain, items, names, cache_chain, most]


def _up_to(push: Push, stand: Stand, length: int, more: list[Any]) -> Pulled:
    """What came since, and the entry that was pushed, if so many were wanted."""
    number, entry, items, names, before, cache, newest = more
    tip = Tip(push.generation, number, push.chain, items, length, names.decode())
    entries = [_stamped(push.generation, *one) for one in before]
    if len(entries) < stand.most:
        last = entries[-1].position.chain if entries else stand.position.chain
        entries.append(Stamped(Position(push.generation, number, push.chain, entry.decode()), last, b""))
    return Pulled(tip, entries, push.cache or cache or None, newest.decode())


def _stamped(generation: str, entry: bytes, fields: list[bytes]) -> Stamped:
    told = dict(zip(fields[::2], fields[1::2], strict=True))
    position = Position(generation, int(told[b"n"]), told[b"c"].decode(), entry.decode())
    return Stamped(position, told[b"b"].decode(), told[b"d"])
