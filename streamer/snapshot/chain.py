"""Chains of snapshots: a base, and the deltas after it, each of which names the state
that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamer.snapshot.frames import Arrays, RowChunk
from streamer.snapshot.snapshot import Link, Snapshot, SnapshotEnd, SnapshotFile

PARTS = "parts"
"""In the meta of a checkpoint that has users in further directories: name of the
directory, number and checksum of each.
"""


class ChainLink(NamedTuple):
    """A snapshot of a chain, and its size."""

    link: Link
    size_bytes: int


class Checkpoint:
    """The state at the end of a chain: its base, and the deltas up to it.

    Args:
        chain: base first.
        parts: chains of further users, whose rows are numbered on from part to part.
    """

    def __init__(
        self, chain: Sequence[Snapshot], parts: Sequence[Sequence[Snapshot]] = ()
    ) -> None:
        self.chain = list(chain)
        self.end: SnapshotEnd = chain[-1].end
        self.path = Path(chain[-1].name)
        self._chains = [chain, *parts]
        self._first_rows = [0]
        for snapshots in self._chains:
            users = _users(snapshots[-1].arrays())
            self._first_rows.append(self._first_rows[-1] + users)
        self.users = self._first_rows[-1]
        """How many rows of users `arrays` are for."""

    @property
    def number(self) -> int:
        """Number of its last snapshot."""
        return self.end.number

    @property
    def meta(self) -> dict[str, Any]:
        """What it says beside rows and arrays."""
        return self.end.meta

    def chunks(self, kind: str | None = None) -> Iterator[RowChunk]:
        """Rows and what they hold, or those of one kind; what comes later takes the
        place of what came before.
        """
        for first, snapshots in zip(self._first_rows, self._chains, strict=False):
            for snapshot in snapshots:
                for chunk in snapshot.chunks():
                    if kind not in (None, chunk.kind):
                        continue
                    if chunk.kind == "users":
                        chunk = chunk._replace(rows=chunk.rows + first)
                    yield chunk

    def arrays(self) -> Arrays:
        """What is not rows."""
        arrays = self.chain[-1].arrays()
        if len(self._chains) > 1:
            arrays = with_users(arrays, self.users)
        return arrays

    @property
    def links(self) -> list[ChainLink]:
        """What a delta can be added to; nothing if there are parts, whose users have
        other rows in one process.
        """
        if len(self._chains) > 1:
            return []
        return [ChainLink(one.end.link, one.size_bytes) for one in self.chain]

    def files(self) -> list[SnapshotFile]:
        """All files that are needed to restore it, each after those that it needs."""
        every = [one for chain in reversed(self._chains) for one in chain]
        return [one for one in every if isinstance(one, SnapshotFile)]

    @property
    def size_bytes(self) -> int:
        """Of all files that are needed to restore it."""
        return sum(one.size_bytes for one in self.files())


def with_users(arrays: Arrays, users: int) -> Arrays:
    """What belongs to no row, of a learner that has this many rows of users."""
    sizes = {name: np.array(users) for name in arrays if _is_size_of_users(name)}
    return arrays | sizes


def _is_size_of_users(name: str) -> bool:
    return name.startswith("users.") and name.endswith(".size")


def _users(arrays: Arrays) -> int:
    sizes = [int(array) for name, array in arrays.items() if _is_size_of_users(name)]
    return max(sizes, default=0)
