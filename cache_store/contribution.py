"""What a micro-batch adds to the shared counts, and how several contributions become
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Counts = NDArray[np.int64]


class OffsetSpan(NamedTuple):
    """Events of one partition: offsets from `start` up to, not including, `stop`."""

    partition: str
    start: int
    stop: int


class Increments(NamedTuple):
    """`counts[k]` is added to row `rows[k]`. Rows are distinct once they are in the
    log.
    """

    rows: Rows
    counts: Counts

    def only(self, chosen: NDArray[np.bool_]) -> Increments:
        """Some of them."""
        return Increments(self.rows[chosen], self.counts[chosen])


NO_ROWS: Rows = np.empty(0, np.int64)
NOTHING = Increments(NO_ROWS, NO_ROWS)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one micro-batch adds to the shared state. Item rows are the trainer's own.

    Merged contributions have one position for each item of a span, at the span's first
    offset, so that a span can only be cut as a whole; `counts` then says how many
    events each position stands for.
    """

    spans: tuple[OffsetSpan, ...]  # where its events come from; one for each partition
    sources: NDArray[np.int32]  # [B] for each event the index of its span
    offsets: (
        NDArray[np.int64] | Sequence[int]
    )  # [B]; a list becomes an array only where one is needed
    items: Rows  # [B] item row of each event
    drawn: Increments = NOTHING  # how often items were resampled
    cache: Rows | None = None  # drawn after the step; None if none was
    counts: Counts | None = None  # [B]; None for one event each

    @property
    def item_counts(self) -> Increments:
        """Events of each item; rows may repeat."""
        return Increments(
            self.items,
            np.ones(len(self.items), np.int64) if self.counts is None else self.counts,
        )

    @property
    def events(self) -> int:
        """How many events it counts."""
        return len(self.items) if self.counts is None else int(self.counts.sum())

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        arrays = (self.sources, self.items, *self.drawn, self.cache, self.counts)
        return sum(array.nbytes for array in arrays if array is not None) + 8 * len(
            self.offsets
        )

    def since(self, next_offsets: Mapping[str, int]) -> Contribution | None:
        """The part that is new to a store that has everything before these offsets;
        None if nothing is.

        Counts of items are cut event by event. Draws do not belong to single events, so
        those of a batch that is cut are left out: nothing is ever counted twice.
        """
        first = [next_offsets.get(span.partition, 0) for span in self.spans]
        if all(
            span.start >= offset for span, offset in zip(self.spans, first, strict=True)
        ):
            return self
        offsets = np.asarray(self.offsets, np.int64)
        new = offsets >= np.array(first, np.int64)[self.sources]
        if not new.any():
            return None
        left, sources = np.unique(self.sources[new], return_inverse=True)
        return Contribution(
            spans=tuple(
                self.spans[k]._replace(start=max(self.spans[k].start, first[k]))
                for k in left.tolist()
            ),
            sources=sources.astype(np.int32),
            offsets=offsets[new],
            items=self.items[new],
            drawn=self.drawn if new.all() else NOTHING,
            cache=self.cache,
            counts=None if self.counts is None else self.counts[new],
        )

    def without(self, partition: str) -> Contribution | None:
        """The contribution without the events of a partition; None if it has no others."""
        has = any(span.partition == partition for span in self.spans)
        return self.since({partition: np.iinfo(np.int64).max}) if has else self

    def without_items(self, rows: Rows) -> Contribution:
        """The contribution without events and draws of these items, and with a cache
        without them; its spans stay.
        """
        cached = NO_ROWS if self.cache is None else self.cache
        gone, undrawn, uncached = (
            np.isin(part, rows) for part in (self.items, self.drawn.rows, cached)
        )
        if not (gone.any() or undrawn.any() or uncached.any()):
            return self
        return replace(
            self,
            sources=self.sources[~gone],
            offsets=np.asarray(self.offsets, np.int64)[~gone],
            items=self.items[~gone],
            drawn=self.drawn.only(~undrawn),
            cache=None if self.cache is None else cached[~uncached],
            counts=None if self.counts is None else self.counts[~gone],
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but spans and cache, for a checkpoint."""
        found: dict[str, NDArray[Any]] = {
            "sources": self.sources,
            "offsets": np.asarray(self.offsets, np.int64),
        }
        found |= {
            "items": self.items,
            "drawn.rows": self.drawn.rows,
            "drawn.counts": self.drawn.counts,
        }
        return found if self.counts is None else found | {"counts": self.counts}

    @classmethod
    def from_arrays(
        cls, spans: Iterable[Sequence[Any]], arrays: Mapping[str, NDArray[Any]]
    ) -> Contribution:
        """The contribution of which `arrays` came, without its cache."""
        sources, offsets, items = (
            arrays[name] for name in ("sources", "offsets", "items")
        )
        drawn = Increments(arrays["drawn.rows"], arrays["drawn.counts"])
        return cls(
            tuple(OffsetSpan(*span) for span in spans),
            sources,
            offsets,
            items,
            drawn,
            None,
            arrays.get("counts"),
        )


def merged(contributions: Sequence[Contribution]) -> Contribution:
    """One contribution for several that follow each other."""
    spans = merged_spans(span for c in contributions for span in c.spans)
    index = {span.partition: k for k, span in enumerate(spans)}
    size = 1 + max(int(c.items.max(initial=0)) for c in contributions)
    cells = []  # a cell for each item of each span
    for c in contributions:
        span_of = np.array([index[span.partition] for span in c.spans], np.int64)[
            c.sources
        ]
        cells.append(Increments(span_of * size + c.items, c.item_counts.counts))
    total = summed(cells)
    sources, items = np.divmod(total.rows, size)
    starts = np.array([span.start for span in spans], np.int64)
    drawn = summed([c.drawn for c in contributions])
    cache = next(
        (c.cache for c in reversed(contributions) if c.cache is not None), None
    )
    return Contribution(
        spans,
        sources.astype(np.int32),
        starts[sources],
        items,
        drawn,
        cache,
        total.counts,
    )


def merged_spans(spans: Iterable[OffsetSpan]) -> tuple[OffsetSpan, ...]:
    """One span for each partition, from its first to its last offset."""
    found: dict[str, OffsetSpan] = {}
    for span in spans:
        known = found.get(span.partition, span)
        found[span.partition] = OffsetSpan(
            span.partition, min(known.start, span.start), max(known.stop, span.stop)
        )
    return tuple(found.values())


def summed(parts: Sequence[Increments]) -> Increments:
    """The sum of all increments: distinct rows in ascending order, none of them zero.

    Examples:
        >>> summed([Increments(np.array([7, 3, 7]), np.array([1, 1, 1]))])
        Increments(rows=array([3, 7]), counts=array([1, 2]))
    """
    rows = (
        np.concatenate([part.rows for part in parts])
        if parts
        else np.empty(0, np.int64)
    )
    counts = (
        np.concatenate([part.counts for part in parts])
        if parts
        else np.empty(0, np.int64)
    )
    size = int(rows.max(initial=-1)) + 1
    if size < 10 * len(rows):  # then a counter for every row is cheaper than sorting
        total = np.zeros(size, np.int64)
        np.add.at(total, rows, counts)
        distinct = np.flatnonzero(total > 0)
        return Increments(distinct, total[distinct])
    distinct, place = np.unique(rows, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, place, counts)
    return Increments(distinct[total > 0], total[total > 0])
