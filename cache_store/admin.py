"""What an operator does with the shared state of a model in Redis: look at it, take it out, put it in, remove it.

Nothing here takes part in the exchange between trainers, and none of it makes them wait for long: what is large is read
in parts, beside trainers that go on.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis import exceptions

from cache_store.base import Counts, Rows
from cache_store.codec import Malformed, pack_rows, unpack_entry, unpack_rows
from cache_store.connection import connect, shown, translated
from cache_store.errors import StoreRefused, StoreUnavailable
from cache_store.keys import TYPES, Keys
from cache_store.redis import RedisServer
from cache_store.replica import Position, Replica
from cache_store.server import Seed

ACTIVE_S = 10.0
"""A trainer that was seen so lately is at work: it says every two seconds that it is there."""
ENTRIES_AT_ONCE = 128
IDS_AT_ONCE = 10_000
ATTEMPTS = 8
"""How often reading begins again when the log is trimmed meanwhile."""
IMPORTED, WANTED = "import", 2**53 - 1
"""Origin and events of a state that was put in. No trainer has that origin, or more: none puts its own in its place."""

LOOK = """
-- KEYS: meta, log, snapshot, items, next, epochs, owners, cache, trainers.  ARGV: 1 to get snapshot and cache too.
-- Returns {meta, next, epochs, owners, trainers, items, length of the log, seconds, snapshot, cache}, {} if there is no
-- state; hashes as name, value ...
local meta = redis.call('HGETALL', KEYS[1])
if #meta == 0 then return {} end
local found = {meta}
for k = 5, 7 do found[k - 3] = redis.call('HGETALL', KEYS[k]) end
found[5] = redis.call('HGETALL', KEYS[9])
found[6], found[7] = redis.call('LLEN', KEYS[4]), redis.call('XLEN', KEYS[2])
found[8], found[9], found[10] = redis.call('TIME')[1], '', ''
if ARGV[1] == '1' then
    found[9], found[10] = redis.call('GET', KEYS[3]) or '', redis.call('GET', KEYS[8]) or ''
