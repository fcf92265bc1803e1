"""Recommendations from what was learned: for a user by id, or for a session of recent
items without a user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.errors import StreamerError
from streamer.model.batch import Batch, Floats, Rows
from streamer.model.jit import njit_borrowing
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.features import KINDS
from streamer.model.ranking.ranker import ALL, DISCOVERY
from streamer.model.rows.by_rows import Arrays
from streamer.model.rows.recent_items import RecentItems, UserHistory

if TYPE_CHECKING:
    from streamer.learner import Learner


LAST_S = 2**31 - 1
"""Times beyond this count as this: they are kept in 32 bits."""


NOTHING: Rows = np.empty(0, np.int64)
ItemRows = NDArray[np.integer[Any]]


class Recommendation(NamedTuple):
    """A recommended item."""

    item: str
    score: float
    recent: bool
    """Whether it is among the recent items that the recommendation is based on."""


class Reasons(NamedTuple):
    """What made a recommendation."""

    parts: dict[str, float]
    """What each kind of evidence adds to the score; the rest is the same for all items
    of the query.
    """
    recent: list[tuple[str, float]]
    """Recent items that users had shortly before or after it, and how near each is; the
    nearest first.
    """


@dataclass(frozen=True, slots=True)
class Query:
    """For whom to recommend.

    Args:
        user: id, None for a session.
        row: row of the user; for an unknown user, the row that a new one would get.
        history: of the user or of the session, [1, L].
        seen: item rows that the user had, or those of the session; ascending.
        known: whether there is anything to go by.
        note: what the person who asks should know about the result.
        features: of a session's user, as those of a row; None for none.
    """

    user: str | None
    row: int
    history: UserHistory
    seen: Rows
    known: bool = True
    note: str = ""
    features: Arrays | None = None

    @property
    def recent(self) -> tuple[int, ...]:
        """Item rows of the user or of the session, most recent first."""
        return tuple(row for row in self.history.items[0].tolist() if row >= 0)


class Wanted(NamedTuple):
    """What to recommend for a query."""

    query: Query
    k: int = 10
    exclude: Rows = NOTHING
    """Item rows to leave out."""


class Recommender:
    """Ranks items with a learner's current weights.

    Args:
        learner: what was learned.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def user(self, user: str, events: Sequence[tuple[str, float]] = ()) -> Query:
        """The query for a user, known or not.

        Args:
            user: id.
            events: the user's events since what was learned: item and time in seconds
                each, in their order.
        """
        learner = self.learner
        row = learner.state.users.row_of(user)
        rows = [
            (item, time_s)
            for name, time_s in events
            if (item := learner.state.items.row_of(name)) is not None
        ]
        if row is None and not rows:
            return self._without_history(user, f"user {_printable(user)} is not known")
        at = np.array([learner.state.users.size if row is None else row])
        history = learner.state.recent.of(at)
        seen = learner.state.seen.of(int(at[0]))
        if rows:
            items = np.array([item for item, _ in rows])
            times_s = np.array([time_s for _, time_s in rows])
            one = RecentItems(learner.state.recent.length, learner.state.retired)
            one.put(np.zeros(1, np.int64), learner.state.recent.take(at))
            one.observe(np.zeros(len(items), np.int64), items, times_s.clip(0, LAST_S))
            history = one.of(np.zeros(1, np.int64))
            seen = np.union1d(seen, items)
        return Query(user, int(at[0]), history, seen)

    def session(
        self, items: Sequence[str], features: Mapping[str, str | float] | None = None
    ) -> Query:
        """The query for the items of a session, oldest first.

        Args:
            items: ids.
            features: of whoever it is.

        Raises:
            StreamerError: the model does not use recent items.
        """
        learner = self.learner
        if not learner.state.recent.length:
            raise StreamerError(
                "this model does not use recent items: ask for a user, or train with --recent-items above 0"
            )
        rows = {
            item: learner.state.items.row_of(item) for item in reversed(items)
        }  # each once, most recent first
        known = tuple(row for row in rows.values() if row is not None)
        described = learner.features.of_session(dict(features)) if features else None
        if not known:
            query = self._without_history(None, "none of these items is known")
            return dataclasses.replace(query, features=described)
        unknown = ", ".join(
            _printable(item) for item, row in rows.items() if row is None
        )
        note = f"ignored, because they are not known: {unknown}" if unknown else ""
        history = learner.state.recent.of(np.array([learner.state.users.size]))
        count = min(len(known), learner.state.recent.length)
        history.items[0, :count] = known[:count]
        history.counts[0, :count] = 1
        history.times_s[0, :count] = (
            learner.state.candidate_features.windows.now_s - np.arange(count)
        )  # in this order, and just now
        return Query(
            None,
            learner.state.users.size,
            history,
            np.unique(known),
            note=note,
            features=described,
        )

    def recommend(
        self,
        queries: Sequence[Query],
        k: int = 10,
        *,
        exclude_seen: bool = False,
        among: Rows | None = None,
        exclude: Rows = NOTHING,
    ) -> list[list[Recommendation]]:
        """The best items for each query, best first; fewer than `k` if fewer are left.

        Args:
            queries: from `user` and `session`.
            k: how many items.
            exclude_seen: leave out what the user had, or the items of the session.
            among: item rows; all others are left out.
            exclude: item rows to leave out.
        """
        wanted = [Wanted(query, k, exclude) for query in queries]
        return self.recommend_each(wanted, exclude_seen=exclude_seen, among=among)

    def recommend_each(
        self,
        wanted: Sequence[Wanted],
        *,
        exclude_seen: bool = False,
        among: Rows | None = None,
    ) -> list[list[Recommendation]]:
        """As `recommend`, with a length and exclusions for each query: many at once
        cost less than one by one.

        Args:
            wanted: queries, from `user` and `session`, and what to recommend for each.
            exclude_seen: see `recommend`; so is `among`.
        """
        left_out = [
            np.concatenate([w.query.seen, w.exclude]) if exclude_seen else w.exclude
            for w in wanted
        ]
        found = []
        for (query, k, _), out, (items, scores) in zip(
            wanted,
            left_out,
            self._scored(wanted, left_out, exclude_seen, among),
            strict=True,
        ):
            if among is not None:
                scores = np.where(np.isin(items, among), scores, np.float32(-np.inf))
            best = np.empty(k, np.int64)
            best = best[: _best(items, scores, out, best)]
            rows = items[best].tolist()
            recent = set(query.recent)
            ranked = zip(
                self.learner.state.items.ids_of(rows),
                scores[best].tolist(),
                rows,
                strict=True,
            )
            found.append(
                [
                    Recommendation(item, score, row in recent)
                    for item, score, row in ranked
                ]
            )
        return found

    def _scored(
        self,
        wanted: Sequence[Wanted],
        left_out: Sequence[Rows],
        exclude_seen: bool,
        among: Rows | None,
    ) -> Iterator[tuple[ItemRows, Floats]]:
        """Items and scores for each query, from which the best are chosen."""
        learner = self.learner
        if not learner.settings.rerank:
            for (query, k, _), out in zip(wanted, left_out, strict=True):
                yield (
                    self._retrieved(query, k, out)
                    if query.known
                    else self._most_popular()
                )
            return
        least = np.array(
            [w.k + len(out) for w, out in zip(wanted, left_out, strict=True)]
        )
        candidates = self._candidates([w.query for w in wanted], least, among)
        scores = learner.state.ranker.scores(candidates, _purpose(exclude_seen))
        items = candidates.items
        for begin, end in itertools.pairwise(candidates.first.tolist()):
            yield items[begin:end], scores[begin:end]

    def _most_popular(self) -> tuple[Rows, Floats]:
        items = self.learner.state.items.used
        items = items[self.learner.state.are_reachable(items)]
        counts = self.learner.state.item_counts.counts(items)
        return items, np.log(np.maximum(counts, 1e-12) / max(counts.sum(), 1.0)).astype(
            np.float32
        )

    def reasons(
        self, query: Query, items: Sequence[str], *, exclude_seen: bool = False
    ) -> list[Reasons]:
        """What made the score of each of these items, which must be known."""
        learner = self.learner
        rows = np.array([learner.state.items.row_of(item) for item in items], np.int64)
        parts: Floats = np.zeros((len(rows), len(KINDS)), np.float32)
        if learner.settings.rerank:
            candidates = self._candidates([query], np.zeros(1, np.int64), rows)
            place = {row: at for at, row in enumerate(candidates.items.tolist())}
            parts = learner.state.ranker.parts(candidates, _purpose(exclude_seen))[
                [place[row] for row in rows.tolist()]
            ]
        near: list[list[tuple[str, float]]] = [[] for _ in rows]
        pairs = learner.state.candidate_features.co_occurrence
        for k, recent in enumerate(query.recent):
            neighbours = pairs.of(recent)
            share = max(pairs.total(recent), 1.0) ** -0.5 / (k + 1)
            for of_item, row in zip(near, rows.tolist(), strict=True):
                if row in neighbours:
                    of_item.append(
                        (learner.state.items.id_of(recent), share * neighbours[row])
                    )
        return [
            Reasons(
                dict(zip(KINDS, of_kinds.tolist(), strict=True)),
                sorted(of_recent, key=lambda r: -r[1]),
            )
            for of_kinds, of_recent in zip(parts, near, strict=True)
        ]

    def _candidates(
        self, queries: Sequence[Query], least: Rows, among: Rows | None
    ) -> Candidates:
        extra = np.tile(among, (len(queries), 1)) if among is not None else None
        history = UserHistory(
            *map(
                np.concatenate, zip(*(query.history for query in queries), strict=True)
            )
        )
        with self._described(queries):
            return self.learner.candidates.generate(
                _batch(queries),
                history,
                extra,
                least,
                [query.seen for query in queries],
            )

    @contextlib.contextmanager
    def _described(self, queries: Sequence[Query]) -> Iterator[None]:
        """The row that a new user would get has the features of a query meanwhile;
        there must be no other then.
        """
        query = next((query for query in queries if query.features is not None), None)
        if query is None:
            yield
            return
        assert len(queries) == 1, "a session with features is asked for alone"
        store = self.learner.state.trainer.model.user.features
        row = np.array([query.row])
        size = store.size
        assert query.features is not None
        store.put(row, query.features)
        try:
            yield
        finally:
            store.forget(row)
            store.size = size

    def _retrieved(self, query: Query, k: int, left_out: Rows) -> tuple[Rows, Floats]:
        """The best items by the towers alone, with their inner products."""
        learner = self.learner
        rows = _batch([query])
        items = learner.state.retriever.items(learner.state.items.size)
        recent = learner.candidates.recent_items(query.history)
        count = len(items) if k > len(items) else k
        with self._described([query]):
            best, scores = learner.state.retriever.top(
                items, rows.users, count, recent, [left_out]
            )
        return best[0], np.where(
            learner.state.are_reachable(best[0]), scores[0], -np.inf
        )

    def _without_history(self, user: str | None, why: str) -> Query:
        learner = self.learner
        what = (
            "this is what a user without history gets"
            if learner.settings.rerank
            else "these are the most popular items"
        )
        row = learner.state.users.size
        return Query(
            user,
            row,
            learner.state.recent.of(np.array([row])),
            np.empty(0, np.int64),
            known=False,
            note=f"{why}: {what}",
        )


def _batch(queries: Sequence[Query]) -> Batch:
    """As rows of the tables, without targets."""
    return Batch(np.array([query.row for query in queries]), np.full(len(queries), -1))


def _purpose(exclude_seen: bool) -> int:
    return DISCOVERY if exclude_seen else ALL


def _printable(raw: str) -> str:
    return raw if raw and raw.isprintable() else ascii(raw)


@njit_borrowing
def _holds(rows: Rows, row: int) -> bool:
    found = False
    for other in rows:
        found |= other == row
    return found


@njit_borrowing
def _best(items: ItemRows, scores: Floats, left_out: Rows, best: Rows) -> int:
    """Write where the best items that are not left out are, best first, ties in their
    order; returns how many.
    """
    found = 0
    for place in range(len(items)):
        score = scores[place]
        if not np.isfinite(score) or (
            found == len(best) and score <= scores[best[found - 1]]
        ):
            continue
        if _holds(left_out, items[place]):
            continue
        found = min(found + 1, len(best))
        at = found - 1
        while at > 0 and score > scores[best[at - 1]]:
            best[at] = best[at - 1]
            at -= 1
        best[at] = place
    return found
