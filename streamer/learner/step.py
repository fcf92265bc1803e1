"""What goes into a step of a learner, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.learner.features import FeatureColumn
from streamer.model.batch import Batch, Floats, Rows
from streamer.model.ranking.candidates import Candidates
from streamer.model.rows.recent_items import UserHistory
from streamer.model.step import StepResult


@dataclass(frozen=True, slots=True)
class Learned:
    """What a micro-batch did to the learner."""

    users: Rows
    items: Rows
    new_users: int
    new_items: int
    step: StepResult
    drawn: tuple[Rows, NDArray[np.float32]]
    """Items that were resampled, and how often; an item may occur twice."""

    @classmethod
    def nothing(cls) -> Learned:
        """What no events do."""
        rows = np.empty(0, np.int64)
        return cls(
            rows, rows, 0, 0, StepResult.empty(), (rows, np.empty(0, np.float32))
        )


class Evaluator(Protocol):
    """Tests before it is trained."""

    def choose(self, events: int) -> Rows:
        """Which events of the next batch to rank, ascending."""
        ...

    def __call__(
        self, batch: Batch, chosen: Rows, candidates: Candidates | None
    ) -> None:
        """Rank the chosen events among their candidates; None: the towers alone rank
        all items.
        """
        ...


class StepEvents(NamedTuple):
    """The events of a step; users and items have rows.

    Args:
        users: [b] user rows of the events of our batch.
        own: [b] the places of these events in the step.
        items: [B] item rows of all events of the step.
        times_s: [B] seconds since the epoch.
        item_features: [B] what the events say of their items; None: nothing.
        weights: [B] how much each event counts; None: 1 each.
    """

    users: Rows
    own: Rows
    items: Rows
    times_s: Rows
    item_features: FeatureColumn | None
    weights: Floats | None


class StepHistory(NamedTuple):
    """Who the users of all events of a step are.

    Args:
        history: [B] their recent items, as of each event.
        users: [B] numbers that tell them apart.
        codes: [B, C] their categories.
    """

    history: UserHistory
    users: Rows
    codes: Rows
