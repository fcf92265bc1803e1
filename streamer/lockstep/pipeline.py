"""What one rank of a group does otherwise than a trainer alone: ranks agree on every
batch, checkpoint and end, and show the figures of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.accounting import Accounting
from streamer.dead_letters.base import DeadLetters, Reason
from streamer.evaluation import Prequential
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.offsets import OffsetSnapshot
from streamer.ingest.reader import Reader
from streamer.lockstep.checkpoint import RankCheckpointer
from streamer.lockstep.ingest import LockstepIngest
from streamer.lockstep.key_check import ONE_IN
from streamer.lockstep.learner import LockstepLearner
from streamer.lockstep.sources import Assigned
from streamer.metrics.status import Member, StatusReport
from streamer.pipeline import Pipeline
from streamer.progress import Progress
from streamer.sharing.sharing import Sharing
from streamer.snapshot.publisher import Due, Publisher
from streamer.sources.base import Partition

Counts = NDArray[np.int64]
COUNTED = ("trained", "filtered", "lost", "not_admitted", "catalogue")


class RankSources(NamedTuple):
    """Where the ranks of a group read."""

    make_source: Callable[
        [
            Callable[[], Sequence[Partition]],
            Callable[[Partition], bool],
            Callable[[], bool],
        ],
        Assigned,
    ]
    """A source of the partitions that the first argument returns, as long as the second
    wants more of each; it commits while the third is true."""
    partitions: Callable[[], Sequence[Partition]]
    """Lists all partitions of the topics."""


class LockstepProgress(Progress):
    """The progress of all ranks; see `Progress`."""

    checkpoints: RankCheckpointer | None

    def __init__(
        self,
        ingest: LockstepIngest,
        learner: LockstepLearner,
        sharing: Sharing,
        dead_letters: DeadLetters,
        checkpoints: RankCheckpointer | None = None,
        save_at_start: bool = False,
    ) -> None:
        super().__init__(
            ingest,
            learner,
            sharing,
            dead_letters,
            checkpoints,
            save_at_start,
        )
        self._lockstep = ingest
        self._own = Accounting()
        ingest.own_counts = lambda: counts_of(self._own)
        ingest.own_users = lambda: len(learner.state.users)
        if checkpoints is not None:
            checkpoints.seals = ingest.seals
            ingest.keeps_checkpoints = True
            ingest.is_saving = lambda: checkpoints.is_saving

    @property
    def accounting(self) -> Accounting:
        """Of all ranks, when they last agreed on a step."""
        counts = self._lockstep.total_counts
        if counts is None:
            return self._accounting
        return plus(self._accounting, counts)

    def account(self, batch: MicroBatch) -> None:
        self._own.add(batch)

    def may_commit(self) -> bool:
        """Whether no newer start of the group has taken our place."""
        return self.checkpoints is None or self.checkpoints.is_current()

    def is_due(self) -> bool:
        """Whether all ranks save now; rank 0 says when it wants that."""
        agreed = self._lockstep.checkpoint_agreed
        is_lead = self._lockstep.group.rank == 0
        wants = is_lead and not agreed and super().is_due()
        self._lockstep.wants_checkpoint = wants
        return agreed

    def _is_saved(self) -> bool:
        """All ranks save when they have agreed to."""
        return False

    def _skip(self, offsets: OffsetSnapshot) -> None:
        super()._skip(offsets)
        self._lockstep.seals.report_failure()

    def save_last(self) -> None:
        """Wait for the checkpoint that all ranks have agreed on with the last step."""
        if self.checkpoints is not None and self._lockstep.finished:
            self.checkpoints.finish()
            self._lockstep.settle()

    def close(self) -> None:
        self._lockstep.seals.close()
        super().close()


class LockstepReport(StatusReport):
    """The status of all ranks; see `StatusReport`."""

    _ingest: LockstepIngest
    _learner: LockstepLearner

    def _refresh_stream(self) -> None:
        super()._refresh_stream()
        status = self.status
        ingest = self._ingest
        group = ingest.group
        own: list[list[Partition]] = [[] for _ in range(group.size)]
        for partition in sorted(ingest.positions):
            own[group.owner(group.part_of(partition.number))].append(partition)

        status.members = []
        for partitions, figures in zip(own, ingest.figures, strict=True):
            status.members.append(Member(partitions, *figures))
        status.partitions = dict(ingest.positions)
        status.users = sum(member.users for member in status.members)
        status.queued_events = sum(member.queued_events for member in status.members)
        status.spread_users = self._learner.key_check.spread * ONE_IN


class LockstepPipeline(Pipeline):
    """One rank of a group; see `Pipeline`."""

    ingest: LockstepIngest

    def __init__(
        self,
        reader: Reader,
        learner: LockstepLearner,
        sharing: Sharing,
        progress: LockstepProgress,
        prequential: Prequential | None = None,
        publisher: Publisher | None = None,
    ) -> None:
        super().__init__(reader, learner, sharing, progress, prequential, publisher)
        if publisher is not None:
            self.ingest.due_to_publish = publisher.due

    def _make_report(self) -> StatusReport:
        return LockstepReport(
            self.learner,
            self.ingest,
            self._sharing,
            self.progress,
            self._prequential,
            self._publisher,
        )

    def _has_ended(self) -> bool:
        """All ranks end at the same step."""
        self.ingest.wants_stop = self._stop.is_set()
        return self.ingest.finished

    def _receive(self, batch: MicroBatch | None) -> None:
        if batch is not None and batch.step_events:
            super()._receive(batch)

    def _publish_due(self) -> Due:
        return Due(self.ingest.publish_agreed)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.ingest.group.close()


def counts_of(accounting: Accounting) -> Counts:
    """Numbers that add up over ranks; the first is that of consumed events."""
    fields = [getattr(accounting, name) for name in COUNTED]
    by_reason = [accounting.dead_letters[str(reason)] for reason in Reason]
    return np.array([accounting.consumed, *fields, *by_reason], np.int64)


def plus(accounting: Accounting, counts: Counts) -> Accounting:
    """An accounting and the numbers of `counts_of`, added up."""
    total = counts_of(accounting) + counts
    fields, by_reason = np.split(total[1:], [len(COUNTED)])
    reasons = zip(map(str, Reason), by_reason.tolist(), strict=True)
    dead_letters = Counter({reason: count for reason, count in reasons if count})
    named = dict(zip(COUNTED, fields.tolist(), strict=True))
    return Accounting(**named, dead_letters=dead_letters)
