"""All trivial recommenders that methods are compared with on logs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streamer.evaluation.baselines import (
    LAST_EVENTS,
    RECENT,
    Baseline,
    Counting,
    LastItems,
    MostPopular,
    Stretch,
)
from streamer.evaluation.tally import Doubles
from streamer.model.rows.pair_counts import PairCounts
from streamer.replay.evaluation.neighbours import SessionNeighbours


class CoVisitation(Counting):
    """Recommends what was seen together with the user's last ten items.

    As `Counting` with w_k = 1, q_k = 1/k and n = 1, without popularity; keeps all
    pairs.
    """

    normalised = False
    popular = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.name = "co-visitation"
        self.pairs = PairCounts()

    def weights(self, stretch: Stretch) -> tuple[Doubles, Doubles]:
        """[n, 10] weights for learning and for ranking."""
        shape = stretch.recent.shape
        by_rank = np.broadcast_to(1.0 / np.arange(1, RECENT + 1), shape)
        return np.ones(shape), by_rank.copy()


class SequentialRules(CoVisitation):
    """Recommends what came after the user's last item, by 1 / steps between (Ludewig
    and Jannach, UMUAI 2018).
    """

    directed = True

    def __init__(self) -> None:
        super().__init__()
        self.name = "sequential-rules"

    def weights(self, stretch: Stretch) -> tuple[Doubles, Doubles]:
        """[n, 10] 1 / steps for learning; only the last item for ranking."""
        _, by_steps = super().weights(stretch)
        last_only = np.zeros(by_steps.shape)
        last_only[:, 0] = 1.0
        return by_steps, last_only


BASELINES: dict[str, Callable[[], Baseline]] = {
    "most-popular": MostPopular,
    "recently-popular": lambda: MostPopular(window=LAST_EVENTS),
    "last-items": LastItems,
    "co-visitation": CoVisitation,
    "counting": Counting,
    "counting-no-time": lambda: Counting(timed=False),
    "sequential-rules": SequentialRules,
    "session-neighbours": SessionNeighbours,
}
