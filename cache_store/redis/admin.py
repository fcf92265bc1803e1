"""What an operator does with the shared state of a model in Redis: look at it, export
it, import it, remove it.

Nothing here takes part in the exchange between trainers, or makes them wait for long:
what is large is read in parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streamer.cache_store.codec import (
    MalformedEntry,
    unpack_delta,
    unpack_rows,
)
from streamer.cache_store.contribution import Counts, Rows
from streamer.cache_store.errors import (
    Damaged,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from streamer.cache_store.redis.schema import SUMMARY, TYPES, Keys
from streamer.cache_store.redis.server import RedisServer, check_format
from streamer.cache_store.replica import LogPosition, StoreReplica
from streamer.cache_store.server import ENTRIES_AT_ONCE, ids_between

ACTIVE_S = 10.0
"""A trainer with a younger heartbeat is active; it sends one every two seconds."""
ATTEMPTS = 8
"""How often reading starts over because the log was trimmed meanwhile."""


class Heartbeat(NamedTuple):
    """The last sign of life of a trainer."""

    trainer: str
    at_s: float  # seconds since the epoch, by the server's clock
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What there is of a model besides its items. All of it is of one moment; times are
    seconds since the epoch.
    """

    generation: str
    number: int  # of the newest entry of the log
    chain: str  # of the newest entry
    rows: int  # that were given to items, those of retired items included
    items: int  # that are not retired
    next: Mapping[
        str, int
    ]  # partition -> offset up to which its contributions are counted
    epochs: Mapping[
        str, int
    ]  # partition -> epoch of its last claim: when it was assigned, milliseconds since 1970
    owners: Mapping[str, str]  # partition -> the trainer that claimed it last
    trainers: Sequence[Heartbeat]  # those of the last hour
    log_length: int
    snapshot_number: int  # of the last entry that is in the snapshot
    snapshot_at_s: float
    seeded_at_s: float  # when the generation began
    now_s: float  # by the server's clock
    snapshot: bytes = b""  # packed; empty if it was not asked for
    cache: bytes = b""  # packed; empty if it was not asked for, or there is none

    @property
    def active(self) -> list[Heartbeat]:
        """Trainers that are active."""
        return _active(self.trainers, self.now_s)


@dataclass(frozen=True, slots=True)
class Contents:
    """The shared state at one moment: the snapshot, and everything of the log after it."""

    position: LogPosition  # of the last entry that is in it
    events: int  # that were counted
    ids: Sequence[str]  # of all items that are not retired, by row
    counts: Counts  # [N] events of each item
    drawn: Counts  # [N] how often each item was resampled
    next: Mapping[
        str, int
    ]  # partition -> offset up to which its contributions are counted
    epochs: Mapping[str, int]  # partition -> epoch of its last claim
    cache: Rows | None  # item rows; None if there is none yet, or it cannot be read
    note: str = ""  # what cannot be read, for a person


