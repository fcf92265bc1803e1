"""The answers of a server: what a replica recommends, with the events that it has not
learned yet.

Requests, deltas and events come from several threads; one lock lets one in at a time.
So an answer is of one generation and one step.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field, FiniteFloat

from streamer.errors import StreamerError
from streamer.event import NO_USER
from streamer.metrics.health import Verdict
from streamer.recommender import Recommendation, RecommendQuery
from streamer.serve.freshness import Freshness
from streamer.serve.names import KnownKeys
from streamer.serve.overlay import Event, Overlay
from streamer.serve.pages import Pages
from streamer.serve.replica import ReadDelta, Replica
from streamer.snapshot.snapshot import SnapshotEnd

MAX_K = 1000
MAX_IDS = 1000
EXAMPLE_USERS = 5
LOOKED_AT = 100
"""Users among whom the examples are chosen."""
Id = Annotated[str, Field(min_length=1, max_length=256)]


class NotReady(StreamerError):  # noqa: N818  (reads as a state)
    """Nothing has been published yet that could be served."""


class UnknownItem(StreamerError):  # noqa: N818
    """The model does not know the item."""


class RecommendRequest(KnownKeys):
    """For whom to recommend: a user, or the recent items of a session without one."""

    user: Id | None = None
    recent: list[Id] = Field(
        default=[], max_length=MAX_IDS, description="Items of a session, oldest first."
    )
    k: int = Field(default=10, ge=1, le=MAX_K)
    exclude_seen: bool = True
    exclude: list[Id] = Field(default=[], max_length=MAX_IDS)
    explain: bool = False
    filter: str | list[Any] | dict[str, Any] | None = Field(
        default=None,
        description='Recommend only items that match, e.g. "category:tea" or "price<20", or '
        'several in a list, {"and": [...]}, {"or": [...]} or {"not": ...}.',
    )
    max_per: str | None = Field(
        default=None,
        max_length=300,
        description='At most this number of items of each value of an attribute: "category:2".',
    )
    offset: int = Field(
        default=0, ge=0, le=MAX_K, description="How many items pages before showed."
    )
    features: dict[Id, str | FiniteFloat] | None = Field(
        default=None, max_length=64, description="Of whoever the session is of."
    )


class Service:
    """What is served now.

    Args:
        freshness: takes how long events took until they were seen.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        freshness: Freshness | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.freshness = freshness or Freshness()
        self.replica: Replica | None = None
        self.overlay = Overlay()
        self.pages = Pages()
        self.caught_up = False
        """Whether everything that is published is applied."""
        self.refusal: str | None = None
        """Why something that is newer than what is served was refused; None if nothing
        was.
        """
        self.problem: str | None = None
        """Why what is published cannot be read now; what is served stays."""
        self.tail_problem: str | None = None
        """Why events cannot be read now; what is published is served."""
        self.missing_topic: str | None = None
        """That a topic of events does not exist; None if all of them do."""
        self.refused_points = 0
        self.applied_deltas = 0
        self.bases = 0
        self._clock = clock
        self._lock = threading.RLock()

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
            if before is None or before.end.generation != replica.end.generation:
                self.overlay.clear()
            learned = self._learned(replica.end)
            replica.learner.filters.clock = self._clock
            self.replica = replica
            self.refusal = None
            self.bases += 1
            now = self._clock()
        self._note(learned, now)

    def apply(self, delta: ReadDelta) -> None:
        """Take over a delta. If that fails, nothing is served until there is a base:
        never half of a delta.
        """
        with self._lock:
            assert self.replica is not None, "a base comes first"
            try:
                learned = self._learned(delta.end)
                self.replica.apply(delta)
            except BaseException:
                self.replica = None
                raise
            self.refusal = None
            self.applied_deltas += 1
            now = self._clock()
        self._note(learned, now)

    def _learned(self, end: SnapshotEnd) -> list[tuple[Event, bool]]:
        """The events that are about to become part of the model, and whether each is
        the first of an item that it does not know yet.
        """
        events = list(self.overlay.prune(end.offsets))
        if self.replica is None or not events:
            return []
        known = self.replica.learner.state.items
        rows = known.known([event.item for event in events])
        new_items: set[str] = set()
        found = []
        for event, row in zip(events, rows.tolist(), strict=True):
            is_new = row < 0 and event.item not in new_items
            new_items.add(event.item)
            found.append((event, is_new))
        return found

    def _note(self, learned: Iterable[tuple[Event, bool]], now: float) -> None:
        """Count how long events took; without the lock, because it takes longer than a
        delta, and requests wait.
        """
        for event, is_new in learned:
            self.freshness.add("vectors", event, now)
            if is_new:
                self.freshness.add("new_item", event, now)

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
            added = list(filter(self.overlay.add, events))
        for event in added:
            if event.user != NO_USER:
                self.freshness.add("recent_items", event, now)

    # answers --------------------------------------------------------------------------

    def alive(self) -> Verdict:
        """Always: a server that is behind goes on with what it has."""
        return Verdict(True, "")

    def ready(self) -> Verdict:
        """Whether everything that is published is served, and why not."""
        if self.replica is None:
            return Verdict(False, self._why_nothing_is_served())
        if self.refusal is not None:
            return Verdict(
                False,
                "Serving older state: a snapshot was refused, and the next base is "
                f"still to come ({self.refusal})",
            )
        if not self.caught_up:
            return Verdict(False, self.problem or "deltas are being applied")
        if self.missing_topic is not None:
            return Verdict(
                False, f"Users' latest events are not read: {self.missing_topic}"
            )
        return Verdict(True, self.problem or self.tail_problem or "")

    def _why_nothing_is_served(self) -> str:
        reasons = (self.problem, self.missing_topic or self.tail_problem)
        found = ". ".join(reason.rstrip(".") for reason in reasons if reason)
        return f"{found}." if found else "Looking for what the trainer publishes."

    def about(self) -> dict[str, Any]:
        """Of which generation, step and age an answer is.

        Raises:
            NotReady: nothing is served yet.
        """
        end = self._served().end
        age_s = max(self._clock() - end.time_s, 0.0)
        return {
            "generation": end.generation,
            "step": end.step,
            "age_s": round(age_s, 3),
        }

    def status(self) -> dict[str, float]:
        """What is served, by the names of the metrics."""
        found: dict[str, float] = {
            "users": 0,
            "items": 0,
            "indexed_items": 0,
            "hidden_items": 0,
            "events_not_learned": self.overlay.waiting,
            "events_of_others": self.overlay.of_others,
            "deltas_total": self.applied_deltas,
            "bases_total": self.bases,
            "refused_points_total": self.refused_points,
        }
        replica = self.replica
        if replica is not None:
            found |= self.about()
            found["users"] = len(replica.learner.state.users)
            found["items"] = len(replica.learner.state.items)
            found["hidden_items"] = len(self.hidden())
            found["indexed_items"] = replica.vectors.indexed_items
        return found

    def example_users(self) -> list[str]:
        """Some users with many recent items, for a person who knows none by name."""
        with self._lock:
            if self.replica is None:
                return []
            state = self.replica.learner.state
            places = np.linspace(state.users.first, state.users.size - 1, LOOKED_AT)
            rows = np.unique(places.astype(np.int64))
            rows = rows[state.users.is_used(rows)]
            lengths = (state.recent.of(rows).items >= 0).sum(axis=1)
            best = np.argsort(-lengths, kind="stable")[:EXAMPLE_USERS]
            return state.users.ids_of(rows[best].tolist())

    def hidden(self) -> list[str]:
        """The items that the catalogue hides.

        Raises:
            NotReady: nothing is served yet.
        """
        with self._lock:
            return self._served().learner.filters.hidden()

    def similar(self, item: str, k: int, explain: bool = False) -> dict[str, Any]:
        """What users who had an item may like next.

        Raises:
            NotReady: nothing is served yet.
            UnknownItem: the model does not know it.
        """
        with self._lock:
            known = self._served().learner.state.items
            if known.row_of(item) is None:
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
            skipped = {}
            for k, request in enumerate(requests):
                try:
                    queries[k], skipped[k] = self._query(replica, request)
                except StreamerError as error:
                    answers[k] = error
            about = self.about()
            for group in _groups(requests, queries):
                first = requests[group[0]]
                found = replica.recommender.recommend(
                    [queries[k] for k in group],
                    [skipped[k] + requests[k].k for k in group],
                    exclude_seen=first.exclude_seen,
                    filter=first.filter,
                    max_per=first.max_per,
                )
                for k, items in zip(group, found, strict=True):
                    shown = [best.item for best in items]
                    start = requests[k].offset - skipped[k]
                    self.pages.show(_list_of(requests[k]), start, shown)
                    items = items[skipped[k] :]
                    answer = _answer(replica, queries[k], requests[k], items)
                    answers[k] = answer | about
            return [answers[k] for k in range(len(requests))]

    def _query(
        self, replica: Replica, request: RecommendRequest
    ) -> tuple[RecommendQuery, int]:
        """The query of a request, and how many items pages before have shown that are
        not known any more.
        """
        recommender = replica.recommender
        if request.user is not None:
            events = self.overlay.of(request.user)
            query = recommender.user(request.user, events)
        else:
            query = recommender.session(request.recent, request.features)
        recommender.check(request.filter, request.max_per)
        before = self.pages.before(_list_of(request), request.offset)
        left_out = [*request.exclude, *(before or ())]
        rows = replica.learner.state.items.known(left_out)
        skipped = request.offset if before is None else 0
        return replace(query, exclude=rows[rows >= 0]), skipped

    def _served(self) -> Replica:
        if self.replica is None:
            raise NotReady(self._why_nothing_is_served())
        return self.replica


def _groups(
    requests: Sequence[RecommendRequest], queries: Mapping[int, RecommendQuery]
) -> list[list[int]]:
    """Which requests are ranked together: those for one purpose, with the same filter;
    one with features alone.
    """
    groups: dict[str, list[int]] = {}
    for k, query in queries.items():
        request = requests[k]
        purpose = repr((request.exclude_seen, request.filter, request.max_per))
        if query.features is not None:
            purpose = f"alone {k}"
        groups.setdefault(purpose, []).append(k)
    return list(groups.values())


def _list_of(request: RecommendRequest) -> bytes:
    """Names the list that a request asks a page of."""
    asked = (request.user, request.recent, request.exclude, request.exclude_seen)
    text = repr((*asked, request.filter, request.max_per, request.features))
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).digest()


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
        named = [best.item for best in found]
        for item in recent + named:
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
    exclude_seen = request.exclude_seen
    reasons = replica.recommender.reasons(query, ids, exclude_seen=exclude_seen)
    for item, why in zip(items, reasons, strict=True):
        recent = []
        for near, nearness in why.recent:
            recent.append({"item": near, "nearness": nearness})
        item["reasons"] = {"parts": why.parts, "recent": recent}
