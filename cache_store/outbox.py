"""Contributions on their way: kept until they have come back in the log, and a while longer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.base import NOTHING, Contribution, Increments, Span
from streamer.cache_store.codec import summed


@dataclass(slots=True)
class Waiting:
    """A contribution that is not in the replica yet.

    Args:
        number: grows by one with each contribution of a process.
        contribution: what it adds.
        times: how often it was sent; answers may not have come.
        known: the server said in this exchange that it has it; it comes in the log, unless others' contributions cover
            it.
    """

    number: int
    contribution: Contribution
    times: int = 0
    known: bool = False

    @property
    def sent(self) -> bool:
        """Whether it may have arrived."""
        return self.times > 0


class Kept(NamedTuple):
    """A contribution that is in the replica, and when it came."""

    at_s: float
    number: int
    contribution: Contribution


class Outbox:
    """Contributions in their order. Not for several threads at once.

    Args:
        most: so many unsent contributions are kept one by one; beyond that, the older ones are added up.
        keep_s: how long contributions are kept that are in the replica, for a server that loses them.
        keep_bytes: how much of them at most.
    """

    def __init__(self, most: int = 256, keep_s: float = 30.0, keep_bytes: int = 64 * 1_048_576) -> None:
        self._most, self._keep_s, self._keep_bytes = most, keep_s, keep_bytes
        self.waiting: deque[Waiting] = deque()
        self._kept: deque[Kept] = deque()
        self._kept_bytes = 0
        self._last = 0

    def add(self, contribution: Contribution) -> None:
        """One more."""
        self._last += 1
        self.waiting.append(Waiting(self._last, contribution))
        self._bound()

    def _bound(self) -> None:
        unsent = [w for w in self.waiting if not w.sent]
        if len(unsent) <= self._most:
            return
        older = unsent[: self._most // 2]
        merged = Waiting(older[-1].number, added_up([w.contribution for w in older]))
        gone = {w.number for w in older}
        rest = [w for w in self.waiting if w.number not in gone]
        before = [w for w in rest if w.number < merged.number]
        self.waiting = deque([*before, merged, *(w for w in rest if w.number > merged.number)])

    @property
    def events(self) -> int:
        """Events whose contribution is not in the replica yet."""
        return sum(_events(w.contribution) for w in self.waiting)

    def included(self, upto: int, now_s: float) -> None:
        """Those up to this number have come in the log."""
        while self.waiting and self.waiting[0].number <= upto:
            done = self.waiting.popleft()
            contribution = replace(done.contribution, cache=None)  # there is a newer one
            self._kept.append(Kept(now_s, done.number, contribution))
            self._kept_bytes += size(contribution)
        while self._kept and (self._kept_bytes > self._keep_bytes or self._kept[0].at_s < now_s - self._keep_s):
            self._kept_bytes -= size(self._kept.popleft().contribution)

    def recall(self, following: Mapping[str, int]) -> int:
        """A server has lost something: whatever it does not have waits again. Answers how many do."""
        numbered = [(k.number, k.contribution) for k in self._kept]
        numbered += [(w.number, w.contribution) for w in self.waiting]
        left = [(number, c.after(following)) for number, c in numbered]
        self.waiting = deque(Waiting(number, c) for number, c in left if c is not None)
        again = {w.number for w in self.waiting}
        self._keep([k for k in self._kept if k.number not in again])
        return len(self.waiting)

    @property
    def last(self) -> int:
        """The number of the newest contribution; 0 if there was none."""
        return self._last

    def first(self, partition: str) -> int | None:
        """The offset from which on contributions of this partition wait; None if none does."""
        spans = [span for w in self.waiting for span in w.contribution.spans]
        return min((span.start for span in spans if span.partition == partition), default=None)

    def reach(self, partition: str) -> int:
        """The offset up to which contributions of this partition wait; 0 if none does."""
        spans = [span for w in self.waiting for span in w.contribution.spans]
        return max((span.stop for span in spans if span.partition == partition), default=0)

    def forget_beyond(self, partition: str, end: int) -> None:
        """The partition ends here, it has begun anew: what was contributed of its former life is not sent any more."""

        def left(contribution: Contribution) -> Contribution | None:
            gone = any(span.partition == partition and span.stop > end for span in contribution.spans)
            return without(contribution, partition) if gone else contribution

        self.change([w.number for w in self.waiting if left(w.contribution) is not w.contribution], left)
        kept = [(k, left(k.contribution)) for k in self._kept]
        self._keep([Kept(k.at_s, k.number, c) for k, c in kept if c is not None])

    def _keep(self, kept: list[Kept]) -> None:
        self._kept = deque(kept)
        self._kept_bytes = sum(size(k.contribution) for k in kept)

    def change(self, numbers: Iterable[int], to: Callable[[Contribution], Contribution | None]) -> None:
        """Replace some of those that wait; None takes them away."""
        wanted = set(numbers)
        changed = [
            Waiting(w.number, c) if w.number in wanted else w
            for w in self.waiting
            if (c := to(w.contribution) if w.number in wanted else w.contribution) is not None
        ]
        self.waiting = deque(changed)


def added_up(contributions: list[Contribution]) -> Contribution:
    """One contribution for several that follow each other; events of a partition cannot be told apart any more."""
    spans = joined([span for c in contributions for span in c.spans])
    parts = [summed([_of(c, span.partition) for c in contributions]) for span in spans]
    lengths = [len(part.rows) for part in parts]
    caches = [c.cache for c in contributions if c.cache is not None]
    return Contribution(
        spans=spans,
        sources=np.repeat(np.arange(len(spans), dtype=np.int32), lengths),
        offsets=np.repeat(np.array([span.start for span in spans], np.int64), lengths),
        items=np.empty(0, np.int64),
        drawn=summed([c.drawn for c in contributions]),
        cache=caches[-1] if caches else None,
        counted=Increments(*(np.concatenate(columns) for columns in zip(*parts, strict=True))),
    )


def joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """One span for each partition."""
    found: dict[str, Span] = {}
    for span in spans:
        known = found.get(span.partition, span)
        found[span.partition] = Span(span.partition, min(known.start, span.start), max(known.stop, span.stop))
    return tuple(found.values())


def _of(contribution: Contribution, partition: str) -> Increments:
    """Events of each item, of one partition."""
    ours = [k for k, span in enumerate(contribution.spans) if span.partition == partition]
    rows, counts = counted(contribution)
    chosen = np.isin(contribution.sources, ours)
    return Increments(rows[chosen], counts[chosen])


def counted(contribution: Contribution) -> Increments:
    """Events of each item; rows may repeat."""
    if contribution.counted is not None:
        return contribution.counted
    return Increments(contribution.items, np.ones(len(contribution.items), np.int64))


def without(contribution: Contribution, partition: str) -> Contribution | None:
    """The contribution without the events of a partition, None if it has no others."""
    if all(span.partition != partition for span in contribution.spans):
        return contribution
    return contribution.after({partition: np.iinfo(np.int64).max})


def _events(contribution: Contribution) -> int:
    return int(counted(contribution).counts.sum())


def size(contribution: Contribution) -> int:
    """Bytes that it takes."""
    arrays: list[NDArray[Any]] = [contribution.sources, contribution.items, *contribution.drawn]
    arrays += [*(contribution.counted or NOTHING), *([contribution.cache] if contribution.cache is not None else [])]
    return sum(a.nbytes for a in arrays) + 8 * len(contribution.offsets)


def listed(k: int, contribution: Contribution, arrays: dict[str, NDArray[Any]]) -> list[list[Any]]:
    """Put a contribution's arrays beside the others'; answers its spans."""
    parts: dict[str, NDArray[Any]] = {
        "sources": contribution.sources,
        "offsets": np.asarray(contribution.offsets, np.int64),
        "items": contribution.items,
    }
    parts |= {"rows": contribution.drawn.rows, "counts": contribution.drawn.counts}
    if contribution.counted is not None:
        parts |= {"counted.rows": contribution.counted.rows, "counted.counts": contribution.counted.counts}
    arrays |= {f"waiting.{k}.{name}": array for name, array in parts.items()}
    return [list(span) for span in contribution.spans]


def unlisted(k: int, spans: list[list[Any]], arrays: Mapping[str, NDArray[Any]]) -> Contribution:
    """What `listed` was given; caches are not kept."""
    part = {name.removeprefix(f"waiting.{k}."): a for name, a in arrays.items() if name.startswith(f"waiting.{k}.")}
    total = Increments(part["counted.rows"], part["counted.counts"]) if "counted.rows" in part else None
    drawn = Increments(part["rows"], part["counts"])
    where = tuple(Span(name, start, stop) for name, start, stop in spans)
    return Contribution(where, part["sources"], part["offsets"], part["items"], drawn, None, total)
