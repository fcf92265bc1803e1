"""All events of a log as arrays, for offline evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Interactions:
    """All events of a log, in the order of the stream. Codes count ids in the order in which they first appear."""

    users: NDArray[np.int64]  # [E]
    items: NDArray[np.int64]  # [E]
    user_ids: list[str]
    item_ids: list[str]
    timestamps_s: NDArray[np.float64] | None = None  # [E]

    def __len__(self) -> int:
        return len(self.users)


def by_first_appearance(codes: NDArray[np.int64], ids: NDArray[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """Codes counted anew in the order in which they appear, and the ids in that order."""
    first = np.full(len(ids), len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # of equal codes the last assignment counts: the first position
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(codes))]
    anew = np.empty(len(ids), np.int64)
    anew[order] = np.arange(len(order))
    return anew[codes], ids[order].tolist()
