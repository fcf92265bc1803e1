"""One checkpoint of a group: rank 0 writes what all ranks hold alike, and every rank
its own users.

    ckpt-....base, ckpt-....delta          of rank 0: everything but the users of the others
    rank-1/ckpt-....base, ...              the users of rank 1, and so on

The file of rank 0 is the manifest: it names the file of every other rank
(`meta.parts`), and is sealed and renamed when all of those are safe on disk. Killed
before that, the group resumes from the manifest before; whatever the ranks have written
since belongs to nothing. Users are stored with their partition, so a restart may have
another number of ranks: each takes the users of its partitions out of all files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.accounting import Accounting
from streamer.errors import CheckpointError
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import OnlineLearner, State
from streamer.lockstep.group import Group
from streamer.lockstep.seals import CheckpointSeals, Report
from streamer.sharing.sharing import Sharing
from streamer.snapshot.capture import CaptureAbandoned
from streamer.snapshot.chain import PARTS, Checkpoint
from streamer.snapshot.checkpointer import Checkpointer
from streamer.snapshot.directory import SnapshotDirectory
from streamer.snapshot.frames import RowChunk
from streamer.snapshot.lease import check_generation
from streamer.snapshot.snapshot import Link
from streamer.snapshot.store import CheckpointStore

KEPT_BEYOND = 8
"""Files that a rank keeps beyond those of rank 0: of checkpoints that were not sealed
in the end.
"""


def rank_store(directory: Path, keep: int, group: Group) -> CheckpointStore:
    """Where a rank writes its part; a rank of an earlier start that sleeps is
    superseded.
    """
    if group.rank:
        directory = directory / part_name(group.rank)
        keep += KEPT_BEYOND
    return CheckpointStore(directory, keep, takeover_s=group.timeout_s)


def part_name(rank: int) -> str:
    """The directory of a rank, in that of rank 0."""
    return f"rank-{rank}"


class RankCheckpointer(Checkpointer):
    """The part of one rank in the checkpoints of a group.

    Args:
        group: the ranks.
        seals: the reports of all ranks.
        store: where this rank writes; see `rank_store`.
        directory: where rank 0 does.
        every_s: see `Checkpointer`.
        every_events: see `Checkpointer`.
    """

    def __init__(
        self,
        group: Group,
        seals: CheckpointSeals,
        store: CheckpointStore,
        directory: Path,
        every_s: float | None = 60.0,
        every_events: int | None = None,
    ) -> None:
        super().__init__(store, every_s, every_events)
        self._group = group
        self._seals = seals
        self._directory = directory

    # resuming --------------------------------------------------------------------------------------------------------

    def _find(self) -> Checkpoint | None:
        """Rank 0 chooses the newest whole checkpoint, and all ranks take that one; its
        generation is the group's.
        """
        found = None
        if self._group.rank == 0:
            found = self._store.load()
        number = 0
        if found is not None:
            number = found.number
        said = self._group.gather_values([number, self._store.generation])
        number, self._group.generation = said[0]
        if self._group.rank == 0 or not number:
            return found
        return SnapshotDirectory(self._directory).load_number(number)

    def _put(self, learner: OnlineLearner, found: Checkpoint) -> None:
        """Put what all share into the learner, and the users of our partitions,
        whichever rank had them.
        """
        user_partitions = np.full(found.users, -1, np.int32)
        for chunk in found.chunks("users"):
            user_partitions[chunk.rows] = chunk.arrays["partition.partition"]
        own = self._group.reads(user_partitions) | (user_partitions < 0)
        found.users = int(own.sum())
        learner.state.restore(
            _chunks_of(found, own, State(learner.settings)),
            found.arrays(),
            found.meta["learner"],
        )
        learner.eviction.sweep_users()
        # rows of users are others now: the next checkpoint is a base
        self._store.links = []

    # saving ----------------------------------------------------------------------------------------------------------

    def _kinds(self, learner: OnlineLearner) -> tuple[str, ...]:
        if self._group.rank == 0:
            return learner.state.kinds()
        return ("users",)

    def save(
        self,
        learner: OnlineLearner,
        sharing: Sharing,
        accounting: Accounting,
        offsets: OffsetSnapshot,
        done: Callable[[bool], None],
    ) -> None:
        """Save this rank's part of the checkpoint that all ranks have agreed on; see
        `Checkpointer.save`.

        Rank 0 seals it when all others have reported theirs; `done` is called when it
        has, on every rank.
        """
        agreed = self._seals.agreed
        if self._group.rank:
            self._seals.when_sealed(agreed, done)
        super().save(
            learner,
            sharing,
            accounting,
            offsets,
            lambda safe: self._report(agreed, safe, done),
        )

    def _report(self, agreed: int, safe: bool, done: Callable[[bool], None]) -> None:
        link = Link(-1, 0)
        if safe:
            link = self._store.links[-1].link
        self._seals.report(Report(agreed, *link))
        if self._group.rank == 0:
            done(safe)

    def beat(self) -> None:
        """See `Checkpointer.beat`; a newer start of rank 0 supersedes all ranks of this
        one.
        """
        super().beat()
        check_generation(self._directory, self._group.generation)

    def _with_seal(
        self,
        chunks: Iterator[RowChunk],
        meta: dict[str, Any],
    ) -> Iterator[RowChunk]:
        """On rank 0: after the last row, wait until every rank's file is safe, and name
        them in the manifest.
        """
        if self._group.rank:
            return chunks
        agreed = self._seals.agreed

        def sealed() -> Iterator[RowChunk]:
            reports = self._seals.wait_for_reports(agreed)
            if reports is None:
                raise CaptureAbandoned(
                    "the group ended, or a newer state took its place"
                )
            parts = []
            for rank, report in enumerate(reports[1:], start=1):
                if report.number < 0:
                    raise CheckpointError(
                        f"rank {rank} could not save its users: its log says why"
                    )
                parts.append([part_name(rank), report.number, report.crc32])
            meta[PARTS] = parts
            yield from ()

        return chain(chunks, sealed())


def _chunks_of(
    found: Checkpoint,
    own: NDArray[np.bool_],
    scratch: State,
) -> Iterator[RowChunk]:
    """All rows of a checkpoint but the users of others; ours are numbered anew."""
    rows = np.cumsum(own) - 1
    for chunk in found.chunks():
        if chunk.kind != "users":
            yield chunk
            continue
        kept = np.flatnonzero(own[chunk.rows])
        if len(kept):
            scratch.put("users", np.arange(len(chunk.rows)), chunk.arrays)
            arrays = scratch.take("users", kept)
            yield RowChunk("users", rows[chunk.rows[kept]], arrays)
