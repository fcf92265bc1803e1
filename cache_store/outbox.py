"""A trainer's contributions on their way to the store: kept until they come back in the
log, and a while longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from streamer.cache_store.contribution import (
    NO_ROWS,
    Contribution,
    OffsetSpan,
    Rows,
    merged,
)


@dataclass(slots=True)
class Waiting:
    """A contribution that has not come back in the log yet.

    Once the server has accepted it, it comes in the log, unless others have contributed
    the same events.
    """

    number: int  # rises by one with each contribution of a process
    contribution: Contribution
    attempts: int = 0  # how often it was sent; the answers may have been lost
    accepted: bool = (
        False  # whether the server said in this exchange that it has these events
    )


class Outbox:
    """Contributions in their order. Not for several threads at once.

    Of unsent contributions, `max_waiting` are kept one by one; beyond that, the older
    half of them is merged. Acknowledged ones are kept for `keep_s`, at most
    `keep_bytes`, to send them again to a server that loses them.
    """

    def __init__(
        self,
        max_waiting: int = 256,
        keep_s: float = 30.0,
        keep_bytes: int = 64 * 1_048_576,
    ) -> None:
        self._max_waiting = max_waiting
        self._keep_s = keep_s
        self._keep_bytes = keep_bytes
        self.waiting: deque[Waiting] = deque()
        self._kept: deque[tuple[float, Waiting]] = deque()  # acknowledged, and when
        self._kept_bytes = 0
        self.last_number = 0
        """Of the newest contribution."""

    @property
    def events(self) -> int:
        """Events whose contribution has not come back in the log yet."""
        return sum(w.contribution.events for w in self.waiting)

    def add(self, contribution: Contribution) -> None:
        """Append a contribution; merge the oldest unsent ones if there are too many."""
        self.last_number += 1
        self.waiting.append(Waiting(self.last_number, contribution))
        unsent = [w for w in self.waiting if not w.attempts]
        if len(unsent) > self._max_waiting:
            older = unsent[: self._max_waiting // 2]
            one = Waiting(older[-1].number, merged([w.contribution for w in older]))
            gone = {w.number for w in older}
            rest = [w for w in self.waiting if w.number not in gone]
            self.waiting = deque(sorted([*rest, one], key=lambda w: w.number))

    def acknowledge(self, upto: int, now_s: float) -> None:
        """Note that the contributions up to this number have come in the log."""
        while self.waiting and self.waiting[0].number <= upto:
            done = self.waiting.popleft()
            done.contribution = replace(
                done.contribution, cache=None
            )  # there is a newer one
            self._kept.append((now_s, done))
            self._kept_bytes += done.contribution.nbytes
        while self._kept and (
            self._kept_bytes > self._keep_bytes
            or self._kept[0][0] < now_s - self._keep_s
        ):
            self._kept_bytes -= self._kept.popleft()[1].contribution.nbytes

    def requeue(self, next_offsets: Mapping[str, int]) -> None:
        """Let everything wait again that a server lacks which has all events before
        these offsets.
        """
        known = [*(w for _, w in self._kept), *self.waiting]
        missing = [(w.number, w.contribution.since(next_offsets)) for w in known]
        self.waiting = deque(
            Waiting(number, c) for number, c in missing if c is not None
        )
        again = {w.number for w in self.waiting}
        self._keep([(at_s, w) for at_s, w in self._kept if w.number not in again])

    def drop_items(self, rows: Rows) -> int:
        """Drop what waits of these items, which were retired; returns how many events
        that were.
        """
        before = self.events
        for waiting in self.waiting:
            waiting.contribution = waiting.contribution.without_items(rows)
        return before - self.events

    def items(self) -> Rows:
        """The trainer's rows of all items that are in it, acknowledged ones too."""
        known = [w.contribution for w in (*self.waiting, *(w for _, w in self._kept))]
        parts = [
            part
            for c in known
            for part in (c.items, c.drawn.rows, c.cache)
            if part is not None
        ]
        return np.unique(np.concatenate([NO_ROWS, *parts]))

    def first_offset(self, partition: str) -> int | None:
        """The first offset of this partition that waits; None if none does."""
        return min((span.start for span in self._spans(partition)), default=None)

    def end_offset(self, partition: str) -> int:
        """The offset after the last of this partition that waits; 0 if none does."""
        return max((span.stop for span in self._spans(partition)), default=0)

    def _spans(self, partition: str) -> Iterable[OffsetSpan]:
        return (
            s
            for w in self.waiting
            for s in w.contribution.spans
            if s.partition == partition
        )

    def drop_beyond(self, partition: str, end: int) -> None:
        """Drop what was contributed of a partition that was recreated since, and ends
        here now.
        """

        def left(contribution: Contribution) -> Contribution | None:
            old = any(
                span.partition == partition and span.stop > end
                for span in contribution.spans
            )
            return contribution.without(partition) if old else contribution

        self.change(
            [
                w.number
                for w in self.waiting
                if left(w.contribution) is not w.contribution
            ],
            left,
        )
        kept = [(at_s, w.number, left(w.contribution)) for at_s, w in self._kept]
        self._keep(
            [(at_s, Waiting(number, c)) for at_s, number, c in kept if c is not None]
        )

    def _keep(self, kept: list[tuple[float, Waiting]]) -> None:
        self._kept = deque(kept)
        self._kept_bytes = sum(w.contribution.nbytes for _, w in kept)

    def change(
        self, numbers: Iterable[int], to: Callable[[Contribution], Contribution | None]
    ) -> None:
        """Replace waiting contributions, or drop those for which `to` returns None.
        They count as unsent then.
        """
        chosen = set(numbers)
        changed = [
            Waiting(w.number, c) if w.number in chosen else w
            for w in self.waiting
            if (c := to(w.contribution) if w.number in chosen else w.contribution)
            is not None
        ]
        self.waiting = deque(changed)
