"""Floors on real logs: hit rates at 10 over the second half, on all events and on those new to their user.

The figures were measured by other code. What popularity and last items are leaves nothing open. Co-visitation leaves
open how ties are broken and whether a pair counts in both directions, so its figures are met less closely.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from stream_cases import in_order_of_appearance, walked

from streamer.prequential.floors import FLOORS, make_floors

CLOSE = {"co-visitation": 0.005}
DATA = Path(__file__).parents[3].parent / "shared" / "data"

KNOWN = {
    "gowalla-time": {
        "most-popular": (0.011, 0.004),
        "recently-popular": (0.018, 0.006),
        "last-items": (0.335, 0.0),
        "co-visitation": (0.324, 0.036),
    },
    "tmall": {
        "most-popular": (0.001, 0.000),
        "recently-popular": (0.026, 0.018),
        "last-items": (0.213, 0.0),
        "co-visitation": (0.274, 0.131),
    },
    "ml-100k": {
        "most-popular": (0.047, 0.078),
        "recently-popular": (0.049, 0.075),
        "last-items": (0.000, 0.0),
        "co-visitation": (0.133, 0.202),
    },
}


def stream(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Users and items by time; equal times shuffled."""
    path = DATA / f"{name}.inter.gz"
    if not path.exists():
        pytest.skip(f"there is no {path.name} in ../shared/data")
    with gzip.open(path, "rt") as lines:
        names = [column.split(":")[0] for column in next(lines).rstrip("\n").split("\t")]
        rows = [line.rstrip("\n").split("\t") for line in lines]
    user, item, time = (names.index(column) for column in ("user_id", "item_id", "timestamp"))
    times = np.array([float(row[time]) for row in rows])
    order = np.lexsort((np.random.default_rng(0).random(len(rows)), times))
    return tuple(in_order_of_appearance([rows[k][column] for k in order]) for column in (user, item))


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_floors_reach_their_known_figures(name):
    users, items = stream(name)
    half, ends = len(users) // 2, [*range(512, len(users), 512), len(users)]
    pairs = users * (items.max() + 1) + items
    new = np.zeros(len(users), np.bool_)
    new[np.unique(pairs, return_index=True)[1]] = True
    for floor in make_floors(list(FLOORS)):
        ranks = walked(floor, users, items, ends)
        found = (ranks.among_all[half:] <= 10).mean(), (ranks.among_new[half:][new[half:]] <= 10).mean()
        assert found == pytest.approx(KNOWN[name][floor.name], abs=CLOSE.get(floor.name, 0.001)), floor.name
