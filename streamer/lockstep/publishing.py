"""One publisher for all ranks of a group: rank 0 publishes, with the users of all ranks,
so that servers see one trainer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamer.learner import State
from streamer.lockstep.group import Group
from streamer.model.rows.growing import grown
from streamer.snapshot.capture import Capture, marked
from streamer.snapshot.chain import with_users
from streamer.snapshot.frames import (
    NO_ROWS,
    RowChunk,
    Rows,
    pack_chunk,
    split_frames,
    unpack_chunk,
)
from streamer.snapshot.places import Place
from streamer.snapshot.publisher import Delta, Dense, Due, Publisher
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
        base_every_s: see `Publisher`.
    """

    def __init__(
        self,
        group: Group,
        state: State,
        place: Place,
        every_s: float,
        base_every_s: float,
    ) -> None:
        super().__init__(state, place, every_s, base_every_s)
        self._group = group
        self._is_lead = group.rank == 0
        if not self._is_lead:
            self._kinds = (USERS,)
        # the published row of each rank's rows of users, -1 if it has none
        self._row_of = [NO_ROWS] * group.size
        self._users = 0  # published rows
        self._base_users = 0
        self._users_of_base: Capture | None = None

    def due(self) -> Due:
        """See `Publisher.due`; nothing on other ranks than 0."""
        return super().due() if self._is_lead else Due(0)

    # deltas ---------------------------------------------------------------------------

    def _total(self, rows: int) -> int:
        counts = self._group.gather_equal(np.array([rows]))
        return sum(int(count[0]) for count in counts)

    def _copied(self, changed: dict[str, Rows]) -> list[RowChunk]:
        users = Capture(self._rows, {USERS: marked(changed[USERS])})
        own = {kind: rows for kind, rows in changed.items() if kind != USERS}
        chunks = super()._copied(own)
        of_ranks, _ = self._gather(users.copy_all())
        return chunks + of_ranks

    def _submit_delta(self, delta: Delta) -> None:
        if self._is_lead:
            arrays = with_users(delta.dense.arrays, self._users)
            dense = replace(delta.dense, arrays=arrays)
            super()._submit_delta(replace(delta, dense=dense))

    # bases ----------------------------------------------------------------------------

    def _begin_base(self, positions: Positions) -> None:
        self._base_users = self._users
        used = {USERS: self._state.used(USERS)}
        self._users_of_base = Capture(self._rows, used)
        super()._begin_base(positions)

    def _capture(self) -> Capture:
        kinds = [kind for kind in self._kinds if kind != USERS]
        capture = Capture(self._rows, {kind: self._state.used(kind) for kind in kinds})
        capture.more_comes = True
        return capture

    def _submit_base(self, capture: Capture, repeats: int | None, dense: Dense) -> None:
        if self._is_lead:
            super()._submit_base(capture, repeats, dense)

    def _advance_base(self, idle: bool) -> None:
        """Copy some more on each rank, and bring copies of users to rank 0."""
        assert self._base is not None
        assert self._users_of_base is not None
        users = self._users_of_base
        self._base.advance_step(idle=idle)
        users.advance_step(idle=idle)
        has_more = self._base.has_rows_left or users.has_rows_left
        chunks, any_more = self._gather(users.take_copied(), has_more)
        for chunk in chunks:
            self._base_users = max(self._base_users, int(chunk.rows.max()) + 1)
            self._base.add(chunk)
        if not any_more:
            users.close()
            self._base.more_comes = False
            self._base.copy_slice()  # notes that it is complete
            self._base.close()
            self._base = None

    def _finished(self, dense: Dense) -> Dense:
        return replace(dense, arrays=with_users(dense.arrays, self._base_users))

    def _dense(self, positions: Positions) -> Dense:
        return super()._dense(positions) if self._is_lead else Dense({}, {})

    # users ----------------------------------------------------------------------------

    def _gather(
        self, chunks: list[RowChunk], more: bool = False
    ) -> tuple[list[RowChunk], bool]:
        """Users of all ranks with their published rows, on rank 0; and whether any rank
        has more. A collective.
        """
        packed = b"".join(pack_chunk(*chunk) for chunk in chunks)
        message = np.frombuffer(packed, np.uint8)
        said = np.stack(self._group.gather_equal(np.array([len(message), more])))
        any_more = bool(said[:, 1].any())
        messages = self._group.gather_sized(message, said[:, 0].tolist())
        if not self._is_lead:
            return [], any_more
        found = []
        for rank, of_rank in enumerate(messages):
            for frame in split_frames(of_rank.data):
                chunk = unpack_chunk(frame)
                rows = self._published(rank, chunk.rows)
                found.append(chunk._replace(rows=rows))
        return found, any_more

    def _published(self, rank: int, rows: Rows) -> Rows:
        size = int(rows.max(initial=-1)) + 1
        known = self._row_of[rank] = grown(self._row_of[rank], size, -1)
        new = rows[known[rows] < 0]
        known[new] = self._users + np.arange(len(new))
        self._users += len(new)
        return known[rows]
