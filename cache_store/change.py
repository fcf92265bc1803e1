"""Entries, their versions, and changes of them: all that trainers send each other.

An entry has a name, a version that only grows, and a number for each item:

| entry                        | numbers                                                | version             |
|------------------------------|--------------------------------------------------------|---------------------|
| counts:<partition>[@<topic>] | events of each item in the partition before the offset | (offset, 0)         |
| counts:before:<trainer>      | events that a trainer had counted before it shared     | (1, 0)              |
| drawn:<trainer>              | how often the trainer has resampled each item          | (incarnation, step) |
| cache                        | how often each item is in the newest cache             | (number, 0)         |

Counts are a function of the stream, so of two copies the one with the larger offset is
right, whoever made it. Draws belong to their trainer, which alone writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Version = tuple[int, int]
NOTHING: Version = (0, 0)
"""The version of an entry that nobody has written."""

Rows = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Values = NDArray[Any]

COUNTS = "counts:"
BEFORE = "counts:before:"
DRAWN = "drawn:"
CACHE = "cache"


def counts_of(partition: str, topic_id: str = "") -> str:
    """The name of a partition's counts; a topic that was recreated has another id."""
    return f"{COUNTS}{partition}@{topic_id}" if topic_id else f"{COUNTS}{partition}"


def dtype_of(name: str) -> np.dtype[Any]:
    """The type of an entry's numbers."""
    return np.dtype(np.int64 if name.startswith(DRAWN) else np.uint32)


@dataclass(frozen=True, slots=True)
class Change:
    """The numbers at version `to` of every item whose number has changed after `since`:
    of all items, if that is `NOTHING`.

    Any copy of the entry may take in any change that fits it, any number of times.
    """

    name: str
    since: Version
    to: Version
    hashes: Hashes
    values: Values

    def fits(self, version: Version) -> bool:
        """Whether it is newer than a copy of this version, and leaves out nothing that
        lies between.
        """
        return self.since <= version < self.to

    def replaces(self, version: Version) -> bool:
        """Whether a server that has this version needs no earlier change any more."""
        return self.since == NOTHING and version <= self.to

    @property
    def nbytes(self) -> int:
        """Its size on the wire."""
        return self.hashes.nbytes + self.values.nbytes
