"""Trivial recommenders: a method that loses to one of them is of no use.

Belongs here: one recommender a file, which learns from each event after it was ranked.
May import: `metrics.composition`, `model`, and the pair counts and seen items of
`prequential`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamer.errors import SettingsError
from streamer.prequential.floors.base import RECENT, Floor, Ranks, Stretch
from streamer.prequential.floors.counting import Counting, CoVisitation
from streamer.prequential.floors.last_items import LastItems
from streamer.prequential.floors.popular import LAST_EVENTS, MostPopular

__all__ = [
    "FLOORS",
    "LINE_FLOORS",
    "RECENT",
    "CoVisitation",
    "Counting",
    "Floor",
    "LastItems",
    "MostPopular",
    "Ranks",
    "Stretch",
    "make_floors",
]

FLOORS: dict[str, Callable[[], Floor]] = {
    "most-popular": MostPopular,
    "recently-popular": lambda: MostPopular(window=LAST_EVENTS),
    "last-items": LastItems,
    "co-visitation": CoVisitation,
    "counting": Counting,
    "counting-no-time": lambda: Counting(timed=False),
}

LINE_FLOORS = ("most-popular", "last-items", "counting")
"""Those beside a running line: their memory is bounded by the number of users and
items.
"""


def make_floors(names: Sequence[str]) -> list[Floor]:
    """New floors by name.

    Raises:
        SettingsError: there is no floor of a name.
    """
    unknown = [name for name in names if name not in FLOORS]
    if unknown:
        raise SettingsError(
            [
                f"there is no floor {name!r}: choose among {', '.join(FLOORS)}"
                for name in unknown
            ]
        )
    return [FLOORS[name]() for name in names]