class StoreAdmin:
    """One model in Redis, from outside; a wrong URL is a `StoreRefused`."""

    def __init__(self, url: str, keys: Keys, timeout_s: float = 10.0) -> None:
        self._server = RedisServer(url, keys, timeout_s)
        self.url = self._server.url
        self.keys = keys

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    # read -------------------------------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """Names of all models of the namespace."""
        return sorted(
            name.decode(errors="replace")
            for name in self._server.call("smembers", self.keys.models)
        )

    def summary(self, *, whole: bool = False) -> ModelSummary | None:
        """What there is of the model; None if there is nothing. `whole` adds snapshot
        and cache.

        Raises:
            Damaged: no trainer writes what is there.
            StoreRefused: a newer version wrote it.
        """
        keys = (
            "meta",
            "log",
            "snapshot",
            "items",
            "next",
            "epochs",
            "owners",
            "cache",
            "rows",
            "trainers",
        )
        found = self._server.run(SUMMARY, keys, [int(whole)])
        if found == [0]:
            return None
        if len(found) == 1:
            raise self._damaged(f"{self.keys.meta} is missing, or names no generation")
        try:
            check_format(_pairs(found[0]).get("format", "1"), self._which)
            return _summary(*found)
        except (KeyError, ValueError) as error:
            raise self._damaged(
                f"its hashes hold values that no trainer writes ({error!r})"
            ) from error

    def exists(self) -> bool:
        """Whether any key of the model exists, or its name is among those of all
        models.
        """
        named = self._server.call("sismember", self.keys.models, self.keys.model)
        return bool(named or self._server.call("exists", *self.keys.all()))

    def active_trainers(self) -> tuple[float, list[Heartbeat]]:
        """The server's clock, and the active trainers also of a damaged model, as far
        as they can be read.
        """
        try:
            now_s = float(self._server.call("time")[0])
            found = self._server.call("hgetall", self.keys.trainers)
            return now_s, _active(
                _heartbeats([part for pair in found.items() for part in pair]), now_s
            )
        except (Damaged, ValueError):
            return 0.0, []

    def memory(self) -> dict[str, int | None]:
        """Bytes of each key that exists; None where the server does not say."""
        found: dict[str, int | None] = {}
        for name in TYPES:
            key = getattr(self.keys, name)
            if self._server.call("exists", key):
                try:
                    found[name] = self._server.call("memory_usage", key)
                except StoreError:
                    found[name] = None
        return found

    def contents(self) -> tuple[ModelSummary, Contents]:
        """Everything at one moment, and its summary. A cache that cannot be read counts
        as none, with a note.

        Raises:
            StoreRefused: there is no model, it is damaged, or a newer version wrote it.
            StoreUnavailable: it cannot be read now.
        """
        for _ in range(ATTEMPTS):
            # 1. head of the log, snapshot and cache, at once
            summary = self.summary(whole=True)
            if summary is None:
                raise StoreRefused(
                    f"there is no model {self.keys.model!r} in {self.url}"
                )
            # 2. the entries between snapshot and head
            replica = self._replica(summary)
            # 3. the item ids that there are at the head: they never change
            ids = ids_between(self._server, summary.generation, 0, summary.rows)
            if replica is None or ids is None:
                continue
            if replica.size > len(ids):
                raise self._damaged(
                    f"{self.keys.items} has {len(ids):,} items, {replica.size:,} are counted"
                )
            replica.grow(len(ids))
            # 4. without what is retired
            kept = ~replica.retired
            cache, note = self._cache(summary)
            if cache is not None:
                cache = (np.cumsum(kept) - 1)[cache[kept[cache]]]
            live = replica.without_retired(replica.position)
            ids = [raw for raw, keep in zip(ids, kept.tolist(), strict=True) if keep]
            state = (live.position, live.events, ids, live.counts, live.drawn)
            return summary, Contents(*state, summary.next, summary.epochs, cache, note)
        problem = (
            "is trimmed faster than it can be read, or has lost entries: try again"
        )
        raise StoreUnavailable(
            "broken", f"the log {self.keys.log} in {self.url} {problem}"
        )

    def _cache(self, summary: ModelSummary) -> tuple[Rows | None, str]:
        """The cache, and a note if it cannot be read."""
        try:
            rows = unpack_rows(summary.cache, summary.rows) if summary.cache else None
        except MalformedEntry as error:
            return (
                None,
                f"{self.keys.cache} cannot be read and counts as no cache: {error}",
            )
        return rows, ""

    def _replica(self, summary: ModelSummary) -> StoreReplica | None:
        """The snapshot, and every entry after it up to the head; None if some entries
        are gone.
        """
        if not summary.snapshot:
            raise self._damaged(f"{self.keys.snapshot} is missing")
        with self._readable(self.keys.snapshot):
            replica = StoreReplica.unpack(summary.snapshot)
        while replica.position.number < summary.number:
            pulled = self._server.pull(replica.position, ENTRIES_AT_ONCE, "")
            if (
                pulled.head is None
                or pulled.head.generation != summary.generation
                or not pulled.entries
            ):
                return None
            for entry in pulled.entries[: summary.number - replica.position.number]:
                if entry.previous_chain != replica.position.chain:
                    return None
                place = f"entry {entry.position.stream_id} of {self.keys.log}"
                with self._readable(
                    f"beside {self.keys.items} of {summary.rows:,} items, {place}"
                ):
                    replica.apply(
                        unpack_delta(entry.packed, summary.rows), entry.position
                    )
        return (
            replica
            if replica.position[:3]
            == (summary.generation, summary.number, summary.chain)
            else None
        )

    # change -----------------------------------------------------------------------------------------------------------

    def reset(self) -> int:
        """Remove every key of the model, whatever it holds; returns how many there
        were.
        """
        self._server.call(
            "sismember", self.keys.models, self.keys.model
        )  # fails before anything is removed
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", self.keys.tag) + ":new:*"
        removed = int(
            self._server.call("unlink", *self.keys.all(), *self._server.scan(pattern))
        )
        self._server.call("srem", self.keys.models, self.keys.model)
        return removed

    @contextmanager
    def _readable(self, what: str) -> Iterator[None]:
        try:
            yield
        except MalformedEntry as error:
            raise self._damaged(f"{what} cannot be read: {error}") from error

    def _damaged(self, problem: str) -> Damaged:
        return Damaged(
            f"{self._which} is damaged: {problem}. `streamer store reset` removes it"
        )

    @property
    def _which(self) -> str:
        return f"the model {self.keys.model!r} in {self.url}"


def _summary(*found: Any) -> ModelSummary:
    """The result of the script `SUMMARY`."""
    (
        meta,
        following,
        epochs,
        owners,
        trainers,
        rows,
        length,
        now,
        snapshot,
        cache,
        items,
    ) = found
    about = _pairs(meta)
    seeded = float(about.get("seeded", 0))
    written_ms = int(about.get("snapshot_id", "0-0").partition("-")[0])
    return ModelSummary(
        generation=about["generation"],
        number=int(about["number"]),
        chain=about["chain"],
        rows=rows,
        items=items,
        next={name: int(offset) for name, offset in _pairs(following).items()},
        epochs={name: int(epoch) for name, epoch in _pairs(epochs).items()},
        owners=_pairs(owners),
        trainers=_heartbeats(trainers),
        log_length=length,
        snapshot_number=int(about.get("snapshot", 0)),
        snapshot_at_s=written_ms / 1000 if written_ms else seeded,
        seeded_at_s=seeded,
        now_s=float(now),
        snapshot=b"".join(snapshot),
        cache=cache,
    )


def _active(trainers: Sequence[Heartbeat], now_s: float) -> list[Heartbeat]:
    return [heartbeat for heartbeat in trainers if now_s - heartbeat.at_s <= ACTIVE_S]


def _heartbeats(flat: Sequence[bytes]) -> list[Heartbeat]:
    found = []
    for trainer, value in sorted(_pairs(flat).items()):
        at_s, _, partitions = value.partition(" ")
        found.append(
            Heartbeat(
                trainer,
                float(at_s),
                tuple(name for name in partitions.split(", ") if name),
            )
        )
    return found


def _pairs(flat: Sequence[bytes]) -> dict[str, str]:
    """A hash as Lua returns it: name, value ..."""
    texts = [part.decode() for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))
