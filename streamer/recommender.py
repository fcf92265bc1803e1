"""Recommendations from what was learned: for a user by id, or for a session of recent items without a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamer.errors import StreamerError
from streamer.model.batch import Batch, Floats, Rows
from streamer.model.ranking.ranker import ALL, DISCOVERY
from streamer.model.ranking.recent import History

if TYPE_CHECKING:
    from streamer.learner import Learner


class Recommendation(NamedTuple):
    """A recommended item."""

    item: str
    score: float
    recent: bool
    """Whether it is among the recent items that the recommendation is based on."""


@dataclass(frozen=True, slots=True)
class Query:
    """For whom to recommend.

    Args:
        user: id, None for a session.
        row: row of the user; for an unknown user, the row that a new one would get.
        history: of the user or of the session, [1, L].
        seen: item rows that the user had, or those of the session.
        known: whether there is anything to go by.
        note: what the person who asks should know about the result.
    """

    user: str | None
    row: int
    history: History
    seen: Rows
    known: bool = True
    note: str = ""

    @property
    def recent(self) -> tuple[int, ...]:
        """Item rows of the user or of the session, most recent first."""
        return tuple(row for row in self.history.items[0].tolist() if row >= 0)

    def rows(self) -> Batch:
        """As rows of the tables, without a target."""
        return Batch(np.array([self.row]), np.array([-1]))


class Recommender:
    """Ranks items with a learner's current weights.

    Args:
        learner: what was learned.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def user(self, user: str) -> Query:
        """The query for a user, known or not."""
        learner = self._learner
        row = learner.users.row_of(user)
        if row is None:
            return self._without_history(user, f"user {_printable(user)} is not known")
        return Query(user, row, learner.recent.of(np.array([row])), learner.seen.of(row))

    def session(self, items: Sequence[str]) -> Query:
        """The query for the items of a session, oldest first.

        Raises:
            StreamerError: the model does not use recent items.
        """
        learner = self._learner
        if not learner.recent.length:
            raise StreamerError(
                "this model does not use recent items: ask for a user, or train with --recent-items above 0"
            )
        rows = {item: learner.items.row_of(item) for item in reversed(items)}  # each once, most recent first
        known = tuple(row for row in rows.values() if row is not None)
        if not known:
            return self._without_history(None, "none of these items is known")
        unknown = ", ".join(_printable(item) for item, row in rows.items() if row is None)
        note = f"ignored, because they are not known: {unknown}" if unknown else ""
        history = learner.recent.of(np.array([learner.users.size]))
        count = min(len(known), learner.recent.length)
        history.items[0, :count], history.counts[0, :count] = known[:count], 1
        history.times_s[0, :count] = learner.evidence.now_s - np.arange(count)  # in this order, and just now
        return Query(None, learner.users.size, history, np.array(known), note=note)

    def recommend(
        self, queries: Sequence[Query], k: int = 10, *, exclude_seen: bool = False, among: Rows | None = None
    ) -> list[list[Recommendation]]:
        """The best items for each query, best first; fewer than `k` if fewer are left.

        Args:
            queries: from `user` and `session`.
            k: how many items.
            exclude_seen: leave out what the user had, or the items of the session.
            among: item rows; all others are left out.
        """
        learner, found = self._learner, []
        for query in queries:
            if learner.settings.rerank:
                items, scores = self._ranked(query, k, exclude_seen, among)
            elif query.known:
                items, scores = self._retrieved(query, k, exclude_seen)
            else:
                items = learner.items.used
                counts = learner.exact.counts(items)
                scores = np.log(np.maximum(counts, 1e-12) / max(counts.sum(), 1.0))
            kept = np.isfinite(scores) & (np.isin(items, among) if among is not None else True)
            items, scores = items[kept], scores[kept]
            best, recent = np.argsort(-scores, kind="stable")[:k], set(query.recent)
            ranked = zip(items[best].tolist(), scores[best].tolist(), strict=True)
            found.append([Recommendation(learner.items.id_of(row), score, row in recent) for row, score in ranked])
        return found

    def _ranked(self, query: Query, k: int, exclude_seen: bool, among: Rows | None) -> tuple[Rows, Floats]:
        """Candidates and their scores by the ranker."""
        learner = self._learner
        extra, least = among[None] if among is not None else None, k + len(query.seen) * exclude_seen
        candidates = learner.candidates(query.rows(), query.history, extra, least)
        scores = learner.ranker.scores(candidates, DISCOVERY if exclude_seen else ALL)
        if exclude_seen:
            scores[np.isin(candidates.items, query.seen)] = -np.inf
        return candidates.items.astype(np.int64), scores

    def _retrieved(self, query: Query, k: int, exclude_seen: bool) -> tuple[Rows, Floats]:
        """The best items by the towers alone, with their inner products."""
        learner, rows = self._learner, query.rows()
        left_out = [query.seen] if exclude_seen else None
        items = learner.retriever.items(learner.items.size)
        recent = learner.recent_items(query.history)
        best, scores = learner.retriever.top(items, rows.users, len(items) if k > len(items) else k, recent, left_out)
        return best[0], scores[0]

    def _without_history(self, user: str | None, why: str) -> Query:
        learner = self._learner
        what = (
            "this is what a user without history gets"
            if learner.settings.rerank
            else "these are the most popular items"
        )
        row = learner.users.size
        return Query(
            user, row, learner.recent.of(np.array([row])), np.empty(0, np.int64), known=False, note=f"{why}: {what}"
        )


def _printable(raw: str) -> str:
    return raw if raw and raw.isprintable() else ascii(raw)