end
return found
"""

PUT_CACHE = """
-- KEYS: meta, cache.  ARGV: generation, cache.
-- Returns 1, or 0 if it is another generation or has a cache already.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
if redis.call('HEXISTS', KEYS[1], 'cache') == 1 then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[1], 'cache', ARGV[1])
return 1
"""


class Seen(NamedTuple):
    """A trainer, as it said of itself."""

    trainer: str
    at_s: float
    """Seconds since the epoch, by the server's clock."""
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a model without its items. All of it is of one moment.

    Args:
        generation: that the rows belong to.
        number: of the newest entry of the log.
        chain: of the newest entry.
        items: how many have a row.
        next: partition -> offset up to which its contributions are counted.
        epochs: partition -> how often it was claimed.
        owners: partition -> the trainer that claimed it last.
        trainers: those of the last hour.
        log_length: entries in the log.
        snapshot_number: of the last entry that is in the snapshot.
        snapshot_at_s: when that was written, seconds since the epoch.
        seeded_at_s: when the generation began.
        now_s: the server's clock.
        snapshot: packed; empty if it was not asked for.
        cache: packed; empty if it was not asked for, or there is none.
    """

    generation: str
    number: int
    chain: str
    items: int
    next: Mapping[str, int]
    epochs: Mapping[str, int]
    owners: Mapping[str, str]
    trainers: Sequence[Seen]
    log_length: int
    snapshot_number: int
    snapshot_at_s: float
    seeded_at_s: float
    now_s: float
    snapshot: bytes = b""
    cache: bytes = b""

    @property
    def active(self) -> list[Seen]:
        """Trainers that are at work."""
        return [seen for seen in self.trainers if self.now_s - seen.at_s <= ACTIVE_S]


@dataclass(frozen=True, slots=True)
class Contents:
    """The shared state at one moment: the snapshot, and everything of the log after it.

    Args:
        position: of the last entry that is in it.
        events: how many were counted.
        ids: of all items, by row.
        counts: [N] events of each item.
        drawn: [N] how often each item was resampled.
        next: partition -> offset up to which its contributions are counted.
        epochs: partition -> how often it was claimed.
        cache: item rows; None if there is none yet.
    """

    position: Position
    events: int
    ids: Sequence[str]
    counts: Counts
    drawn: Counts
    next: Mapping[str, int]
    epochs: Mapping[str, int]
    cache: Rows | None


class _Moved(Exception):  # noqa: N818
    """What was being read is not there any more. Never leaves this module."""


class StoreAdmin:
    """One model in Redis, from outside.

    Args:
        url: as for `RedisServer`.
        keys: the model's.
        timeout_s: how long to wait for an answer.

    Raises:
        StoreRefused: the URL is wrong.
        StoreUnavailable: no node of a cluster answers.
    """

    def __init__(self, url: str, keys: Keys, timeout_s: float = 10.0) -> None:
        self.url, self.keys = shown(url), keys
        self._server = RedisServer(url, keys, timeout_s)
        self._client = connect(url, timeout_s)
        self._look = self._client.register_script(LOOK)
        self._put_cache = self._client.register_script(PUT_CACHE)

    def close(self) -> None:
        """Let go."""
        self._server.close()
        self._client.close()

    # look -------------------------------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """Names of all models of the namespace."""
        with self._errors():
            return sorted(name.decode() for name in self._client.smembers(self.keys.models))

    def look(self, *, whole: bool = False) -> Look | None:
        """What is there; None if nothing is. `whole` adds snapshot and cache."""
        named = ("meta", "log", "snapshot", "items", "next", "epochs", "owners", "cache", "trainers")
        with self._errors():
            found = self._look(keys=[getattr(self.keys, name) for name in named], args=[int(whole)])
        return _look(*found) if found else None

    def memory(self) -> dict[str, int | None]:
        """Bytes of each of our keys that is there; None where the server does not tell."""
        found: dict[str, int | None] = {}
        with self._errors():
            for name in TYPES:
                try:
                    size = self._client.memory_usage(getattr(self.keys, name))
                except exceptions.ResponseError:
                    size = None if self._client.exists(getattr(self.keys, name)) else 0
                if size != 0 and (size is not None or self._client.exists(getattr(self.keys, name))):
                    found[name] = size
        return found

    def contents(self) -> tuple[Look, Contents]:
        """Everything at one moment, and what surrounds it.

        1. tip, snapshot and cache, at once;
        2. the entries between snapshot and tip;
        3. ids of the items that there are at the tip: they never change.

        Raises:
            StoreRefused: there is no model.
            StoreUnavailable: it cannot be read, or not now.
        """
        for _ in range(ATTEMPTS):
            # 1.
            look = self.look(whole=True)
            if look is None:
                raise StoreRefused(f"there is no model {self.keys.model!r} in {self.url}")
            try:
                # 2.
                replica = self._folded(look)
                # 3.
                ids = self._ids(look)
            except _Moved:
                continue
            except Malformed as error:
                raise StoreUnavailable("broken", f"the state in {self.url} cannot be read: {error}") from error
            replica.grow(len(ids))
            cache = unpack_rows(look.cache) if look.cache else None
            state = (replica.position, replica.events, ids, replica.counts, replica.drawn)
            return look, Contents(*state, look.next, look.epochs, cache)
        raise StoreUnavailable("broken", f"the log in {self.url} is trimmed faster than it can be read: try again")

    def _folded(self, look: Look) -> Replica:
        """The snapshot, and every entry after it up to the tip.

        Raises:
            _Moved: some entries are gone.
        """
        if not look.snapshot:
            raise Malformed("there is no snapshot")
        replica = Replica.unpack(look.snapshot)
        while replica.position.number < look.number:
            pulled = self._server.pull(replica.position, ENTRIES_AT_ONCE, "")
            if pulled.tip is None or pulled.tip.generation != look.generation or not pulled.entries:
                raise _Moved
            for stamped in pulled.entries[: look.number - replica.position.number]:
                if stamped.before != replica.position.chain:
                    raise _Moved
                replica.apply(unpack_entry(stamped.packed), stamped.position)
        if replica.position[:3] != (look.generation, look.number, look.chain):
            raise _Moved
        return replica

    def _ids(self, look: Look) -> list[str]:
        ids: list[str] = []
        while len(ids) < look.items:
            part = self._server.ids(look.generation, len(ids), min(IDS_AT_ONCE, look.items - len(ids)))
            if not part:
                raise _Moved
            ids += part
        return ids

    # change -----------------------------------------------------------------------------------------------------------

    def reset(self) -> int:
        """Remove every key of the model; answers how many there were."""
        with self._errors():
            passing = list(self._client.scan_iter(match=f"{_literal(self.keys.tag)}:new:*", count=1000))
            removed = int(self._client.unlink(*self.keys.all(), *passing))
            self._client.srem(self.keys.models, self.keys.model)
        return removed

    def put(self, contents: Contents, instead_of: str = "") -> str:
        """Begin a generation with this state, and answer its name.

        Args:
            contents: what to put in.
            instead_of: the generation that it replaces; "" if there is none.

        Raises:
            StoreRefused: there is another generation.
        """
        look, generation = self.look(), secrets.token_hex(8)
        if look is not None and look.generation != instead_of:
            raise StoreRefused(f"there is a model {self.keys.model!r} in {self.url} already, or it has begun anew")
        values = {"position": list(Position.beginning(generation)), "next": contents.next, "events": contents.events}
        packed = Replica.of(values, contents.counts, contents.drawn).pack()
        origin = Position(IMPORTED, 0, "", "")
        seed = Seed(generation, packed, contents.ids, contents.next, contents.epochs, origin, instead_of, WANTED)
        if not self._server.seed(seed):
            raise StoreRefused(f"the model {self.keys.model!r} in {self.url} has begun anew meanwhile: try again")
        if contents.cache is not None:
            with self._errors():
                named = [self.keys.meta, self.keys.cache]
                self._put_cache(keys=named, args=[generation, pack_rows(contents.cache)])
        return generation

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of Redis become ours."""
        try:
            yield
        except exceptions.RedisError as error:
            raise translated(error, self.url) from error


