"""The candidates of queries, by their scores."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.learner.candidates import CandidateGenerator
from streamer.learner.filters import Filter, Filters, GroupLimit, Matching
from streamer.learner.state import State
from streamer.model.batch import Batch, Bools, Floats, Rows
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.ranker import ALL, DISCOVERY
from streamer.model.rows.recent_items import UserHistory

if TYPE_CHECKING:
    from streamer.recommender import RecommendQuery

ItemRows = NDArray[np.integer[Any]]


class _Wanted(NamedTuple):
    """What is ranked for several queries, and for which purpose."""

    exclude_seen: bool
    among: Rows | None
    matching: Matching | None


class Scorer:
    """Ranks candidates of queries with the current weights.

    Args:
        state: what is learned.
        candidates: finds candidates.
        filters: says which may be recommended.
    """

    def __init__(
        self, state: State, candidates: CandidateGenerator, filters: Filters
    ) -> None:
        self._state = state
        self._candidates = candidates
        self._filters = filters

    def best(
        self,
        queries: Sequence[RecommendQuery],
        counts: Sequence[int],
        exclude_seen: bool,
        among: Rows | None,
        filter: Filter | None,
        max_per: str | None,
    ) -> list[tuple[ItemRows, Floats]]:
        """The best items for each query, best first, and their scores; see
        `Recommender.recommend`.
        """
        wanted = _Wanted(exclude_seen, among, self._filters.matching(filter))
        left_out = []
        for query in queries:
            out = query.exclude
            if exclude_seen:
                out = np.concatenate([query.seen, out])
            left_out.append(out)
        found = []
        ranked = list(self._ranked(queries, counts, left_out, wanted))
        for query, count, out, (items, scores) in zip(
            queries, counts, left_out, ranked, strict=True
        ):
            limit = self._filters.limit(max_per)
            if limit is not None:
                passed = limit.take(items, count)
                passing = items[passed], scores[passed]
                found.append(self._filled_up(query, count, out, wanted, passing, limit))
            else:
                found.append((items[:count], scores[:count]))
        return found

    def parts(self, query: RecommendQuery, rows: Rows, exclude_seen: bool) -> Floats:
        """[rows, kinds] what each kind of evidence adds to the score of some items."""
        candidates = self._described_candidates([query], np.zeros(1, np.int64), rows)
        place = {row: at for at, row in enumerate(candidates.items.tolist())}
        parts = self._state.ranker.parts(candidates, _purpose(exclude_seen))
        return parts[[place[row] for row in rows.tolist()]]

    def _ranked(
        self,
        queries: Sequence[RecommendQuery],
        counts: Sequence[int],
        left_out: Sequence[Rows],
        wanted: _Wanted,
    ) -> Iterator[tuple[ItemRows, Floats]]:
        """For each query the candidates that may be recommended, best first, and their
        scores; more than are wanted.
        """
        _, among, matching = wanted
        scored = self._scored(queries, counts, left_out, wanted)
        for out, (items, scores) in zip(left_out, scored, strict=True):
            if among is not None:
                scores = np.where(np.isin(items, among), scores, np.float32(-np.inf))
            if matching is not None:
                scores = np.where(matching.mask[items], scores, np.float32(-np.inf))
            best = _best(items, scores, out, len(items))
            if matching is not None and len(matching.pinned):
                is_pinned = np.isin(items[best], matching.pinned)
                best = best[np.argsort(~is_pinned, kind="stable")]
            yield items[best], scores[best]

    def _scored(
        self,
        queries: Sequence[RecommendQuery],
        counts: Sequence[int],
        left_out: Sequence[Rows],
        wanted: _Wanted,
    ) -> Iterator[tuple[ItemRows, Floats]]:
        """Items and scores for each query, from which the best are chosen."""
        exclude_seen, among, matching = wanted
        if not self._state.settings.rerank:
            for query, count, out in zip(queries, counts, left_out, strict=True):
                if among is not None or matching is not None:
                    count = len(self._state.items)  # they may be far down the list
                if query.known:
                    yield self._retrieved(query, count, out, matching)
                else:
                    yield self._most_popular(matching)
            return
        least = np.array(counts) + [len(out) for out in left_out]
        candidates = self._described_candidates(queries, least, among, matching)
        scores = self._state.ranker.scores(candidates, _purpose(exclude_seen))
        for begin, end in itertools.pairwise(candidates.first.tolist()):
            yield candidates.items[begin:end], scores[begin:end]

    def _may_be_found(self, items: Rows, matching: Matching | None) -> Bools:
        if matching is not None:
            return matching.mask[items]
        return self._state.are_reachable(items)

    def _most_popular(self, matching: Matching | None) -> tuple[Rows, Floats]:
        state = self._state
        items = state.items.used
        items = items[self._may_be_found(items, matching)]
        counts = state.item_counts.counts(items)
        share = np.maximum(counts, 1e-12) / max(counts.sum(), 1.0)
        return items, np.log(share).astype(np.float32)

    def _retrieved(
        self,
        query: RecommendQuery,
        k: int,
        left_out: Rows,
        matching: Matching | None,
    ) -> tuple[Rows, Floats]:
        """The best items by the towers alone, with their inner products."""
        state = self._state
        items = state.retriever.items(state.items.size)
        recent = self._candidates.recent_items(query.history)
        users = np.array([query.row])
        count = min(k + len(left_out), len(items))
        with self._described([query]):
            best, scores = state.retriever.top(items, users, count, recent, exact=True)
        may_be_found = self._may_be_found(best[0], matching)
        return best[0], np.where(may_be_found, scores[0], -np.inf)

    def _filled_up(
        self,
        query: RecommendQuery,
        count: int,
        left_out: Rows,
        wanted: _Wanted,
        passing: tuple[ItemRows, Floats],
        limit: GroupLimit,
    ) -> tuple[ItemRows, Floats]:
        """The best items that pass a limit and, when these candidates are used up, the
        best of those that still can.
        """
        matching = wanted.matching or self._filters.everything()
        found, scores = passing
        more = found
        while len(found) < count and len(more):
            full = limit.full(len(matching.mask))
            rest = wanted._replace(matching=self._filters.without(matching, full))
            out = np.concatenate([left_out, found])
            missing = count - len(found)
            [(more, their_scores)] = self._ranked([query], [missing], [out], rest)
            passed = limit.take(more, missing)
            more = more[passed]
            found = np.concatenate([found, more])
            scores = np.concatenate([scores, their_scores[passed]])
        return found, scores

    def _described_candidates(
        self,
        queries: Sequence[RecommendQuery],
        least: Rows,
        among: Rows | None,
        matching: Matching | None = None,
    ) -> Candidates:
        extra = np.tile(among, (len(queries), 1)) if among is not None else None
        columns = zip(*(query.history for query in queries), strict=True)
        history = UserHistory(*map(np.concatenate, columns))
        users = np.array([query.row for query in queries])
        seen = [query.seen for query in queries]
        now_s = self._state.candidate_features.windows.now_s
        times_s = [query.uncounted.times_s.max(initial=now_s) for query in queries]
        asked = Batch(users, np.full(len(queries), -1), times_s=np.array(times_s))
        uncounted = [query.uncounted for query in queries]
        with self._described(queries):
            return self._candidates.generate(
                asked, history, extra, least, seen, uncounted, matching
            )

    @contextlib.contextmanager
    def _described(self, queries: Sequence[RecommendQuery]) -> Iterator[None]:
        """The row that a new user would get has the features of a query meanwhile;
        there must be no other then.
        """
        given = [query for query in queries if query.features is not None]
        if not given:
            yield
            return
        assert len(queries) == 1, "a session with features is asked for alone"
        store = self._state.trainer.model.user.features
        row = np.array([given[0].row])
        size = store.size
        store.put(row, given[0].features or {})
        try:
            yield
        finally:
            store.forget(row)
            store.size = size


def _purpose(exclude_seen: bool) -> int:
    return DISCOVERY if exclude_seen else ALL


def _best(items: ItemRows, scores: Floats, left_out: Rows, count: int) -> Rows:
    """Where the best items that are not left out are, best first, ties in their order."""
    allowed = np.flatnonzero(np.isfinite(scores) & ~np.isin(items, left_out))
    return allowed[np.argsort(-scores[allowed], kind="stable")[:count]]
