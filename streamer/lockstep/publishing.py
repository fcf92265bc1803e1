"""One publisher for all ranks of a group: rank 0 publishes, with the users of all ranks,
so that servers see one trainer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamer.learner import State
from streamer.lockstep.group import Group
from streamer.model.rows.growing import grown
from streamer.snapshot.chain import with_users
from streamer.snapshot.frames import (
    NO_ROWS,
    Arrays,
    RowChunk,
    Rows,
    pack_chunk,
    unpack_chunk,
)
from streamer.snapshot.places import Place
from streamer.snapshot.publisher import UNCHANGED, Delta, Due, KindRows, Publisher
from streamer.sources.base import Positions

USERS = "users"


class GroupPublisher(Publisher):
    """The part of one rank in publishing. All ranks call `step` and `close` together,
    `step` with what `due` has returned on rank 0.

    Args:
        group: the ranks.
        state: of this rank.
        place: where rank 0 publishes.
        every_s: see `Publisher`.
    """

    def __init__(
        self,
        group: Group,
        state: State,
        place: Place,
        every_s: float,
    ) -> None:
        super().__init__(state, place, every_s)
        self._group = group
        self._is_lead = group.rank == 0
        if not self._is_lead:
            self._kinds = (USERS,)
        # the published row of each rank's rows of users, -1 if it has none
        self._row_of = [NO_ROWS] * group.size
        self._users = 0  # published rows

    def due(self) -> Due:
        """See `Publisher.due`; nothing on other ranks than 0."""
        if self._is_lead:
            return super().due()
        return Due.NOTHING

    def _total(self, rows: int) -> int:
        return sum(self._group.gather_values(rows))

    def _copied(
        self,
        part: list[KindRows],
        changed: dict[str, Rows],
        is_over: bool,
    ) -> tuple[list[RowChunk], bool]:
        """On rank 0 with the users of all ranks, by their published rows. A collective."""
        rest = [one for one in part if one[0] != USERS]
        others = {kind: rows for kind, rows in changed.items() if kind != USERS}
        chunks, _ = super()._copied(rest, others, is_over)

        users = [rows for kind, rows in part if kind == USERS]
        sliced = np.concatenate([NO_ROWS, *users])
        chunks += self._gathered(self._chunk(USERS, sliced, UNCHANGED))
        chunks += self._gathered(self._chunk(USERS, changed.get(USERS, NO_ROWS)))
        return chunks, all(self._group.gather_values(is_over))

    def _gathered(self, own: RowChunk) -> list[RowChunk]:
        """On rank 0, users of all ranks."""
        messages = self._group.gather(np.frombuffer(pack_chunk(*own), np.uint8))
        chunks: list[RowChunk] = []
        if not self._is_lead:
            return chunks
        for rank, message in enumerate(messages):
            chunk = unpack_chunk(message.data)
            if len(chunk.rows):
                rows = self._published(rank, chunk.rows)
                chunks.append(chunk._replace(rows=rows))
        return chunks

    def _published(self, rank: int, rows: Rows) -> Rows:
        size = int(rows.max()) + 1
        known = grown(self._row_of[rank], size, -1)
        self._row_of[rank] = known
        new = rows[known[rows] < 0]
        known[new] = self._users + np.arange(len(new))
        self._users += len(new)
        return known[rows]

    def _dense(self, positions: Positions) -> tuple[Arrays, dict[str, Any]]:
        if not self._is_lead:
            return {}, {}
        arrays, meta = super()._dense(positions)
        return with_users(arrays, self._users), meta

    def _submit(self, delta: Delta) -> None:
        if self._is_lead:
            super()._submit(delta)
