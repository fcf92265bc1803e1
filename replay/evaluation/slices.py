"""Every event of a log is ranked before it is trained, and counted by slice.

all, new                            every event; events whose item its user never had, known items left out
new-users, returning-users          the user's first event; later ones
new-items, returning-items          the item's first event, which only a catalogue can predict; later ones
head, torso, tail                   events of returning items, by the item's popularity before the batch
new/new-users ... new/tail          the same of `new`
second-half/<slice>                 each of them over the second half of the stream
second-half/type/<type>             events of each type that `event_weights` names, over that half
stretch/<number>                    that half cut into equal stretches
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.evaluation import MODEL, EventSampler, Prequential, Tally
from streamer.evaluation.baselines import Stretch
from streamer.model.batch import Batch, Rows
from streamer.model.rows.by_rows import take_or_fill
from streamer.model.rows.growing import grown
from streamer.model.rows.seen_items import SeenBefore, UserItems
from streamer.replay.evaluation.baselines import BASELINES
from streamer.replay.evaluation.delay import DelayedLearner, PendingEvents
from streamer.replay.evaluation.results import STRETCHES
from streamer.replay.evaluation.settings import PrequentialSettings

BANDS = ("head", "torso", "tail")
SPLITS = ("new-users", "returning-users", "new-items", "returning-items", *BANDS)
WHOLE = ("all", "new", *SPLITS, *(f"new/{split}" for split in SPLITS))
SECOND_HALF = "second-half/"
OF_TYPE = SECOND_HALF + "type/"
STRETCH = "stretch/"
SLICES = (*WHOLE, *(SECOND_HALF + name for name in WHOLE))
AMONG_NEW = tuple(name for name in SLICES if "new" in name.split("/"))
"""Slices of events new to their user, ranked in lists without what the user had."""
K = 10
"""The length of the list that the curves look at."""
RETRIEVED = (100, 200)
"""Lengths of the towers' own list at which its recall is measured."""
CLOCK = time.process_time
"""Time on a core: what a step costs does not depend on other load."""

Flags = NDArray[np.bool_]


def members(
    new_user: Flags, new_item: Flags, band: Rows, fresh: Flags, late: Flags
) -> Flags:
    """[n, SLICES] which slices each of n events belongs to, by what is known of it
    before it comes.

    Args:
        new_user: [n] the user was never seen.
        new_item: [n] the item was never seen.
        band: [n] popularity band of the item: a place in `BANDS`.
        fresh: [n] the user never had the item.
        late: [n] the event is of the second half of the stream.
    """
    splits = [new_user, ~new_user, new_item, ~new_item]
    for place in range(len(BANDS)):
        splits.append(~new_item & (band == place))
    every = np.ones(len(fresh), np.bool_)
    whole = [every, fresh, *splits]
    for split in splits:
        whole.append(fresh & split)
    second_half = [late & part for part in whole]
    return np.stack([*whole, *second_half], axis=1)


class FirstEvents:
    """Finds the first events of rows.

    Examples:
        >>> seen = FirstEvents()
        >>> seen.know(np.array([0]))
        >>> seen.first(np.array([0, 1, 1, 2])).tolist()
        [False, True, False, True]
    """

    def __init__(self) -> None:
        self._seen = np.zeros(0, np.bool_)

    def forget(self, rows: Rows) -> None:
        """These rows are given to other users or items."""
        self._seen[rows[rows < len(self._seen)]] = False

    def know(self, rows: Rows) -> None:
        """These rows had events already."""
        self._seen = grown(self._seen, int(rows.max(initial=-1)) + 1)
        self._seen[rows] = True

    def first(self, rows: Rows) -> Flags:
        """[n] whether each event is the first of its row; takes the events in."""
        distinct, at = np.unique(rows, return_index=True)
        found = np.zeros(len(rows), np.bool_)
        found[at] = ~take_or_fill(self._seen, distinct)
        self.know(distinct)
        return found


def _tally(k: int, ks: Sequence[int], types: Iterable[str]) -> Tally:
    stretches = [f"{STRETCH}{number}" for number in range(STRETCHES)]
    slices = (*SLICES, *(OF_TYPE + name for name in types), *stretches)
    return Tally(k, ks=ks, slices=slices, among_new=AMONG_NEW)


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
            _tally(K, settings.ks, settings.event_weights),
            [BASELINES[name]() for name in others],
        )
        self.retrieved = _tally(RETRIEVED[0], RETRIEVED, settings.event_weights)
        """What was found in the towers' own lists."""
        self.types: Sequence[str | None] | None = None
        """Of the events of the next batch; None: nobody asks for them."""
        self._type_names = np.array(list(settings.event_weights), object)
        self._half = half
        self._retrieve_every = settings.retrieve_every
        self._user_items = UserItems(learner.state.retired)
        self._users = FirstEvents()
        self._items = FirstEvents()
        self._pending = PendingEvents()

    def _seen_before(self, batch: Batch, chosen: Rows) -> SeenBefore:
        seen = self._user_items.before(batch.users, batch.items, chosen)
        self._user_items.observe(batch.users, batch.items)
        return seen

    def _members(self, batch: Batch, chosen: Rows, seen: SeenBefore) -> Flags:
        counts = self.learner.state.item_counts.counts(batch.items)
        self._items.know(batch.items[counts > 0])
        new_users = self._users.first(batch.users)
        new_items = self._items.first(batch.items)
        number = self.events + chosen
        found = members(
            new_user=new_users[chosen],
            new_item=new_items[chosen],
            band=self.popularity.bands(batch.items[chosen]),
            fresh=seen.fresh,
            late=number >= self._half,
        )
        late = (number >= self._half)[:, None]
        stretch = (number - self._half) * STRETCHES // max(self._half, 1)
        of_stretch = stretch.clip(max=STRETCHES - 1)[:, None] == np.arange(STRETCHES)
        more = [late & self._of_types(chosen), of_stretch]
        found = np.concatenate([found, *more], axis=1)
        if self._retrieve_every:
            some = np.flatnonzero(number % self._retrieve_every == 0)
            ranks = self.ranker.by_towers(batch, chosen, seen, some)
            self.retrieved.add({MODEL: ranks}, found[some])
        return found

    def _of_types(self, chosen: Rows) -> Flags:
        """[n, types] of which type each event is."""
        types = np.full(int(chosen.max(initial=-1)) + 1, None, object)
        if self.types is not None:
            types = np.array(self.types, object)
        found: Flags = types[chosen][:, None] == self._type_names
        return found

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
