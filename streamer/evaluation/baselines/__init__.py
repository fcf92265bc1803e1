"""Trivial recommenders: a method that loses to one of them is of no use.

Belongs here: one recommender a file, which learns from each event after it was ranked.
May import: `metrics.composition`, `model`, and the pair counts and seen items of
`prequential`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamer.errors import SettingsError
from streamer.evaluation.baselines.base import RECENT, Baseline, Ranks, Stretch
from streamer.evaluation.baselines.counting import Counting, CoVisitation
from streamer.evaluation.baselines.last_items import LastItems
from streamer.evaluation.baselines.popular import LAST_EVENTS, MostPopular

__all__ = [
    "BASELINES",
    "LINE_BASELINES",
    "RECENT",
    "Baseline",
    "CoVisitation",
    "Counting",
    "LastItems",
    "MostPopular",
    "Ranks",
    "Stretch",
    "make_baselines",
]

BASELINES: dict[str, Callable[[], Baseline]] = {
    "most-popular": MostPopular,
    "recently-popular": lambda: MostPopular(window=LAST_EVENTS),
    "last-items": LastItems,
    "co-visitation": CoVisitation,
    "counting": Counting,
    "counting-no-time": lambda: Counting(timed=False),
}

LINE_BASELINES = ("most-popular", "last-items", "counting")
"""Those beside a running line: their memory is bounded by the number of users and
items.
"""


def make_baselines(names: Sequence[str]) -> list[Baseline]:
    """New baselines by name.

    Raises:
        SettingsError: there is no baseline of a name.
    """
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise SettingsError(
            [
                f"there is no baseline {name!r}: choose among {', '.join(BASELINES)}"
                for name in unknown
            ]
        )
    return [BASELINES[name]() for name in names]
