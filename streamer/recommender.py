"""Recommendations from what was learned: for a user by id, or for a session of recent items without a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamer.errors import StreamerError

if TYPE_CHECKING:
    from streamer.learner import Learner
    from streamer.model.batch import Recent


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
        recent: item rows of the user or of the session, most recent first.
        known: whether there is anything to go by.
        note: what the person who asks should know about the result.
    """

    user: str | None
    row: int
    recent: tuple[int, ...] = ()
    known: bool = True
    note: str = ""


class Recommender:
    """Ranks all known items with a learner's current weights.

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
        recent = learner.recent_of(learner.users.rows([user]))
        return Query(user, row, tuple(r for r in recent[0].tolist() if r >= 0) if recent is not None else ())

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
        return Query(None, len(learner.users), known[: learner.recent.length], note=note)

    def recommend(
        self, queries: Sequence[Query], k: int = 10, *, exclude_recent: bool = False
    ) -> list[list[Recommendation]]:
        """The best items for each query, best first; fewer than `k` if fewer are left.

        Args:
            queries: from `user` and `session`.
            k: how many items.
            exclude_recent: leave out the items that a query is based on.
        """
        learner, ranker = self._learner, self._learner.ranker()
        rows, scores = ranker.top(
            ranker.items(len(learner.items)),
            np.array([query.row for query in queries]),
            k,
            self._recent_matrix(queries),
            [np.array(query.recent, np.int64) for query in queries] if exclude_recent else None,
        )
        found = []
        for query, best, values in zip(queries, rows.tolist(), scores.tolist(), strict=True):
            if not query.known and learner.trainer.model.beta is None:
                best, values = self._most_popular(k)
            ranked = [(row, score) for row, score in zip(best, values, strict=True) if isfinite(score)]
            found.append([Recommendation(learner.items.id_of(r), score, r in query.recent) for r, score in ranked])
        return found

    def _recent_matrix(self, queries: Sequence[Query]) -> Recent | None:
        """[B, L] the recent items of all queries, filled up with -1."""
        length = self._learner.recent.length
        if not length:
            return None
        matrix = np.full((len(queries), length), -1, np.int32)
        for line, query in zip(matrix, queries, strict=True):
            line[: len(query.recent)] = query.recent
        return matrix

    def _most_popular(self, k: int) -> tuple[list[int], list[float]]:
        """Rows and log shares of the items that are most popular lately."""
        log_pop = self._learner.prior.log_pop(np.arange(len(self._learner.items)))
        best = np.argsort(-log_pop, kind="stable")[:k]
        return best.tolist(), log_pop[best].tolist()

    def _without_history(self, user: str | None, why: str) -> Query:
        if self._learner.trainer.model.beta is not None:
            what = "this is what a user without history gets, by the popularity prior"
        else:
            what = "these are the most popular items, by the log of their share (the model has no popularity prior)"
        return Query(user, len(self._learner.users), known=False, note=f"{why}: {what}")


def _printable(raw: str) -> str:
    return raw if raw and raw.isprintable() else ascii(raw)
