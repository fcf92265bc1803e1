"""All trivial recommenders that methods are compared with on logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


BASELINES: dict[str, Callable[[], Baseline]] = {
    "most-popular": MostPopular,
    "recently-popular": lambda: MostPopular(window=LAST_EVENTS),
    "last-items": LastItems,
    "co-visitation": CoVisitation,
    "counting": Counting,
    "counting-no-time": lambda: Counting(timed=False),
}


def unknown_baselines(names: Sequence[str]) -> list[str]:
    """A problem for each name that no baseline has."""
    return [
        f"there is no baseline {name!r}: choose among {', '.join(BASELINES)}"
        for name in names
        if name not in BASELINES
    ]
