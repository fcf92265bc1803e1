"""Recommendations from what was learned: for a user by id, or for a session of recent
items without a user.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.errors import StreamerError
from streamer.model.batch import Floats, Rows
from streamer.model.ranking.features import KINDS
from streamer.model.ranking.uncounted import UserEvents
from streamer.model.rows.by_rows import Arrays
from streamer.model.rows.recent_items import RecentItems, UserHistory

if TYPE_CHECKING:
    from streamer.learner import OnlineLearner
    from streamer.learner.filters import Filter


LAST_S = 2**31 - 1
"""Times beyond this count as this: they are kept in 32 bits."""


NOTHING: Rows = np.empty(0, np.int64)
ItemRows = NDArray[np.integer[Any]]


class Recommendation(NamedTuple):
    """A recommended item."""

    item: Any
    """Its id: text, or what a `streamer.Learner` was given."""
    score: float
    recent: bool
    """Whether it is among the recent items that the recommendation is based on."""


class Reasons(NamedTuple):
    """What made a recommendation."""

    parts: dict[str, float]
    """What each kind of evidence adds to the score; the rest is the same for all items
    of the query.
    """
    recent: list[tuple[Any, float]]
    """Recent items that users had shortly before or after it, and how near each is; the
    nearest first.
    """


@dataclass(frozen=True, slots=True)
class RecommendQuery:
    """For whom to recommend.

    Args:
        user: id, None for a session.
        row: row of the user; for an unknown user, the row that a new one would get.
        history: of the user or of the session, [1, L].
        seen: item rows that the user had, or those of the session; ascending.
        uncounted: what of the history was not learned: a session, or a user's events
            since what was learned.
        known: whether there is anything to go by.
        note: what the person who asks should know about the result.
        features: of a session's user, as those of a row; None for none.
        exclude: item rows to leave out.
    """

    user: str | None
    row: int
    history: UserHistory
    seen: Rows
    uncounted: UserEvents
    known: bool = True
    note: str = ""
    features: Arrays | None = None
    exclude: Rows = field(default_factory=lambda: NOTHING)

    @property
    def recent(self) -> tuple[int, ...]:
        """Item rows of the user or of the session, most recent first."""
        return tuple(row for row in self.history.items[0].tolist() if row >= 0)


class Recommender:
    """Ranks items with a learner's current weights.

    Args:
        learner: what was learned.
    """

    def __init__(self, learner: OnlineLearner) -> None:
        self._learner = learner
        self._state = learner.state

    def user(
        self, user: str, events: Sequence[tuple[str, float]] = ()
    ) -> RecommendQuery:
        """The query for a user, known or not.

        Args:
            user: id.
            events: the user's events since what was learned: item and time in seconds
                each, in their order.
        """
        state = self._state
        known = state.users.row_of(user)
        rows = state.items.known([item for item, _ in events])
        times_s = np.array([time_s for _, time_s in events]).clip(0, LAST_S)
        items = rows[rows >= 0]
        if known is None and not len(items):
            return self._without_history(user, f"user {_printable(user)} is not known")

        row = state.users.size if known is None else known
        history, uncounted = self._after(row, items, times_s[rows >= 0])
        seen = np.union1d(state.seen.of(row), items)
        return RecommendQuery(user, row, history, seen, uncounted)

    def _after(
        self, row: int, items: Rows, times_s: NDArray[Any]
    ) -> tuple[UserHistory, UserEvents]:
        """The history of a user's row after further events, [1, L], and these events."""
        recent = self._state.recent
        user = np.array([row])
        if not len(items):
            return recent.of(user), UserEvents.none(recent.length)
        first = np.zeros(1, np.int64)
        one = RecentItems(recent.length, recent.retired)
        one.put(first, recent.take(user))
        before = one.observe(np.zeros(len(items), np.int64), items, times_s)
        return one.of(first), UserEvents(items, times_s.astype(np.int32), before)

    def session(
        self, items: Sequence[str], features: Mapping[str, str | float] | None = None
    ) -> RecommendQuery:
        """The query for the items of a session, oldest first.

        Args:
            items: ids.
            features: of whoever it is.

        Raises:
            StreamerError: the model does not use recent items.
        """
        state = self._state
        if not state.recent.length:
            raise StreamerError(
                "this model does not use recent items: ask for a user, or train with --set recent_items=10"
            )
        given = None
        if features:
            given = self._learner.features.of_session(dict(features))
        rows = state.items.known(items)
        known = rows[rows >= 0]
        if not len(known):
            query = self._without_history(None, "none of these items is known")
            return dataclasses.replace(query, features=given)

        note = ""
        unknown = dict.fromkeys(items[k] for k in np.flatnonzero(rows < 0).tolist())
        if unknown:
            listed = ", ".join(map(_printable, unknown))
            note = f"ignored, because they are not known: {listed}"
        row = state.users.size
        times_s = state.event_times([], len(known))
        history, uncounted = self._after(row, known, times_s)
        return RecommendQuery(
            None, row, history, np.unique(known), uncounted, note=note, features=given
        )

    def _without_history(self, user: str | None, why: str) -> RecommendQuery:
        what = "these are the most popular items"
        if self._state.settings.rerank:
            what = "this is what a user without history gets"
        row = self._state.users.size
        history, uncounted = self._after(row, NOTHING, NOTHING)
        note = f"{why}: {what}"
        return RecommendQuery(
            user, row, history, NOTHING, uncounted, known=False, note=note
        )

    def check(self, filter: Filter | None, max_per: str | None) -> None:
        """See that answers can be filtered and limited like this.

        Raises:
            FilterError: they cannot.
        """
        self._learner.filters.matching(filter)
        self._learner.filters.limit(max_per)

    def recommend(
        self,
        queries: Sequence[RecommendQuery],
        k: int | Sequence[int] = 10,
        *,
        exclude_seen: bool = False,
        among: Rows | None = None,
        filter: Filter | None = None,
        max_per: str | None = None,
    ) -> list[list[Recommendation]]:
        """The best items for each query, best first; fewer than `k` if fewer are left.
        Many queries at once cost less than one by one.

        Args:
            queries: from `user` and `session`; one with features comes alone.
            k: how many items, for all queries or for each.
            exclude_seen: leave out what the user had, or the items of the session.
            among: item rows; all others are left out.
            filter: see `streamer.learner.filters`; all other items are left out.
            max_per: "ATTRIBUTE:N", at most N items of each value of an attribute.

        Raises:
            FilterError: one of these two cannot be applied.
        """
        counts = [k] * len(queries) if isinstance(k, int) else k
        best = self._learner.scorer.best(
            queries, counts, exclude_seen, among, filter, max_per
        )
        recommended = []
        for query, (items, scores) in zip(queries, best, strict=True):
            rows = items.tolist()
            ids = self._state.items.ids_of(rows)
            is_recent = [row in query.recent for row in rows]
            named = map(Recommendation, ids, scores.tolist(), is_recent)
            recommended.append(list(named))
        return recommended

    def reasons(
        self, query: RecommendQuery, items: Sequence[str], *, exclude_seen: bool = False
    ) -> list[Reasons]:
        """What made the score of each of these items, which must be known."""
        state = self._state
        rows = state.items.known(items)
        parts: Floats = np.zeros((len(rows), len(KINDS)), np.float32)
        if state.settings.rerank:
            parts = self._learner.scorer.parts(query, rows, exclude_seen)
        neighbours = self._neighbours(query)
        reasons = []
        for row, of_item in zip(rows.tolist(), parts, strict=True):
            near = [(item, of[row]) for item, of in neighbours.items() if row in of]
            near.sort(key=lambda of_recent: -of_recent[1])
            by_kind = dict(zip(KINDS, of_item.tolist(), strict=True))
            reasons.append(Reasons(by_kind, near))
        return reasons

    def _neighbours(self, query: RecommendQuery) -> dict[str, dict[int, float]]:
        """Of each recent item, the items that occur with it, and how near each is."""
        pairs = self._state.candidate_features.co_occurrence
        found = {}
        for k, recent in enumerate(query.recent):
            share = max(pairs.total(recent), 1.0) ** -0.5 / (k + 1)
            weights = pairs.of(recent)
            near = {item: share * weight for item, weight in weights.items()}
            found[self._state.items.id_of(recent)] = near
        return found


def _printable(raw: str) -> str:
    return raw if raw and raw.isprintable() else ascii(raw)
