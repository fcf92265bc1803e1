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

from streamer.cache_store.base import Counts, Rows
from streamer.cache_store.codec import Malformed, pack_rows, unpack_entry, unpack_rows
from streamer.cache_store.connection import ERRORS, connect, shown, translated
from streamer.cache_store.errors import Damaged, StoreRefused, StoreUnavailable
from streamer.cache_store.keys import TYPES, Keys
from streamer.cache_store.redis import RedisServer, check_format
from streamer.cache_store.replica import Position, Replica
from streamer.cache_store.scripts import LOOK, PUT_CACHE, SEEN
from streamer.cache_store.server import ENTRIES_AT_ONCE, IDS_AT_ONCE, Seed

ACTIVE_S = 10.0
"""A trainer that was seen so lately is at work: it says every two seconds that it is there."""
ATTEMPTS = 8
"""How often reading begins again when the log is trimmed meanwhile."""
IMPORTED, WANTED = "import", 2**53 - 1
"""Origin and events of a state that was put in. No trainer has that origin, or more: none puts its own in its place."""


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
        epochs: partition -> the epoch in which it was claimed last: milliseconds since 1970, when its owner got it.
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
        return _active(self.trainers, self.now_s)


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
        epochs: partition -> the epoch in which it was claimed last: milliseconds since 1970, when its owner got it.
        cache: item rows; None if there is none yet, or it cannot be read.
        note: what cannot be read, for a person; empty if all can.
    """

    position: Position
    events: int
    ids: Sequence[str]
    counts: Counts
    drawn: Counts
    next: Mapping[str, int]
    epochs: Mapping[str, int]
    cache: Rows | None
    note: str = ""


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
        self._seen = self._client.register_script(SEEN)
        self._put_cache = self._client.register_script(PUT_CACHE)

    def close(self) -> None:
        """Let go."""
        self._server.close()
        self._client.close()

    # look -------------------------------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """Names of all models of the namespace."""
        with self._errors():
            return sorted(name.decode(errors="replace") for name in self._client.smembers(self.keys.models))

    def look(self, *, whole: bool = False) -> Look | None:
        """What is there; None if nothing is. `whole` adds snapshot and cache.

        Raises:
            Damaged: what is there is not what we write.
            StoreRefused: a newer version wrote it.
        """
        named = ("meta", "log", "snapshot", "items", "next", "epochs", "owners", "cache", "rows", "trainers")
        with self._errors():
            found = self._look(keys=[getattr(self.keys, name) for name in named], args=[int(whole)])
        if found == [0]:
            return None
        if len(found) == 1:
            raise self._damaged(f"{self.keys.meta} is missing, or names no generation")
        try:
            check_format(_pairs(found[0]).get("format", "1"), self._which)
            return _look(*found)
        except (KeyError, ValueError) as error:
            raise self._damaged(f"its hashes hold something else than we write ({error!r})") from error

    def is_anything_there(self) -> bool:
        """Whether any key of the model is there, or its name is among those of all models."""
        with self._errors():
            named = self._client.sismember(self.keys.models, self.keys.model)
            return bool(named or self._client.exists(*self.keys.all()))

    def at_work(self) -> tuple[float, list[Seen]]:
        """The server's clock, and the trainers that are at work, also of a damaged model; as far as it is known."""
        try:
            with self._errors():
                now, *told = self._seen(keys=[self.keys.trainers])
            return float(now), _active(_all_seen(told), float(now))
        except (Damaged, ValueError):
            return 0.0, []

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

        A cache that cannot be read counts as none, with a note.

        Raises:
            StoreRefused: there is no model, it is damaged, or a newer version wrote it.
            StoreUnavailable: it cannot be read now.
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
            if replica.size > len(ids):
                raise self._damaged(f"{self.keys.items} has {len(ids):,} items, {replica.size:,} are counted")
            replica.grow(len(ids))
            state = (replica.position, replica.events, ids, replica.counts, replica.drawn)
            return look, Contents(*state, look.next, look.epochs, *self._cache(look))
        told = "is trimmed faster than it can be read, or has lost entries: try again"
        raise StoreUnavailable("broken", f"the log {self.keys.log} in {self.url} {told}")

    def _cache(self, look: Look) -> tuple[Rows | None, str]:
        """The cache, and a note if it cannot be read."""
        try:
            rows = unpack_rows(look.cache) if look.cache else None
            if rows is not None and int(rows.max(initial=-1)) >= look.items:
                raise Malformed("it names rows that no item has")
        except Malformed as error:
            return None, f"{self.keys.cache} cannot be read and counts as no cache: {error}"
        return rows, ""

    def _folded(self, look: Look) -> Replica:
        """The snapshot, and every entry after it up to the tip.

        Raises:
            _Moved: some entries are gone.
            Damaged: the snapshot or an entry cannot be read.
        """
        if not look.snapshot:
            raise self._damaged(f"{self.keys.snapshot} is missing")
        with self._readable(self.keys.snapshot):
            replica = Replica.unpack(look.snapshot)
        while replica.position.number < look.number:
            pulled = self._server.pull(replica.position, ENTRIES_AT_ONCE, "")
            if pulled.tip is None or pulled.tip.generation != look.generation or not pulled.entries:
                raise _Moved
            for stamped in pulled.entries[: look.number - replica.position.number]:
                if stamped.before != replica.position.chain:
                    raise _Moved
                with self._readable(f"entry {stamped.position.entry} of {self.keys.log}"):
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
        """Remove every key of the model, whatever is under it; answers how many there were."""
        with self._errors():
            self._client.sismember(self.keys.models, self.keys.model)  # before anything is removed, see that it can be
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
        except ERRORS as error:
            if "WRONGTYPE" in str(error):
                self._server.check_types()
            raise translated(error, self.url) from error

    @contextmanager
    def _readable(self, what: str) -> Iterator[None]:
        """What was not packed by us is damaged."""
        try:
            yield
        except Malformed as error:
            raise self._damaged(f"{what} cannot be read: {error}") from error

    def _damaged(self, told: str) -> Damaged:
        return Damaged(f"{self._which} is damaged: {told}. `streamer store reset` removes it")

    @property
    def _which(self) -> str:
        return f"the model {self.keys.model!r} in {self.url}"


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
        trainers=_all_seen(trainers),
        log_length=length,
        snapshot_number=int(about.get("snapshot", 0)),
        snapshot_at_s=written_ms / 1000 if written_ms else seeded,
        seeded_at_s=seeded,
        now_s=float(now),
        snapshot=snapshot,
        cache=cache,
    )


def _active(trainers: Sequence[Seen], now_s: float) -> list[Seen]:
    return [seen for seen in trainers if now_s - seen.at_s <= ACTIVE_S]


def _all_seen(flat: Sequence[bytes]) -> list[Seen]:
    return [_seen(name, told) for name, told in sorted(_pairs(flat).items())]


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
