"""Bounds on what is learned: ids go that are over the limits, were not seen for too
long, or were deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from streamer.learner.state import LABELS, State
from streamer.model.batch import Rows

MAX_AT_ONCE = 4096
"""Ids that go between two steps, if no more are new."""


class Eviction:
    """Keeps a learner's state within its limits: the least recently seen ids go first.

    Args:
        state: what is learned.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.evicted: Counter[tuple[str, str]] = Counter()
        """Ids that went since this learner was made, by kind and reason."""
        self.evicted_age_s: dict[str, int] = {}
        """Time, by the events, since the ids that a limit evicted last were seen; by
        kind.
        """
        self.on_retire: list[Callable[[str, Rows, str], None]] = []
        """Called with the kind and the rows that are about to be retired, and why."""
        self.on_reuse: list[Callable[[str, Rows], None]] = []
        """Called with rows of users or items that other ids may get from now on."""

    def evict(self) -> None:
        """Retire ids over the limits and ids past their TTL, a few thousand at once."""
        settings = self._state.settings
        limits = self._state.limits
        self._evict("users", limits.users, settings.user_ttl_s)
        self._evict("items", limits.items, settings.item_ttl_s)
        for kind in self._state.category_kinds:
            self._evict(kind, limits.categories)

    def _evict(self, kind: str, limit: int, ttl_s: float = 0.0) -> None:
        state = self._state
        recency = state.by_kind[kind]["recency"]
        over = len(state.vocabulary(kind)) - limit
        if over > 0:
            # beyond those over the limit, so that not every step evicts
            margin = min(limit // 64, MAX_AT_ONCE)
            if kind in state.category_kinds:
                # retiring a category looks at all rows of a side
                margin = limit // 8
            rows = recency.oldest(over + margin)
            self.evicted_age_s[kind] = int(state.ages_s(kind, rows)[-1])
            self.retire(kind, rows, "limit")
        elif ttl_s and state.age_s(kind) > ttl_s:
            rows = recency.oldest(MAX_AT_ONCE)
            past = state.ages_s(kind, rows) > ttl_s
            self.retire(kind, rows[past], "ttl")

    def retire_items(self, ids: Sequence[str]) -> None:
        """Retire items that were deleted; unknown ones are ignored."""
        rows = np.unique(self._state.items.known(ids))
        self.retire("items", rows[rows >= 0], "deleted")

    def retire(self, kind: str, rows: Rows, reason: str) -> None:
        """Clear rows of a kind everywhere, and count why; an id that comes back is new.

        Lists that hold a retired item are swept bit by bit
        (`streamer.model.rows.retired`).

        Args:
            kind: of the rows.
            rows: each given once.
            reason: one of "limit", "ttl", "deleted" and "shared".
        """
        if not len(rows):
            return
        self.evicted[kind, reason] += len(rows)
        for hook in self.on_retire:
            hook(kind, rows, reason)

        state = self._state
        state.changes.mark(kind, rows)
        for part in state.by_kind[kind].values():
            part.forget(rows)
        if kind == "items":
            self._forget_items(rows)
        elif kind == "users":
            self._reuse(kind, rows)
        else:
            self._forget_categories(kind, rows)

    def _forget_items(self, rows: Rows) -> None:
        state = self._state
        state.changes.mark("pairs", rows)
        state.candidate_features.co_occurrence.forget(rows)
        state.cache = state.cache[~np.isin(state.cache, rows)]
        state.remove_cold_items(rows)
        self._sweep(len(rows))

    def _forget_categories(self, kind: str, codes: Rows) -> None:
        state = self._state
        if kind == LABELS:
            having = state.attributes.with_labels(codes)
            state.changes.mark("items", having)
            state.attributes.forget_labels(having, codes)
            return
        side, _, name = kind.partition(".")
        tower = getattr(state.trainer.model, side)
        feature = tower.settings.categorical.index(name)
        having = tower.features.with_codes(feature, codes)
        state.changes.mark(f"{side}s", having)
        tower.features.forget_codes(feature, having)

    def _sweep(self, retired: int) -> None:
        """Take retired items out of some lists; after a sweep of all lists, rows that
        no list holds are free.
        """
        state = self._state
        pairs = state.candidate_features.co_occurrence
        items, users = state.retired.share(retired, state.items.size, state.users.size)
        items = pairs.with_retired(items)
        recent = state.recent.with_retired(users)
        seen = state.seen.with_retired(users)
        users = np.union1d(recent, seen)
        state.changes.mark("pairs", items)
        state.changes.mark("users", users)
        pairs.sweep(items)
        state.recent.sweep(users)
        state.seen.sweep(users)

        if state.retired.is_swept(state.items.size):
            free = state.retired.unreferenced()
            self._reuse("items", free)
            state.changes.mark("items", state.retired.rows())
            state.items.give_back(free)
            state.retired.begin_sweep()

    def sweep_users(self) -> None:
        """If a sweep is under way, take retired items out of all users' lists, some of
        which were restored after the sweep had passed their rows.
        """
        state = self._state
        if not state.retired.swept:
            return
        users = np.arange(state.users.size)
        state.recent.sweep(state.recent.with_retired(users))
        state.seen.sweep(state.seen.with_retired(users))
        state.retired.at[1] = len(users)

    def _reuse(self, kind: str, rows: Rows) -> None:
        if len(rows):
            for hook in self.on_reuse:
                hook(kind, rows)
