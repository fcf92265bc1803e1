"""The events of a step: each rank reads its own partitions, and every rank must know
what all of them hold.

Rows of items are the same everywhere, so numbers are exchanged; a raw id travels once,
when its item is new. Users stay where their partition is: the others get to know what
an event's user had before, as far as it is counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.lockstep.group import Group
from streamer.lockstep.key_check import NewUser

Rows = NDArray[np.int64]


class Span(NamedTuple):
    """Events of one partition, in the order of their offsets."""

    topic: str
    partition: int
    events: int


class CatalogueEvent(NamedTuple):
    """What is said of an item; None: it does not exist any more."""

    topic: str
    partition: int
    item: str
    time_s: int
    features: dict[str, Any] | None


class Step(NamedTuple):
    """All events of a step, in the order of partitions and offsets.

    Args:
        own: [b] the places of this rank's events.
        rank: [B] which rank read each event.
        part: [B] in which part each is computed.
        items: [B] item rows; -1 - k for the k-th of the new ones, until they have rows.
        times_s: [B] seconds since the epoch.
        item_features: of each event; None if nobody uses any.
        new_items: ids without a row, in the order in which they come.
        catalogue: its events, in the order of partitions and offsets.
        new_users: new users, as far as they belong to a sample.
    """

    own: Rows
    rank: Rows
    part: Rows
    items: Rows
    times_s: Rows
    item_features: Sequence[Any] | None = None
    new_items: Sequence[str] = ()
    catalogue: Sequence[CatalogueEvent] = ()
    new_users: Sequence[NewUser] = ()

    def events_of(self, parts: Sequence[int]) -> Rows:
        """The places of the events of some parts, ascending."""
        return np.flatnonzero(np.isin(self.part, parts))


class _Message(msgspec.Struct, array_like=True):
    spans: list[Span]
    rows: bytes  # int32 [b]; -1 - k for the k-th new id
    times_s: bytes  # int64 [b]
    new: list[str]
    features: list[Any] | None
    catalogue: list[CatalogueEvent]
    new_users: list[NewUser]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Message).decode


def gather_events(
    group: Group,
    spans: Sequence[Span],
    items: Sequence[str],
    rows: Rows,
    times_s: Rows,
    features: list[Any] | None,
    catalogue: list[CatalogueEvent],
    new_users: list[NewUser],
) -> Step:
    """What all ranks read for a step.

    Args:
        group: the ranks.
        spans: which of our events are whose, in the order of partitions.
        items: [b] raw ids of our events.
        rows: [b] their rows, which are the same on every rank; -1 for new items.
        times_s: [b].
        features: [b] what our events say of their items; None if nobody uses it.
        catalogue: our events of the catalogue.
        new_users: of our new users.
    """
    rows, missing = rows.astype(np.int32), np.flatnonzero(rows < 0).tolist()
    new = {
        raw: k for k, raw in enumerate(dict.fromkeys(items[place] for place in missing))
    }
    rows[missing] = [-1 - new[items[place]] for place in missing]
    ours = _Message(
        list(spans),
        rows.tobytes(),
        times_s.tobytes(),
        list(new),
        features,
        catalogue,
        new_users,
    )
    messages = [
        _decode(m.data) for m in group.gather(np.frombuffer(_encode(ours), np.uint8))
    ]
    return _together(group, messages)


def _together(group: Group, messages: list[_Message]) -> Step:
    """Put the events of all ranks in the order of partitions."""
    order = sorted(
        (span, rank, k)
        for rank, m in enumerate(messages)
        for k, span in enumerate(m.spans)
    )
    first = [np.cumsum([0, *(span.events for span in m.spans)]) for m in messages]
    events = sum(int(f[-1]) for f in first)
    items, times_s, rank_of, part = (np.empty(events, np.int64) for _ in range(4))
    own = []
    features = []
    at = 0
    for span, rank, k in order:
        message = messages[rank]
        from_ = slice(first[rank][k], first[rank][k + 1])
        to = slice(at, at + span.events)
        items[to] = np.frombuffer(message.rows, np.int32)[from_]
        times_s[to] = np.frombuffer(message.times_s, np.int64)[from_]
        rank_of[to] = rank
        part[to] = group.part_of(span.partition)
        features += (message.features or [None] * len(message.rows))[from_]
        own += [np.arange(at, to.stop)] if rank == group.rank else []
        at = to.stop
    # new ids: of each rank by its own numbers so far
    missing = np.flatnonzero(items < 0).tolist()
    raw = [messages[rank_of[place]].new[-1 - items[place]] for place in missing]
    new = {text: k for k, text in enumerate(dict.fromkeys(raw))}
    items[missing] = [-1 - new[text] for text in raw]
    used = any(m.features is not None for m in messages)
    ours = np.concatenate(own) if own else np.empty(0, np.int64)
    said = sorted(
        (event for m in messages for event in m.catalogue), key=lambda event: event[:2]
    )
    seen = [sighting for m in messages for sighting in m.new_users]
    return Step(
        ours,
        rank_of,
        part,
        items,
        times_s,
        features if used else None,
        list(new),
        said,
        seen,
    )


def gather_ids(
    group: Group, spans: Sequence[Span], ids: Sequence[str]
) -> tuple[list[str], Rows]:
    """Ids of some events of all ranks, in the order of partitions and offsets, and the
    places of ours among them.

    Args:
        group: the ranks.
        spans: how many ids are of which partition.
        ids: of our events.
    """
    message = msgspec.msgpack.encode((spans, ids))
    messages = [
        msgspec.msgpack.decode(m.data)
        for m in group.gather(np.frombuffer(message, np.uint8))
    ]
    order = sorted(
        (topic, p, rank, n)
        for rank, (of_rank, _) in enumerate(messages)
        for topic, p, n in of_rank
    )
    found = list[str]()
    own = list[int]()
    left = [iter(of_rank) for _, of_rank in messages]
    for _, _, rank, events in order:
        own += range(len(found), len(found) + events) if rank == group.rank else ()
        found += itertools.islice(left[rank], events)
    return found, np.array(own, np.int64)


def gather_values(group: Group, step: Step, values: Sequence[Any]) -> list[Any]:
    """[B] by event, from each rank's [b] values that msgpack can hold."""
    found: list[Any] = [None] * len(step.items)
    for rank, message in enumerate(
        group.gather(np.frombuffer(msgspec.msgpack.encode(values), np.uint8))
    ):
        places = np.flatnonzero(step.rank == rank).tolist()
        for place, value in zip(
            places, msgspec.msgpack.decode(message.data), strict=True
        ):
            found[place] = value
    return found


def gather_rows(group: Group, step: Step, rows: NDArray[Any]) -> NDArray[Any]:
    """[B, ...] by event, from each rank's [b, ...]; all have the same width and type."""
    found = np.empty((len(step.items), *rows.shape[1:]), rows.dtype)
    flat = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    width = found[:1].nbytes
    lengths = [int(n) * width for n in np.bincount(step.rank, minlength=group.size)]
    for rank, message in enumerate(group.gather_sized(flat, lengths)):
        found[step.rank == rank] = message.view(rows.dtype).reshape(-1, *rows.shape[1:])
    return found
