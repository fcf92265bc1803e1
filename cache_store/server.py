"""What a server of shared state can do: each of these is atomic. `MemoryServer` and `RedisServer` are two of them.

The trainer's side (`streamer.cache_store.shared`) is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from streamer.cache_store.base import Span
from streamer.cache_store.replica import Position

SOFT_LOG_LENGTH = 512
"""Entries of the log after which a trainer writes a snapshot and trims it."""
HARD_LOG_LENGTH = 4096
"""Entries of the log beyond which nothing is added until it is trimmed."""
ENTRIES_AT_ONCE = 128
"""Entries of the log that are read at once."""
IDS_AT_ONCE = 10_000
"""Item ids that are read, or given rows, at once."""
RESEED_S = 20.0
"""How long after a seeding a trainer that knew more may seed again."""


class Wanted(NamedTuple):
    """A partition to claim."""

    epoch: int
    """The one that we knew last."""
    end: int | None
    """The offset after its last record, if known."""
    anew: bool
    """It was given to us now; if not, it was ours before, and is claimed again unless others have claimed it since."""


class Claim(NamedTuple):
    """What became of a claim."""

    epoch: int
    next: int | None
    """The offset up to which the store has contributions; None if it has none."""
    ours: bool = True
    """Whether the partition is ours."""


class Stamped(NamedTuple):
    """An entry of the log as it is stored."""

    position: Position
    before: str
    """The chain of the entry before it."""
    packed: bytes
    """May be left out (b"") of an entry that is answered to whoever has just pushed it."""


class Tip(NamedTuple):
    """The end of the log now."""

    generation: str
    number: int
    chain: str
    items: int
    """How many items have a row."""
    length: int
    """Entries in the log."""
    names: str
    """Fingerprint of the ids of all items."""


class Pulled(NamedTuple):
    """Entries after a position, and where the log ends. `tip` is None if there is no state."""

    tip: Tip | None
    entries: list[Stamped]
    cache: bytes | None = None
    """The newest cache, if it is another one than that of the chain that was asked for."""
    cache_chain: str = ""
    """Of the entry that it came with."""


class Stand(NamedTuple):
    """Where a trainer stands."""

    position: Position
    """Of the last entry that it has."""
    items: int
    """How many items it knows the names of."""
    names: str
    """Their fingerprint."""
    cache_chain: str
    """Of the cache that it has."""
    most: int
    """So many entries it takes at once."""


@dataclass(frozen=True, slots=True)
class Push:
    """Something to add.

    Args:
        generation: that the rows belong to.
        chain: a new name for the entry.
        packed: the entry.
        spans: where its events come from, with the epoch in which we claimed each partition.
        cache: the next cache, packed; None leaves the one that is there.
        items: how many rows there must be: all that it names are below.
        stand: where we stand; it is then added only if the server has lost nothing of what we have, and what has come
            since is answered. None adds it in any case.
    """

    generation: str
    chain: str
    packed: bytes
    spans: Sequence[tuple[Span, int]]
    cache: bytes | None = None
    items: int = 0
    stand: Stand | None = None


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of it.

    Args:
        outcome: `added`; `known` (all of it was there already); `overlap` (some of it was); `fenced` (a partition has
            a newer epoch); `full` (the log must be trimmed first); `elsewhere` (another generation, or
            rows that it does not know); `astray` (the log does not go on from where we stand, or the items do not: a
            pull tells why); `empty`.
        next: for `overlap` what is there of each partition.
        partition: for `fenced`.
        length: entries in the log.
        pulled: for `added`, if it was said where we stand: what has come since, up to the entry itself, as far as so
            many were wanted.
    """

    outcome: str
    next: Mapping[str, int] = field(default_factory=dict)
    partition: str = ""
    length: int = 0
    pulled: Pulled | None = None


@dataclass(frozen=True, slots=True)
class Seed:
    """State for a server that has none, or less than we have.

    Args:
        generation: the new one.
        snapshot: packed, at the beginning of the new generation.
        ids: of all items, by row.
        next: of the snapshot.
        epochs: as far as we know them.
        origin: where our own state stood: a server that was seeded by somebody who knew less takes ours instead.
        instead_of: the generation that has lost something; "" for an empty server.
        events: that the state holds. Of two states of a model the one with more events knows more, whatever they were
            called: one may come from an old checkpoint, and have another origin.
    """

    generation: str
    snapshot: bytes
    ids: Sequence[str]
    next: Mapping[str, int]
    epochs: Mapping[str, int]
    origin: Position | None
    instead_of: str = ""
    events: int = 0


class Server(Protocol):
    """Atomic operations on the shared state of one model.

    Every one of them raises `StoreUnavailable` if it cannot be done now, `StoreRefused` if it never can.
    """

    kind: str
    inline: bool
    """Whether it answers at once, so that nothing has to be done behind the trainer's back."""

    def assign(self, generation: str, ids: Sequence[str]) -> list[int] | None:
        """The row of each id; new ids get the next rows. None if it is another generation."""
        ...

    def ids(self, generation: str, first: int, count: int) -> list[str] | None:
        """Ids of rows from `first` on, at most so many. None if it is another generation."""
        ...

    def claim(self, generation: str, trainer: str, wanted: Mapping[str, Wanted]) -> dict[str, Claim] | None:
        """Raise the epochs of some partitions. None if it is another generation.

        The epoch of one that was given to us now is no less than the server's time in milliseconds: so it is beyond
        all that there ever were, also those that a server has lost and that we never knew.
        """
        ...

    def push(self, push: Push) -> Pushed:
        """Add an entry to the log, once."""
        ...

    def pull(self, after: Position, count: int, cache_chain: str) -> Pulled:
        """Entries after a position, at most so many."""
        ...

    def snapshot(self) -> bytes | None:
        """The newest snapshot."""
        ...

    def save_snapshot(self, trainer: str, position: Position, packed: bytes) -> bool:
        """Keep this snapshot, and trim the log at its position. False if that is not in the log (any more)."""
        ...

    def may_snapshot(self, trainer: str) -> bool:
        """Whether it is our turn to write a snapshot: one trainer at a time."""
        ...

    def seed(self, seed: Seed) -> bool:
        """Begin a new generation; False if there is a state that is not to be replaced."""
        ...

    def beat(self, trainer: str, about: str) -> None:
        """Say that we are there."""
        ...

    def leave(self, trainer: str) -> None:
        """Say that we are gone: whoever asks who is at work need not wait until we were not seen for a while."""
        ...

    def close(self) -> None:
        """Let go."""
        ...
