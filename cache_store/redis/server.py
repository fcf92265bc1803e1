"""The shared state of a model in Redis (6.2 to 8) or Valkey."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from streamer.cache_store.codec import FORMAT, fingerprint
from streamer.cache_store.errors import Damaged, StoreRefused, StoreUnavailable
from streamer.cache_store.redis import schema
from streamer.cache_store.redis.connection import (
    ERRORS,
    as_store_error,
    connect,
    without_passwords,
)
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.replica import LogPosition
from streamer.cache_store.server import (
    HARD_LOG_LENGTH,
    PAUSE_S,
    RESEED_S,
    Claim,
    ClaimRequest,
    LogEntry,
    LogHead,
    Pulled,
    Push,
    PushOutcome,
    PushResult,
    Seed,
)

logger = logging.getLogger(__name__)

LEASE_MS = 30_000
FORGET_TRAINERS_S = 3600
NEW_KEYS_S = 300
PART_BYTES = 1 << 19
"""Of a snapshot, written by one command: a server takes 512 MB by default, 1 MB at
least (proto-max-bulk-len).
"""
IDS_PER_COMMAND = 1000
"""More arguments of one command would make other clients wait."""


class RedisServer:
    """One model in Redis. `connection` says what a URL may be; `StoreRefused` says what
    is wrong with it.
    """

    kind = "redis"

    def __init__(
        self,
        url: str,
        keys: Keys,
        timeout_s: float = 5.0,
        hard_log_length: int = HARD_LOG_LENGTH,
    ) -> None:
        self.url = without_passwords(url)
        self.keys = keys
        self._hard = hard_log_length
        self._connect: Callable[[], Any] = partial(connect, url, timeout_s)
        self._client: Any = None
        self._scripts: dict[str, Any] = {}
        self._checked_policy = False
        with suppress(StoreUnavailable):  # of a cluster: it may respond later
            self._connected()

    def assign(self, generation: str, ids: Sequence[str]) -> list[int] | None:
        rows: list[int] = []
        for start in range(0, len(ids), IDS_PER_COMMAND):
            part = ids[start : start + IDS_PER_COMMAND]
            found = self.run(
                schema.ASSIGN, ("meta", "rows", "items"), [generation, *part]
            )
            if found == [-1]:
                return None
            rows += found
        return rows

    def ids(self, generation: str, first: int, count: int) -> list[str] | None:
        found = self.run(
            schema.IDS, ("meta", "items"), [generation, first, first + count - 1]
        )
        return None if found == -1 else [raw.decode() for raw in found]

    def claim(
        self, generation: str, trainer: str, requests: Mapping[str, ClaimRequest]
    ) -> dict[str, Claim] | None:
        arguments: list[Any] = [generation, trainer]
        for name, (epoch, end, assigned) in requests.items():
            arguments += [name, epoch, -1 if end is None else end, int(assigned)]
        found = self.run(schema.CLAIM, ("meta", "epochs", "next", "owners"), arguments)
        if found == [-1]:
            return None
        claims = zip(requests, found[::3], found[1::3], found[2::3], strict=True)
        return {
            name: Claim(epoch, None if at < 0 else at, bool(ours))
            for name, epoch, at, ours in claims
        }

    def push(self, push: Push) -> PushResult:
        arguments: list[Any] = [
            push.generation,
            push.chain,
            push.packed,
            push.cache or b"",
            self._hard,
            push.items,
        ]
        arguments += [
            push.cursor.position.stream_id,
            push.cursor.position.chain,
            *push.cursor[1:],
        ]
        arguments += [len(push.retired), *push.retired]
        for span, epoch in push.spans:
            arguments += [span.partition, epoch, span.start, span.stop]
        keys = ("meta", "log", "next", "epochs", "cache", "items", "rows", "paused")
        name, length, *more = self.run(schema.PUSH, keys, arguments)
        outcome = PushOutcome(name.decode())
        if outcome is PushOutcome.OVERLAP:
            following = zip(more[::2], more[1::2], strict=True)
            return PushResult(
                outcome,
                next={partition.decode(): int(at) for partition, at in following},
            )
        if outcome is PushOutcome.FENCED:
            return PushResult(outcome, partition=more[0].decode())
        return PushResult(
            outcome,
            length=length,
            pulled=_pulled_by(push, length, more) if more else None,
        )

    def pull(self, after: LogPosition, count: int, cache_chain: str) -> Pulled:
        arguments = [after.generation, after.stream_id, count, cache_chain]
        found = self.run(schema.PULL, ("meta", "log", "items", "cache"), arguments)
        if not found:
            return Pulled(None, [])
        generation, number, chain, items, length, names, entries, cache, newest = found
        head = LogHead(
            generation.decode(), number, chain.decode(), items, length, names.decode()
        )
        return Pulled(
            head,
            [_entry(head.generation, *one) for one in entries],
            cache or None,
            newest.decode(),
        )

    def snapshot(self) -> bytes | None:
        self._check_policy()
        self._check_format()
        return b"".join(self.call("lrange", self.keys.snapshot, 0, -1)) or None

    def save_snapshot(self, trainer: str, position: LogPosition, packed: bytes) -> bool:
        new = self.keys.new("snapshot", secrets.token_hex(8))
        parts = self._put_parts(new, packed)
        arguments = [
            position.generation,
            position.number,
            position.stream_id,
            parts,
            trainer,
            position.chain,
        ]
        return bool(
            self.run(
                schema.SAVE_SNAPSHOT,
                ("meta", "log", "snapshot", "lease", new),
                arguments,
            )
        )

    def _put_parts(self, key: str, packed: bytes) -> int:
        """Write a snapshot under a new key; returns the number of parts."""
        starts = range(0, len(packed), PART_BYTES)
        for start in starts:
            self.call("rpush", key, packed[start : start + PART_BYTES])
            self.call("expire", key, NEW_KEYS_S)
        return len(starts)

    def may_snapshot(self, trainer: str) -> bool:
        return bool(self.call("set", self.keys.lease, trainer, nx=True, px=LEASE_MS))

    def pause(self, trainer: str) -> bool:
        paused = self.call(
            "set", self.keys.paused, trainer, nx=True, px=int(1000 * PAUSE_S)
        )
        return bool(paused) or self.call("get", self.keys.paused) == trainer.encode()

    def seed(self, seed: Seed) -> bool:
        """Write items beside those that are there, which they replace when the
        generation begins; then begin it.
        """
        self.check_types()
        self._check_format()
        self._check_policy()
        items = self.keys.new("items", seed.generation)
        rows = self.keys.new("rows", seed.generation)
        snapshot = self.keys.new("snapshot", seed.generation)
        parts = -(-len(seed.snapshot) // PART_BYTES)
        origin = seed.origin or LogPosition("", 0, "", "")
        arguments: list[Any] = [
            seed.generation,
            parts,
            origin.generation,
            origin.number,
            seed.replaces,
        ]
        arguments += [
            RESEED_S,
            FORMAT,
            len(seed.ids),
            fingerprint(seed.ids),
            len(seed.next),
            seed.events,
            seed.head,
        ]
        arguments += [
            part for pair in (*seed.next.items(), *seed.epochs.items()) for part in pair
        ]
        keys = (
            "meta",
            "log",
            "snapshot",
            "items",
            "rows",
            "next",
            "cache",
            "paused",
            "epochs",
            "owners",
        )
        if self.run(schema.SEED, (*keys, items, rows, snapshot), arguments) == 0:
            return False  # before everything is written
        self._put_items(items, rows, seed.ids)
        self._put_parts(snapshot, seed.snapshot)
        seeded = self.run(schema.SEED, (*keys, items, rows, snapshot), arguments)
        self.call("unlink", items, rows, snapshot)
        if seeded < 0:
            raise StoreUnavailable(
                "broken",
                f"{self.url} lost items while it was seeded; it will be retried",
            )
        if seeded:
            self.call("sadd", self.keys.models, self.keys.model)
        return bool(seeded)

    def _put_items(self, items: str, rows: str, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), IDS_PER_COMMAND):
            part = ids[start : start + IDS_PER_COMMAND]
            self.call("rpush", items, *part)
            self.call(
                "hset", rows, mapping={raw: start + k for k, raw in enumerate(part)}
            )
            for key in (items, rows):
                self.call("expire", key, NEW_KEYS_S)

    def heartbeat(self, trainer: str, partitions: str) -> None:
        self.run(
            schema.HEARTBEAT, ("trainers",), [trainer, partitions, FORGET_TRAINERS_S]
        )

    def leave(self, trainer: str) -> None:
        self.call("hdel", self.keys.trainers, trainer)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # calls ------------------------------------------------------------------------------------------------------------

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """The result of a script; keys by their names in `schema.TYPES`, or as they
        are.
        """
        if script not in self._scripts:
            self._scripts[script] = self._connected().register_script(script)
        named = [
            getattr(self.keys, key) if key in schema.TYPES else key for key in keys
        ]
        return self._translated(lambda: self._scripts[script](named, list(arguments)))

    def call(self, command: str, *arguments: Any, **options: Any) -> Any:
        """The result of a command, by its name in redis-py.

        Raises:
            StoreRefused: the server will never do that.
            StoreUnavailable: it cannot do that now.
        """
        client = self._connected()
        return self._translated(lambda: getattr(client, command)(*arguments, **options))

    def scan(self, pattern: str) -> list[bytes]:
        """All keys that match a pattern."""
        client = self._connected()
        found: list[bytes] = self._translated(
            lambda: list(client.scan_iter(match=pattern, count=1000))
        )
        return found

    def _connected(self) -> Any:
        self._client = self._client or self._connect()
        return self._client

    def _translated(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ERRORS as error:
            if "WRONGTYPE" in str(error):
                self.check_types()
            raise as_store_error(error, self.url) from error

    # checks -----------------------------------------------------------------------------------------------------------

    def _check_policy(self) -> None:
        """Warn once if the server may evict our keys, as far as it says."""
        if self._checked_policy:
            return
        self._checked_policy = True
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
        """Raise `Damaged`, with every key of ours that has another type than we write."""
        wrong = []
        for key, expected in self.keys.types().items():
            found = self.call("type", key).decode()
            if found not in ("none", expected):
                wrong.append(f"{key} is a {found}, not a {expected}")
        if wrong:
            raise Damaged(
                f"{self.url} holds keys of another program under our names: {'; '.join(wrong)}. "
                "Choose another --model or --redis-namespace, or remove them (`streamer store reset` removes a model)"
            )

    def _check_format(self) -> None:
        found = self.call("hget", self.keys.meta, "format")
        check_format(
            (found or b"1").decode(errors="replace"),
            f"the model {self.keys.model!r} in {self.url}",
        )


def check_format(found: str, which: str) -> None:
    """Raise `StoreRefused` if a newer version wrote a model of this format, `Damaged`
    if none writes that.
    """
    if not found.isdecimal():
        raise Damaged(
            f"{which} is damaged: its format is {found!r}, not a number. `streamer store reset` removes it"
        )
    if int(found) > FORMAT:
        raise StoreRefused(
            f"{which} has format {found}, this version reads {FORMAT}: install a newer one, or choose another --model"
        )


def _pulled_by(push: Push, length: int, more: list[Any]) -> Pulled:
    """What came since the cursor, and the entry that was pushed, unless that is one
    more than the trainer takes.
    """
    number, stream_id, items, names, before, cache, newest = more
    head = LogHead(push.generation, number, push.chain, items, length, names.decode())
    entries = [_entry(push.generation, *one) for one in before]
    if len(entries) < push.cursor.max_entries:
        previous = entries[-1].position.chain if entries else push.cursor.position.chain
        entries.append(
            LogEntry(
                LogPosition(push.generation, number, push.chain, stream_id.decode()),
                previous,
                b"",
            )
        )
    return Pulled(head, entries, push.cache or cache or None, newest.decode())


def _entry(generation: str, stream_id: bytes, fields: list[bytes]) -> LogEntry:
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        position = LogPosition(
            generation, int(found[b"n"]), found[b"c"].decode(), stream_id.decode()
        )
        return LogEntry(position, found[b"b"].decode(), found[b"d"])
    except (KeyError, ValueError) as error:
        problem = f"entry {stream_id.decode()} of the store's log is not a trainer's: {error!r}"
        raise StoreUnavailable(
            "broken", f"{problem}; `streamer store reset` removes the model"
        ) from error
