"""The events of a step: each rank reads its own partitions, and every rank must know
what all of them hold.

Rows of items are the same everywhere, so numbers are exchanged; a raw id travels only
when its item is new. Users stay where their partition is: the others get to know what
an event's user had before, as far as it is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.lockstep.group import Group, as_bytes
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
        weights: [B] how much each event counts; None: 1 each.
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
    weights: NDArray[np.float32] | None = None

    def events_of(self, parts: Sequence[int]) -> Rows:
        """The places of the events of some parts, ascending."""
        return np.flatnonzero(np.isin(self.part, parts))


class _Message(msgspec.Struct, array_like=True):
    spans: list[Span]
    rows: bytes  # int32 [b]; -1: the item is new
    times_s: bytes  # int64 [b]
    new: list[str]  # ids of the new items, by event
    features: list[Any] | None
    catalogue: list[CatalogueEvent]
    new_users: list[NewUser]
    weights: bytes | None = None  # float32 [b]


def gather_events(
    group: Group,
    spans: list[Span],
    items: Sequence[str],
    rows: Rows,
    times_s: Rows,
    features: list[Any] | None,
    catalogue: list[CatalogueEvent],
    new_users: list[NewUser],
    weights: NDArray[np.float32] | None = None,
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
        weights: [b] how much our events count; None: 1 each.
    """
    new = [items[place] for place in np.flatnonzero(rows < 0).tolist()]
    ours = _Message(
        spans,
        rows.astype(np.int32).tobytes(),
        times_s.tobytes(),
        new,
        features,
        catalogue,
        new_users,
        None if weights is None else weights.tobytes(),
    )
    messages = group.gather_values(ours, _Message)
    return _together(group, messages)


def _together(group: Group, messages: list[_Message]) -> Step:
    """Put the events of all ranks in the order of partitions."""
    ranks, partitions = _order([message.spans for message in messages])
    items = np.empty(len(ranks), np.int64)
    times_s = np.empty(len(ranks), np.int64)
    weights = np.ones(len(ranks), np.float32)
    features: list[Sequence[Any]] = []
    catalogue: list[CatalogueEvent] = []
    new_users: list[NewUser] = []
    for rank, message in enumerate(messages):
        is_of_rank = ranks == rank
        rows = np.frombuffer(message.rows, np.int32)
        items[is_of_rank] = rows
        times_s[is_of_rank] = np.frombuffer(message.times_s, np.int64)
        if message.weights is not None:
            weights[is_of_rank] = np.frombuffer(message.weights, np.float32)
        features.append(message.features or [None] * len(rows))
        catalogue += message.catalogue
        new_users += message.new_users

    is_new = items < 0
    numbers: dict[str, int] = {}
    for place, raw in zip(
        np.flatnonzero(is_new).tolist(),
        _merged(ranks[is_new], [message.new for message in messages]),
        strict=True,
    ):
        items[place] = numbers.setdefault(raw, -1 - len(numbers))

    item_features = None
    if any(message.features is not None for message in messages):
        item_features = _merged(ranks, features)
    has_weights = any(message.weights is not None for message in messages)
    return Step(
        np.flatnonzero(ranks == group.rank),
        ranks,
        group.part_of(partitions),
        items,
        times_s,
        item_features,
        list(numbers),
        sorted(catalogue, key=lambda event: event[:2]),
        new_users,
        weights if has_weights else None,
    )


def _order(spans_by_rank: Sequence[Sequence[Span]]) -> tuple[Rows, Rows]:
    """[B] the rank and the partition of each event, in the order of partitions and
    offsets; the events of a rank are in this order already.
    """
    listed = []
    for rank, spans in enumerate(spans_by_rank):
        for span in spans:
            listed.append((span, rank))
    listed.sort()
    spans_in_order = [span for span, _ in listed]
    ranks = [rank for _, rank in listed]
    return by_event(spans_in_order, ranks), partitions_of(spans_in_order)


def partitions_of(spans: Sequence[Span]) -> Rows:
    """[b] the partition of each event."""
    return by_event(spans, [span.partition for span in spans])


def by_event(spans: Sequence[Span], values: Sequence[int]) -> Rows:
    """[b] for each event the value of its span."""
    counts = [span.events for span in spans]
    return np.repeat(np.array(values, np.int64), np.array(counts, np.int64))


def _merged(ranks: Rows, by_rank: Sequence[Sequence[Any]]) -> list[Any]:
    """What all ranks list of their events, in the order of all events."""
    left = [iter(of_rank) for of_rank in by_rank]
    return [next(left[rank]) for rank in ranks.tolist()]


def gather_ids(
    group: Group,
    spans: Sequence[Span],
    ids: Sequence[str],
) -> tuple[list[str], Rows]:
    """Ids of some events of all ranks, in the order of partitions and offsets, and the
    places of ours among them.

    Args:
        group: the ranks.
        spans: how many ids are of which partition.
        ids: of our events.
    """
    messages = group.gather_values((spans, ids), tuple[list[Span], list[str]])
    ranks, _ = _order([of_rank for of_rank, _ in messages])
    found = _merged(ranks, [of_rank for _, of_rank in messages])
    return found, np.flatnonzero(ranks == group.rank)


def gather_values(group: Group, step: Step, values: Sequence[Any]) -> list[Any]:
    """[B] by event, from each rank's [b] values that msgpack can hold."""
    return _merged(step.rank, group.gather_values(values))


def gather_rows(group: Group, step: Step, rows: NDArray[Any]) -> NDArray[Any]:
    """[B, ...] by event, from each rank's [b, ...]; all have the same width and type."""
    shape = rows.shape[1:]
    found = np.empty((len(step.items), *shape), rows.dtype)
    events_of_rank = np.bincount(step.rank, minlength=group.size)
    lengths = events_of_rank * found[:1].nbytes
    messages = group.gather_sized(as_bytes(rows), lengths.tolist())
    for rank, message in enumerate(messages):
        of_rank = message.view(rows.dtype)
        found[step.rank == rank] = of_rank.reshape(-1, *shape)
    return found
