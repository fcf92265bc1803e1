"""The atomic operations of a server that holds the shared state of one model.

`memory.MemoryServer` and `redis.server.RedisServer` have them; the trainer's side
(`store`) is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from streamer.cache_store.contribution import OffsetSpan
from streamer.cache_store.replica import LogPosition

SOFT_LOG_LENGTH = 512
"""Entries of the log after which a trainer writes a snapshot and trims it."""
HARD_LOG_LENGTH = 4096
"""Entries of the log beyond which nothing is added until it is trimmed."""
ENTRIES_AT_ONCE = 128
"""Entries of the log that are read at once."""
IDS_AT_ONCE = 10_000
"""Item ids that are read, or given rows, at once."""
PAUSE_S = 15.0
"""How long the log is paused at most while retired rows are removed."""
RESEED_S = 20.0
"""How long after a seeding a trainer that knew more may seed again."""


class ClaimRequest(NamedTuple):
    """A partition to claim.

    A server that has more of it than `end` forgets that: the partition was deleted and
    created again. One that was not `assigned` to us now was ours before, and is refused
    if others have claimed it since.
    """

    epoch: int  # the last one that we know
    end: int | None  # the offset after its last record, if known
    assigned: bool


class Claim(NamedTuple):
    """The state of a partition after a claim."""

    epoch: int
    next: (
        int | None
    )  # the offset up to which the store has contributions; None if it has none
    ours: bool = True


class LogEntry(NamedTuple):
    """An entry of the log as it is stored."""

    position: LogPosition
    previous_chain: str
    packed: bytes
    """May be left out (b"") of the entry that the reader has just pushed."""


class LogHead(NamedTuple):
    """The newest entry of the log, and what there is besides."""

    generation: str
    number: int
    chain: str
    items: int  # that have a row
    length: int  # entries in the log
    fingerprint: str  # of the ids of all items


class Pulled(NamedTuple):
    """Entries after a position, and the head of the log; None if the server is empty."""

    head: LogHead | None
    entries: list[LogEntry]
    cache: bytes | None = None  # the newest, unless the reader has it
    cache_chain: str = ""  # of the entry that it came with


class Cursor(NamedTuple):
    """What a trainer has."""

    position: LogPosition  # of the last entry
    items: int  # item ids
    fingerprint: str  # of these ids
    cache_chain: str  # of the cache
    max_entries: int  # that it takes at once


@dataclass(frozen=True, slots=True)
class Push:
    """An entry to add, if the server has lost nothing of what the cursor has; the
    result holds what has come since.
    """

    generation: str  # that its rows belong to
    cursor: Cursor  # what we have
    chain: str  # a new token for the entry
    packed: bytes  # the entry
    spans: Sequence[
        tuple[OffsetSpan, int]
    ]  # where its events come from, with the epoch in which we claimed each partition
    cache: bytes | None = (
        None  # the next cache, packed; None leaves the one that is there
    )
    items: int = (
        0  # the server must have this many rows: all that the entry names are below
    )
    retired: Sequence[
        str
    ] = ()  # ids that lose their row; only if the log has nothing that the cursor has not


class PushOutcome(StrEnum):
    """What became of a push. Only `ADDED` has changed anything."""

    ADDED = "added"
    DUPLICATE = "duplicate"
    """The store has all of its events."""
    OVERLAP = "overlap"
    """The store has some of its events."""
    FENCED = "fenced"
    """A partition has a newer epoch."""
    LOG_FULL = "log full"
    """The log must be trimmed first, or somebody has paused it."""
    WRONG_GENERATION = "wrong generation"
    """The server is in another generation, or lacks rows that the entry names."""
    DIVERGED = "diverged"
    """The log or the items do not continue from the cursor, or there is more, and ids
    are to be retired: a pull shows why."""
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class PushResult:
    """The outcome of a push."""

    outcome: PushOutcome
    next: Mapping[str, int] = field(
        default_factory=dict
    )  # for `OVERLAP`: offset up to which each is counted
    partition: str = ""  # for `FENCED`
    length: int = 0  # entries in the log
    pulled: Pulled | None = (
        None  # for `ADDED`: what has come since the cursor, itself included up to `max_entries`
    )


@dataclass(frozen=True, slots=True)
class Seed:
    """State for a server that has none, or less than we have.

    A server that was seeded from an earlier position of the same origin takes ours
    instead. Of two states of a model the one with more events knows more, whatever
    their generations: one may come from an old checkpoint.
    """

    generation: str  # the new one
    snapshot: bytes  # packed, at the beginning of the new generation
    ids: Sequence[str]  # of all items, by row
    next: Mapping[str, int]  # of the snapshot
    epochs: Mapping[str, int]  # as far as we know them
    origin: LogPosition | None  # the position of our own state; None if we have none
    replaces: str = ""  # the generation that has lost something; "" for an empty server
    events: int = 0  # that the state counts
    head: str = ""  # if given: `replaces` must have an entry with this chain as its newest; its epochs stay


def ids_between(
    server: StoreServer, generation: str, first: int, stop: int
) -> list[str] | None:
    """The item ids of these rows, read in parts. None if the server lacks some, or the
    generation is another one.
    """
    found: list[str] = []
    while (row := first + len(found)) < stop:
        part = server.ids(generation, row, min(stop - row, IDS_AT_ONCE))
        if not part:
            return None
        found += part
    return found


class StoreServer(Protocol):
    """Atomic operations on the shared state of one model.

    Every one of them raises `StoreUnavailable` if it cannot be done now, `StoreRefused`
    if it never can.
    """

    kind: str

    def assign(self, generation: str, ids: Sequence[str]) -> list[int] | None:
        """The row of each id; new ids get the next rows. None if the generation is
        another one.
        """

    def ids(self, generation: str, first: int, count: int) -> list[str] | None:
        """At most `count` ids of rows from `first` on. None if the generation is
        another one.
        """

    def claim(
        self, generation: str, trainer: str, requests: Mapping[str, ClaimRequest]
    ) -> dict[str, Claim] | None:
        """Raise the epochs of partitions. None if the generation is another one.

        The epoch of a partition that was assigned to us now is no less than the
        server's time in milliseconds: it is beyond all that there ever were, also those
        that a server has lost and that we never knew.
        """

    def push(self, push: Push) -> PushResult:
        """Add an entry to the log, once."""

    def pull(self, after: LogPosition, count: int, cache_chain: str) -> Pulled:
        """At most `count` entries after a position; the cache too, unless its chain is
        `cache_chain`.
        """

    def snapshot(self) -> bytes | None:
        """The newest snapshot."""

    def save_snapshot(self, trainer: str, position: LogPosition, packed: bytes) -> bool:
        """Keep this snapshot, and trim the log at its position. False if the log does
        not have the position.
        """

    def may_snapshot(self, trainer: str) -> bool:
        """Whether it is our turn to write a snapshot: one trainer at a time."""

    def pause(self, trainer: str) -> bool:
        """Let nothing be added to the log for `PAUSE_S`, or until a generation begins.
        False if somebody else did.
        """

    def seed(self, seed: Seed) -> bool:
        """Begin a new generation; False if there is a state that is not to be replaced."""

    def heartbeat(self, trainer: str, partitions: str) -> None:
        """Note that a trainer is active, with these partitions."""

    def leave(self, trainer: str) -> None:
        """Note that a trainer is not active any more."""

    def close(self) -> None:
        """Close connections."""
