"""The answers of a server: what a replica recommends, with the events that it has not
learned yet.

Requests, deltas and events come from several threads; one lock lets one in at a time.
So an answer is of one generation and one step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field

from streamer.errors import StreamerError
from streamer.event import NO_USER
from streamer.metrics.health import Verdict
from streamer.model.batch import Rows
from streamer.recommender import Recommendation, RecommendQuery
from streamer.serve.freshness import Freshness
from streamer.serve.hidden import Hidden
from streamer.serve.overlay import Event, Overlay
from streamer.serve.replica import ReadDelta, Replica
from streamer.snapshot.snapshot import SnapshotEnd

MAX_K = 1000
MAX_IDS = 1000
Id = Annotated[str, Field(min_length=1, max_length=256)]


class NotReady(StreamerError):  # noqa: N818  (reads as a state)
    """Nothing has been published yet that could be served."""


class UnknownItem(StreamerError):  # noqa: N818
    """The model does not know the item."""


class RecommendRequest(BaseModel):
    """For whom to recommend: a user, or the recent items of a session without one."""

    user: Id | None = None
    recent: list[Id] = Field(
        default=[], max_length=MAX_IDS, description="Items of a session, oldest first."
    )
    k: int = Field(default=10, ge=1, le=MAX_K)
    exclude_seen: bool = True
    exclude: list[Id] = Field(default=[], max_length=MAX_IDS)
    explain: bool = False
    features: dict[Id, str | float] | None = Field(
        default=None, max_length=64, description="Of whoever the session is of."
    )


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
        self.refused_points = 0
        self.applied_deltas = 0
        self.bases = 0
        self._clock = clock
        self._lock = threading.RLock()
        self._new_items: set[str] = set()
        self._hidden_of: tuple[frozenset[str], SnapshotEnd] | None = None
        self._hidden_rows: Rows = np.empty(0, np.int64)

    @property
    def end(self) -> SnapshotEnd | None:
        """What the last snapshot that was applied says of itself; None before the first."""
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

    def apply(self, delta: ReadDelta) -> None:
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
            known = self.replica.learner.state.items
            added = [event for event in events if self.overlay.add(event)]
            self._new_items.update(
                event.item for event in added if known.row_of(event.item) is None
            )
        for event in added:
            if event.user != NO_USER:
                self.freshness.recent_items(event, now)

    # answers --------------------------------------------------------------------------

    def alive(self) -> Verdict:
        """Always: a server that is behind goes on with what it has."""
        return Verdict(True, "")

    def ready(self) -> Verdict:
        """Whether everything that is published is served, and why not."""
        if self.replica is None:
            return Verdict(
                False,
                "Waiting for a first snapshot: does the trainer publish (--publish-dir, "
                "--publish-topic) or save checkpoints where this server looks?",
            )
        if not self.caught_up:
            return Verdict(False, "deltas are being applied")
        return Verdict(True, "")

    def about(self) -> dict[str, Any]:
        """Of which generation, step and age an answer is.

        Raises:
            NotReady: nothing is served yet.
        """
        end = self._served().end
        return {
            "generation": end.generation,
            "step": end.step,
            "age_s": round(max(self._clock() - end.time_s, 0.0), 3),
        }

    def sizes(self) -> dict[str, int]:
        """How much is served."""
        users = items = indexed_items = 0
        replica = self.replica
        if replica is not None:
            users = len(replica.learner.state.users)
            items = len(replica.learner.state.items)
            indexed_items = replica.vectors.indexed_items
        return {
            "users": users,
            "items": items,
            "indexed_items": indexed_items,
            "hidden_items": len(self.hidden.ids),
            "events_not_learned": len(self.overlay),
        }

    def similar(self, item: str, k: int, explain: bool = False) -> dict[str, Any]:
        """What users who had an item may like next.

        Raises:
            NotReady: nothing is served yet.
            UnknownItem: the model does not know it.
        """
        with self._lock:
            if self._served().learner.state.items.row_of(item) is None:
                raise UnknownItem(f"no event of this item has been learned yet: {item}")
            request = RecommendRequest(recent=[item], k=k, explain=explain)
            return {"item": item} | self.recommend(request)

    def recommend(self, request: RecommendRequest) -> dict[str, Any]:
        """Recommendations, as they are sent.

        Raises:
            NotReady: nothing is served yet.
            StreamerError: the model cannot answer it.
        """
        (found,) = self.recommend_all([request])
        if isinstance(found, StreamerError):
            raise found
        return found

    def recommend_all(
        self, requests: Sequence[RecommendRequest]
    ) -> list[dict[str, Any] | StreamerError]:
        """Answers to several requests, in their order, all of one generation and step;
        the error for one that cannot be answered.

        Raises:
            NotReady: nothing is served yet.
        """
        with self._lock:
            replica = self._served()
            answers: dict[int, dict[str, Any] | StreamerError] = {}
            queries: dict[int, RecommendQuery] = {}
            for k, request in enumerate(requests):
                try:
                    queries[k] = self._query(replica, request)
                except StreamerError as error:
                    answers[k] = error
            about = self.about()
            for group in _groups(requests, queries):
                found = replica.recommender.recommend(
                    [queries[k] for k in group],
                    [requests[k].k for k in group],
                    exclude_seen=requests[group[0]].exclude_seen,
                )
                for k, items in zip(group, found, strict=True):
                    answer = _answer(replica, queries[k], requests[k], items)
                    answers[k] = answer | about
            return [answers[k] for k in range(len(requests))]

    def _query(self, replica: Replica, request: RecommendRequest) -> RecommendQuery:
        recommender = replica.recommender
        if request.user is not None:
            events = self.overlay.of(request.user)
            query = recommender.user(request.user, events)
        else:
            query = recommender.session(request.recent, request.features)
        exclude = self._find_hidden(replica)
        if request.exclude:
            rows = _rows_of(replica, request.exclude)
            exclude = np.concatenate([exclude, rows])
        return replace(query, exclude=exclude)

    def _find_hidden(self, replica: Replica) -> Rows:
        """Rows of hidden items, looked up when they or what is served have changed."""
        now = (self.hidden.ids, replica.end)
        before = self._hidden_of
        if before is None or before[0] is not now[0] or before[1] is not now[1]:
            self._hidden_rows = _rows_of(replica, self.hidden.ids)
            self._hidden_of = now
        return self._hidden_rows

    def _served(self) -> Replica:
        if self.replica is None:
            raise NotReady(
                "nothing has been published yet that could be served: "
                "is the trainer running?"
            )
        return self.replica


def _rows_of(replica: Replica, items: Iterable[str]) -> Rows:
    """Rows of those items that the model knows."""
    rows = []
    for item in items:
        row = replica.learner.state.items.row_of(item)
        if row is not None:
            rows.append(row)
    return np.array(rows, np.int64)


def _groups(
    requests: Sequence[RecommendRequest], queries: Mapping[int, RecommendQuery]
) -> list[list[int]]:
    """Which requests are ranked together: those for one purpose; one with features
    alone.
    """
    alone = []
    unseen = []
    all_items = []
    for k, query in queries.items():
        if query.features is not None:
            alone.append([k])
        elif requests[k].exclude_seen:
            unseen.append(k)
        else:
            all_items.append(k)
    return [group for group in (*alone, unseen, all_items) if group]


def _answer(
    replica: Replica,
    query: RecommendQuery,
    request: RecommendRequest,
    found: Sequence[Recommendation],
) -> dict[str, Any]:
    items = [best._asdict() for best in found]
    if request.explain:
        _add_reasons(replica, query, request, items)
    recent = replica.learner.state.items.ids_of(query.recent)
    titles = {}
    if replica.learner.state.titles:
        for item in (*recent, *(best.item for best in found)):
            title = replica.title_of(item)
            if title is not None:
                titles[item] = title
    return {
        "user": query.user,
        "known": query.known,
        "note": query.note or None,
        "recent": recent,
        "items": items,
        "titles": titles,
    }


def _add_reasons(
    replica: Replica,
    query: RecommendQuery,
    request: RecommendRequest,
    items: Sequence[dict[str, Any]],
) -> None:
    ids = [item["item"] for item in items]
    reasons = replica.recommender.reasons(query, ids, exclude_seen=request.exclude_seen)
    for item, why in zip(items, reasons, strict=True):
        recent = [{"item": id, "nearness": nearness} for id, nearness in why.recent]
        item["reasons"] = {"parts": why.parts, "recent": recent}
