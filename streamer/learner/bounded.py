"""What goes, so that what is learned stays bounded: ids over the limits, not seen for
too long, or deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamer.learner.state import LearnerState
from streamer.model.batch import Rows

MAX_AT_ONCE = 4096
"""Ids that go between two steps, if no more are new."""


class BoundedState(LearnerState):
    """What a learner knows, within its limits; what was not seen for longest goes
    first.
    """

    def evict(self) -> None:
        """Retire what is over the limits, and what was not seen for longer than it may
        be; a few thousand at once.
        """
        settings = self.settings
        limits = self.limits
        self._evict(
            "users",
            limits.users,
            min(limits.users // 64, MAX_AT_ONCE),
            settings.user_ttl_s,
        )
        self._evict(
            "items",
            limits.items,
            min(limits.items // 64, MAX_AT_ONCE),
            settings.item_ttl_s,
        )
        for side, vocabularies in self.categories.items():
            for name in vocabularies:
                self._evict(
                    f"{side}.{name}", limits.categories, limits.categories // 8
                )  # looks at all rows of a side
        oldest = [
            parts["recency"].step_of_oldest
            for parts in self._parts.values()
            if "recency" in parts
        ]
        self.clock.forget_before(
            min((step for step in oldest if step is not None), default=0)
        )

    def _evict(self, kind: str, limit: int, margin: int, ttl_s: float = 0.0) -> None:
        recency = self._parts[kind]["recency"]
        clock = self.clock
        over = len(self._vocabulary(kind)) - limit
        step = recency.step_of_oldest
        if over > 0:
            rows = recency.oldest(over + margin)
            self.evicted_age_s[kind] = clock.now_s - clock.time_of(
                int(recency.last_steps(rows[-1:])[0])
            )
            self.retire(kind, rows, "limit")
        elif ttl_s and step is not None and clock.time_of(step) + ttl_s < clock.now_s:
            rows = recency.oldest(MAX_AT_ONCE)
            late = [
                clock.time_of(step) + ttl_s < clock.now_s
                for step in recency.last_steps(rows).tolist()
            ]
            self.retire(kind, rows[late], "ttl")

    def retire_items(self, ids: Sequence[str]) -> None:
        """Retire items that do not exist any more; those that are not known are passed
        over.
        """
        rows = np.unique(self.items.known(ids))
        self.retire("items", rows[rows >= 0], "deleted")

    def retire(self, kind: str, rows: Rows, reason: str) -> None:
        """Retire rows, each given once, and count why."""
        if len(rows):
            self.evicted[kind, reason] += len(rows)
            for hook in self.on_retire:
                hook(kind, rows, reason)
            self.forget(kind, rows)

    def forget(self, kind: str, rows: Rows) -> None:
        """Clear rows of a kind everywhere, and give them back; an id that comes back is
        new.

        Lists that hold a retired item are swept bit by bit (`streamer.model.rows.retired`).
        """
        self.changes.mark(kind, rows)
        for part in self._parts[kind].values():
            part.forget(rows)
        if kind == "items":
            self.changes.mark("pairs", rows)
            self.candidate_features.co_occurrence.forget(rows)
            self.cache = self.cache[~np.isin(self.cache, rows)]
            self._touch(rows)
            self._sweep(len(rows))
        elif kind == "users":
            self._reuse(kind, rows)
        else:
            side, _, name = kind.partition(".")
            tower = getattr(self.trainer.model, side)
            feature = tower.settings.categorical.index(name)
            having = tower.features.with_codes(feature, rows)
            self.changes.mark(f"{side}s", having)
            tower.features.forget_codes(feature, having)

    def _sweep(self, retired: int) -> None:
        """Take retired items out of some lists; when all were swept, rows that no list
        holds are used again.
        """
        items, users = self.retired.share(retired, self.items.size, self.users.size)
        items = self.candidate_features.co_occurrence.with_retired(items)
        users = np.union1d(
            self.recent.with_retired(users), self.seen.with_retired(users)
        )
        self.changes.mark("pairs", items)
        self.changes.mark("users", users)
        self.candidate_features.co_occurrence.sweep(items)
        self.recent.sweep(users)
        self.seen.sweep(users)
        if self.retired.is_swept(self.items.size):
            free = self.retired.unreferenced()
            self._reuse("items", free)
            self.changes.mark("items", self.retired.rows())
            self.items.give_back(free)
            self.retired.begin_sweep()

    def sweep_users(self) -> None:
        """If a sweep is under way, take retired items out of all users' lists: others'
        users are among them now.
        """
        if not self.retired.swept:
            return
        users = np.arange(self.users.size)
        self.recent.sweep(self.recent.with_retired(users))
        self.seen.sweep(self.seen.with_retired(users))
        self.retired.at[1] = len(users)

    def _reuse(self, kind: str, rows: Rows) -> None:
        for hook in self.on_reuse if len(rows) else ():
            hook(kind, rows)
