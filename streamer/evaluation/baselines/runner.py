"""Runs baselines over the stream, on a thread of their own where training must not
wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from streamer.evaluation.baselines.base import RECENT, Baseline, Stretch
from streamer.evaluation.tally import Ranks
from streamer.model.batch import Batch, Rows
from streamer.model.rows.recent_items import RecentItems
from streamer.model.rows.retired import RetiredItems
from streamer.model.rows.seen_items import SeenBefore


class BaselineRunner:
    """Baselines that rank and learn batch by batch.

    Args:
        baselines: the recommenders.
        retired: items that nobody has any more.
        clock: seconds.
        beside: whether they work on a thread, beside training.
    """

    def __init__(
        self,
        baselines: Sequence[Baseline],
        retired: RetiredItems,
        clock: Callable[[], float],
        *,
        beside: bool,
    ) -> None:
        self._baselines = baselines
        self._recent = RecentItems(RECENT, retired)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "baselines") if beside else None
        self._found: Future[dict[str, Ranks]] = Future()
        self.names = [baseline.name for baseline in baselines]
        self.seconds = dict.fromkeys(self.names, 0.0)
        """Seconds that each baseline took so far."""

    def stretch(self, batch: Batch, chosen: Rows, seen: SeenBefore) -> Stretch:
        """A batch in which each event is learned from as soon as it was ranked; takes
        in what its users had last.
        """
        times_s = batch.times_s
        if times_s is None:
            times_s = np.zeros(len(batch), np.int64)
        recent = self._recent.observe(batch.users, batch.items, times_s)
        ages_s = np.maximum(times_s[:, None] - recent.times_s, 0.0)
        end = len(batch)
        return Stretch(
            batch.users,
            batch.items,
            recent.items,
            ages_s,
            chosen,
            chosen,
            end,
            seen,
        )

    def start(self, stretch: Stretch) -> None:
        """Let the baselines rank and learn."""
        if self._thread is not None:
            self._found = self._thread.submit(self._walk, stretch)
        else:
            self._found = Future()
            self._found.set_result(self._walk(stretch))

    def finish(self) -> dict[str, Ranks]:
        """What each baseline found in the latest stretch, when all are done."""
        return self._found.result()

    def _walk(self, stretch: Stretch) -> dict[str, Ranks]:
        found = {}
        for baseline in self._baselines:
            started = self._clock()
            found[baseline.name] = baseline.walk(stretch)
            self.seconds[baseline.name] += self._clock() - started
        return found

    def forget(self, kind: str, rows: Rows) -> None:
        """Rows of the learner are given to other users or items."""
        if kind == "users":
            self._recent.forget(rows)
            return
        self._recent.sweep(np.arange(self._recent.size))
        for baseline in self._baselines:
            if self._thread is None:
                baseline.forget(rows)
            else:  # after the batch that they work on
                self._thread.submit(baseline.forget, rows)
