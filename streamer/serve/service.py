"""The answers of a server: what a replica recommends, with the events that it has not
learned yet.

Requests, deltas and events come from several threads; one lock lets one in at a time.
So an answer is of one generation and one step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamer.errors import StreamerError
from streamer.event import NO_USER
from streamer.model.batch import Rows
from streamer.publish.points import End
from streamer.recommender import Query, Recommendation, Wanted
from streamer.serve.freshness import Freshness
from streamer.serve.hidden import Hidden
from streamer.serve.overlay import Event, Overlay
from streamer.serve.replica import Delta, Replica


class NotReady(StreamerError):  # noqa: N818  (reads as a state)
    """Nothing has been published yet that could be served."""


class UnknownItem(StreamerError):  # noqa: N818
    """The model does not know the item."""


@dataclass(frozen=True, slots=True)
class Asked:
    """For whom to recommend, and what.

    Args:
        user: id; None for a session.
        recent: items of a session, oldest first.
        k: how many items.
        exclude_seen: leave out what the user had, or the items of the session.
        exclude: items to leave out.
        explain: say what made each recommendation.
        features: of whoever a session is of.
    """

    user: str | None = None
    recent: Sequence[str] = ()
    k: int = 10
    exclude_seen: bool = True
    exclude: Sequence[str] = ()
    explain: bool = False
    features: Mapping[str, str | float] | None = None


class Service:
    """What is served now.

    Args:
        hidden: items that are never recommended.
        freshness: takes how long events took until they were seen.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        hidden: Hidden | None = None,
        freshness: Freshness | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.hidden = hidden or Hidden()
        self.freshness = freshness or Freshness()
        self.replica: Replica | None = None
        self.overlay = Overlay()
        self.caught_up = False
        """Whether everything that is published is applied."""
        self.refused_points = self.applied_deltas = self.bases = 0
        self._clock = clock
        self._lock = threading.RLock()
        self._new_items: set[str] = set()
        self._looked_up: tuple[frozenset[str] | None, End | None, Rows] = (
            None,
            None,
            np.empty(0, np.int64),
        )

    @property
    def end(self) -> End | None:
        """What the last point that was applied says of itself; None before the first."""
        replica = self.replica
        return replica.end if replica is not None else None

    # what is served ---------------------------------------------------------------------------------------------------

    def load(self, replica: Replica) -> None:
        """Serve a new replica from now on; events are read again from its positions if
        it is of another generation.
        """
        with self._lock:
            before = self.replica
            self.replica = replica
            self.bases += 1
            if before is not None and before.end.generation != replica.end.generation:
                self.overlay.clear()
                self._new_items.clear()
            learned = self._learned()
            now = self._clock()
        self._note(learned, now)

    def apply(self, delta: Delta) -> None:
        """Take over a delta. If that fails, nothing is served until there is a base:
        never half of a delta.
        """
        with self._lock:
            assert self.replica is not None, "a base comes first"
            try:
                self.replica.apply(delta)
            except BaseException:
                self.replica = None
                raise
            self.applied_deltas += 1
            learned = self._learned()
            now = self._clock()
        self._note(learned, now)

    def _learned(self) -> list[tuple[Event, bool]]:
        """The events that are part of the model from now on, and whether each is the
        first of a new item.
        """
        assert self.replica is not None
        found = []
        for event in self.overlay.prune(self.replica.end.offsets):
            found.append((event, event.item in self._new_items))
            self._new_items.discard(event.item)
        return found

    def _note(self, learned: Iterable[tuple[Event, bool]], now: float) -> None:
        """Count how long events took; without the lock, because it takes longer than a
        delta, and requests wait.
        """
        for event, is_new in learned:
            self.freshness.vectors(event, now)
            if is_new:
                self.freshness.new_item(event, now)

    def observe(self, events: Iterable[Event], generation: int) -> None:
        """Take events in that the trainer may not have learned yet.

        Args:
            events: in the order of their partitions.
            generation: from whose positions on they were read; if another is served by
                now, they are read again.
        """
        with self._lock:
            if self.replica is None or self.replica.end.generation != generation:
                return
            now = self._clock()
            known = self.replica.learner.items
            added = [event for event in events if self.overlay.add(event)]
            self._new_items.update(
                event.item for event in added if known.row_of(event.item) is None
            )
        for event in added:
            if event.user != NO_USER:
                self.freshness.recent_items(event, now)

    # answers ----------------------------------------------------------------------------------------------------------

    def about(self, replica: Replica | None = None) -> dict[str, Any]:
        """Of which generation, step and age an answer is."""
        end = (replica or self._ready()).end
        return {
            "generation": end.generation,
            "step": end.step,
            "age_s": round(max(self._clock() - end.time_s, 0.0), 3),
        }

    def recommend(self, asked: Asked) -> dict[str, Any]:
        """Recommendations, as they are sent.

        Raises:
            NotReady: nothing is served yet.
            StreamerError: the model cannot answer it.
        """
        (found,) = self.recommend_all([asked])
        if isinstance(found, StreamerError):
            raise found
        return found

    def recommend_all(
        self, asked: Sequence[Asked]
    ) -> list[dict[str, Any] | StreamerError]:
        """Answers to several, in their order, all of one generation and step; what
        cannot be answered has an error.

        Raises:
            NotReady: nothing is served yet.
        """
        with self._lock:
            replica = self._ready()
            answers = dict[int, Any]()
            wanted: dict[int, Wanted] = {}
            for k, one in enumerate(asked):
                try:
                    wanted[k] = Wanted(
                        self._query(replica, one), one.k, self._left_out(replica, one)
                    )
                except StreamerError as error:
                    answers[k] = error
            for together in _groups(asked, wanted):
                seen = asked[together[0]].exclude_seen
                found = replica.recommender.recommend_each(
                    [wanted[k] for k in together], exclude_seen=seen
                )
                for k, best in zip(together, found, strict=True):
                    answers[k] = self._answer(
                        replica, wanted[k].query, asked[k], best
                    ) | self.about(replica)
            return [answers[k] for k in range(len(asked))]

    def _query(self, replica: Replica, asked: Asked) -> Query:
        if asked.user is not None:
            return replica.recommender.user(asked.user, self.overlay.of(asked.user))
        return replica.recommender.session(asked.recent, asked.features)

    def _left_out(self, replica: Replica, asked: Asked) -> Rows:
        rows = [
            row
            for item in asked.exclude
            if (row := replica.learner.items.row_of(item)) is not None
        ]
        return np.concatenate([self._hidden_rows(replica), np.array(rows, np.int64)])

    def similar(self, item: str, k: int, explain: bool = False) -> dict[str, Any]:
        """What users who had an item may like next.

        Raises:
            UnknownItem: the model does not know it.
        """
        with self._lock:
            if self._ready().learner.items.row_of(item) is None:
                raise UnknownItem(f"no event of this item has been learned yet: {item}")
            return {"item": item} | self.recommend(
                Asked(recent=[item], k=k, explain=explain)
            )

    def _answer(
        self,
        replica: Replica,
        query: Query,
        asked: Asked,
        found: Sequence[Recommendation],
    ) -> dict[str, Any]:
        recommender = replica.recommender
        answers: list[dict[str, Any]] = [best._asdict() for best in found]
        if asked.explain:
            reasons = recommender.reasons(
                query, [best.item for best in found], exclude_seen=asked.exclude_seen
            )
            for answer, why in zip(answers, reasons, strict=True):
                near = [
                    {"item": item, "nearness": nearness}
                    for item, nearness in why.recent
                ]
                answer["reasons"] = {"parts": why.parts, "recent": near}
        recent = replica.learner.items.ids_of(query.recent)
        named = [*recent, *(best.item for best in found)]
        return {
            "user": query.user,
            "known": query.known,
            "note": query.note or None,
            "recent": recent,
            "items": answers,
            "titles": {
                item: title
                for item in named
                if (title := replica.title_of(item)) is not None
            },
        }

    def _hidden_rows(self, replica: Replica) -> Rows:
        """Rows of hidden items, looked up when they or what is served have changed."""
        ids = self.hidden.ids
        end = replica.end
        if self._looked_up[0] is not ids or self._looked_up[1] is not end:
            rows = [
                row
                for item in ids
                if (row := replica.learner.items.row_of(item)) is not None
            ]
            self._looked_up = (ids, end, np.array(rows, np.int64))
        return self._looked_up[2]

    def _ready(self) -> Replica:
        if self.replica is None:
            raise NotReady(
                "nothing has been published yet that could be served: is the trainer running?"
            )
        return self.replica

    def ready(self) -> tuple[bool, str]:
        """Whether everything that is published is served, and why not."""
        if self.replica is None:
            return (
                False,
                "waiting for a base: has the trainer been started with --publish-dir or --publish-topic?",
            )
        return self.caught_up, "" if self.caught_up else "deltas are being applied"

    def sizes(self) -> dict[str, int]:
        """How much is served."""
        replica = self.replica
        return {
            "users": len(replica.learner.users) if replica is not None else 0,
            "items": len(replica.learner.items) if replica is not None else 0,
            "indexed_items": replica.vectors.indexed_items
            if replica is not None
            else 0,
            "hidden_items": len(self.hidden.ids),
            "events_not_learned": len(self.overlay),
        }


def _groups(asked: Sequence[Asked], wanted: Mapping[int, Wanted]) -> list[list[int]]:
    """Which queries are ranked together: those for one purpose; one with features
    alone.
    """
    alone = [[k] for k, one in wanted.items() if one.query.features is not None]
    rest = [k for k, one in wanted.items() if one.query.features is None]
    both = [
        [k for k in rest if asked[k].exclude_seen is purpose]
        for purpose in (True, False)
    ]
    return [group for group in [*alone, *both] if group]
