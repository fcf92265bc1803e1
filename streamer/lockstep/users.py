"""The users of all ranks of a group, as rank 0 publishes them: servers see one trainer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streamer.lockstep.group import Group
from streamer.model.rows.growing import grown
from streamer.snapshot.frames import Arrays, Rows, pack_chunk, unpack_chunk
from streamer.snapshot.store import with_users


class UsersOfGroup:
    """Brings copies of users to rank 0, which gives each a row that no user of another
    rank has.

    Args:
        group: the ranks.
        copied: a copy of what rows of our users hold, as it is published.
    """

    def __init__(self, group: Group, copied: Callable[[Rows], Arrays]) -> None:
        self._group = group
        self._copied = copied
        self._row_of = [
            np.empty(0, np.int64)
        ] * group.size  # the published row of each rank's rows, -1 if it has none
        self._size = 0

    def gather(
        self, rows: Rows, more: bool = False
    ) -> tuple[list[tuple[Rows, Arrays]], bool]:
        """Published rows and what they hold, on rank 0, and whether any rank has more
        to send; a collective.
        """
        message = np.frombuffer(pack_chunk("users", rows, self._copied(rows)), np.uint8)
        said = np.stack(
            self._group.gather_equal(np.array([len(message), more]))
        )  # [W, 2]
        found = self._group.gather_sized(message, said[:, 0].tolist())
        if self._group.rank:
            return [], bool(said[:, 1].any())
        chunks = [unpack_chunk(message.data) for message in found]
        published = [
            (self._published(rank, chunk.rows), chunk.arrays)
            for rank, chunk in enumerate(chunks)
        ]
        return [(rows, arrays) for rows, arrays in published if len(rows)], bool(
            said[:, 1].any()
        )

    def _published(self, rank: int, rows: Rows) -> Rows:
        known = self._row_of[rank] = grown(
            self._row_of[rank], int(rows.max(initial=-1)) + 1, -1
        )
        new = rows[known[rows] < 0]
        known[new] = self._size + np.arange(len(new))
        self._size += len(new)
        return known[rows]

    def dense(self, arrays: Arrays) -> Arrays:
        """What belongs to no row, for as many users as were gathered."""
        return with_users(arrays, self._size)
