"""Every event of a log is ranked before it is trained, and counted by slice."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from streamer.evaluation import MODEL, EventSampler, Prequential, Tally
from streamer.evaluation.baselines import Stretch
from streamer.evaluation.tally import Ranks
from streamer.model.batch import Batch, Rows
from streamer.model.ranking.candidates import Candidates
from streamer.model.rows.seen_items import SeenBefore, UserItems
from streamer.replay.evaluation.baselines import BASELINES
from streamer.replay.evaluation.delay import DelayedLearner, PendingEvents
from streamer.replay.evaluation.settings import PrequentialSettings
from streamer.replay.evaluation.slices import AMONG_NEW, SLICES, FirstEvents, Traits

K = 10
"""The length of the list that the curves look at."""
RETRIEVED = (100, 200)
"""Lengths of the towers' own list at which its recall is measured."""
CLOCK = time.process_time
"""Time on a core: what a step and a baseline cost does not depend on other load."""


class SlicedPrequential(Prequential):
    """Ranks all events, and those new to their user also in lists without what the user
    had. Keeps every user's items in memory.

    Args:
        learner: whose model ranks.
        settings: what is measured.
        half: number of the event with which the second half of the stream begins.
    """

    learner: DelayedLearner

    def __init__(
        self, learner: DelayedLearner, settings: PrequentialSettings, half: int
    ) -> None:
        others = [name for name in settings.baselines if name != "most-popular"]
        super().__init__(
            learner,
            EventSampler(time_share=None, max_events=None, clock=CLOCK),
            Tally(
                K,
                settings.window,
                ks=settings.ks,
                slices=SLICES,
                among_new=AMONG_NEW,
            ),
            [BASELINES[name]() for name in others],
        )
        self.retrieved = Tally(
            RETRIEVED[0],
            settings.window,
            ks=RETRIEVED,
            slices=SLICES,
            among_new=AMONG_NEW,
        )
        """What was found in the towers' own lists."""
        self._half = half
        self._retrieve_every = settings.retrieve_every
        self._user_items = UserItems(learner.state.retired)
        self._users = FirstEvents()
        self._items = FirstEvents()
        self._pending = PendingEvents()
        self._model_seconds = 0.0
        self._timed_events = 0

    def seconds_per_event(self, name: str) -> float:
        """CPU seconds that the model takes to rank an event, or a baseline to rank and
        learn; compiled loops are loaded during the first batch, which does not count.
        """
        seconds = self.baselines.seconds.get(name, 0.0)
        if name == MODEL:
            seconds = self._model_seconds
        return seconds / max(self._timed_events, 1)

    def __call__(
        self, batch: Batch, chosen: Rows, candidates: Candidates | None
    ) -> None:
        first = not self.events
        super().__call__(batch, chosen, candidates)
        self._timed_events += len(batch)
        if first:
            self._timed_events = 0
            self._model_seconds = 0.0
            self.baselines.seconds = dict.fromkeys(self.baselines.names, 0.0)

    def _start_from_learner(self, batch: Batch) -> None:
        super()._start_from_learner(batch)
        # it is not known which users a restored learner had: then none counts as new
        if self.learner.state.item_counts.size:
            self._users.know(np.arange(int(batch.users.max()) + 1))

    def _seen_before(self, batch: Batch, chosen: Rows) -> SeenBefore:
        seen = self._user_items.before(batch.users, batch.items, chosen)
        self._user_items.observe(batch.users, batch.items)
        return seen

    def _members(
        self, batch: Batch, chosen: Rows, seen: SeenBefore
    ) -> NDArray[np.bool_]:
        counts = self.learner.state.item_counts.counts(batch.items)
        self._items.know(batch.items[counts > 0])
        traits = Traits(
            new_user=self._users.first(batch.users)[chosen],
            new_item=self._items.first(batch.items)[chosen],
            band=self.popularity.bands(batch.items[chosen]),
            fresh=seen.fresh,
            late=self.events + chosen >= self._half,
        )
        members = traits.members()
        if self._retrieve_every:
            self._retrieve(batch, chosen, seen, members)
        return members

    def _rank(
        self,
        batch: Batch,
        chosen: Rows,
        candidates: Candidates | None,
        seen: SeenBefore,
    ) -> Ranks:
        started = CLOCK()
        ranks = super()._rank(batch, chosen, candidates, seen)
        self._model_seconds += CLOCK() - started
        return ranks

    def _retrieve(
        self,
        batch: Batch,
        chosen: Rows,
        seen: SeenBefore,
        members: NDArray[np.bool_],
    ) -> None:
        """Look for every n-th event in the towers' own list."""
        some = np.flatnonzero((self.events + chosen) % self._retrieve_every == 0)
        found = self.ranker.by_towers(batch, chosen, seen, some)
        self.retrieved.add({MODEL: found}, members[some])

    def _stretch(self, batch: Batch, chosen: Rows, seen: SeenBefore) -> Stretch:
        stretch = super()._stretch(batch, chosen, seen)
        due = self.learner.due
        return stretch if due is None else self._pending.delayed(stretch, due)

    def _forget(self, kind: str, rows: Rows) -> None:
        super()._forget(kind, rows)
        if kind == "users":
            self._users.forget(rows)
            self._user_items.forget(rows)
        else:
            self._items.forget(rows)
            self._user_items.sweep(np.arange(self._user_items.size))
