"""What one rank of a group does otherwise than a trainer alone: ranks agree on every
batch, checkpoint and end, and show the figures of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from streamer.accounting import Accounting
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.offsets import OffsetSnapshot
from streamer.lockstep.checkpoint import RankCheckpointer
from streamer.lockstep.ingest import LockstepIngest
from streamer.lockstep.key_check import ONE_IN
from streamer.lockstep.learner import LockstepLearner
from streamer.lockstep.sources import Assigned
from streamer.metrics.status import StatusReport
from streamer.pipeline import Pipeline
from streamer.progress import Progress
from streamer.snapshot.publisher import Due
from streamer.sources.base import Partition


class RankSources(NamedTuple):
    """Where the ranks of a group read."""

    make_source: Callable[..., Assigned]
    """Makes a source; see `AssignedSource` for what is given."""
    partitions: Callable[[], Sequence[Partition]]
    """Lists all partitions of the topics."""


class LockstepProgress(Progress):
    """The progress of all ranks; see `Progress`."""

    checkpoints: RankCheckpointer | None
    _ingest: LockstepIngest

    @property
    def accounting(self) -> Accounting:
        """Of all ranks, when they last agreed on a step."""
        total = Accounting()
        total.merge(self._accounting)
        for state in self._ingest.states:
            total.merge(Accounting.from_json(state.accounting))
        return total

    def account(self, batch: MicroBatch) -> None:
        self._ingest.accounting.add(batch)

    def may_commit(self) -> bool:
        """Whether no newer start of the group has taken our place."""
        return self.checkpoints is None or self.checkpoints.is_current()

    def is_due(self) -> bool:
        """Whether all ranks save now; rank 0 says when it wants that."""
        agreed = self._ingest.checkpoint_agreed
        is_lead = self._ingest.group.rank == 0
        wants = is_lead and not agreed and super().is_due()
        self._ingest.wants_checkpoint = wants
        return agreed

    def _is_saved(self) -> bool:
        """All ranks save when they have agreed to."""
        return False

    def _skip(self, offsets: OffsetSnapshot) -> None:
        super()._skip(offsets)
        self._ingest.seals.report_failure()

    def save_last(self) -> None:
        """Wait for the checkpoint that all ranks have agreed on with the last step."""
        if self.checkpoints is not None and self._ingest.finished:
            self.checkpoints.finish()
            self._ingest.settle()

    def close(self) -> None:
        self._ingest.seals.close()
        super().close()


class LockstepReport(StatusReport):
    """The status of all ranks; see `StatusReport`."""

    _ingest: LockstepIngest
    _learner: LockstepLearner

    def _refresh_stream(self) -> None:
        super()._refresh_stream()
        status = self.status
        ingest = self._ingest
        status.members = [state.member for state in ingest.states]
        status.partitions = {}
        for state in ingest.states:
            for view in state.partitions:
                status.partitions[view.partition] = view.position
        status.users = sum(member.users for member in status.members)
        status.queued_events = sum(member.queued_events for member in status.members)
        status.spread_users = self._learner.key_check.spread * ONE_IN


class LockstepPipeline(Pipeline):
    """One rank of a group; see `Pipeline`."""

    ingest: LockstepIngest

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