def _look(*found: Any) -> Look:
    """What the script `LOOK` answered."""
    meta, following, epochs, owners, trainers, items, length, now, snapshot, cache = found
    about = _pairs(meta)
    seeded = float(about.get("seeded", 0))
    written_ms = int(about.get("snapshot_id", "0-0").partition("-")[0])
    return Look(
        generation=about["generation"],
        number=int(about["number"]),
        chain=about["chain"],
        items=items,
        next={name: int(offset) for name, offset in _pairs(following).items()},
        epochs={name: int(epoch) for name, epoch in _pairs(epochs).items()},
        owners=_pairs(owners),
        trainers=[_seen(name, told) for name, told in sorted(_pairs(trainers).items())],
        log_length=length,
        snapshot_number=int(about.get("snapshot", 0)),
        snapshot_at_s=written_ms / 1000 if written_ms else seeded,
        seeded_at_s=seeded,
        now_s=float(now),
        snapshot=snapshot,
        cache=cache,
    )


def _seen(trainer: str, told: str) -> Seen:
    at_s, _, about = told.partition(" ")
    return Seen(trainer, float(at_s), tuple(name for name in about.split(", ") if name))


def _pairs(flat: Sequence[bytes]) -> dict[str, str]:
    """A hash as Lua answers it: name, value ..."""
    told = [part.decode() for part in flat]
    return dict(zip(told[::2], told[1::2], strict=True))


def _literal(text: str) -> str:
    """A pattern of Redis that means just this text."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
