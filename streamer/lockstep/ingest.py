"""How the ranks of a group cut the same micro-batches: each reads its own partitions,
all agree on every step.

A step begins with one small exchange: what each rank has ready of each of its
partitions, and what it wants. From the same numbers every rank computes the same
decision, so nobody leads, and nobody waits for events that do not come.

A partition is *settled* if what can be known of it now is known: a whole batch of its
events is queued, or there are no more for now. A step waits until all partitions are
settled; so where a backlog is cut follows from the stream, not from who decodes faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Sized
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.accounting import Accounting
from streamer.ingest.batcher import MicroBatch
from streamer.ingest.ingest import Ingest
from streamer.ingest.offsets import OffsetSnapshot
from streamer.lockstep.group import Group
from streamer.lockstep.queues import Queues
from streamer.lockstep.seals import CheckpointSeals, Report
from streamer.lockstep.sources import Assigned
from streamer.metrics.status import Member
from streamer.settings import PipelineSettings
from streamer.snapshot.checkpointer import Checkpointer
from streamer.snapshot.publisher import Publisher
from streamer.snapshot.snapshot import positions_from_json, positions_to_json
from streamer.sources.base import Partition, Position

Counts = NDArray[np.int64]

HEARTBEAT_S = 0.05
"""How often ranks without events look for what the others have."""
PAUSE_S = 0.005
"""How long ranks whose events do not make a step yet wait before they look again."""
LIST_EVERY_S = 2.0
"""How often rank 0 looks for partitions that were added."""


class PartitionView(NamedTuple):
    """What the rank that reads a partition says of it."""

    partition: Partition
    ready: int
    """Events that can be trained, up to a batch."""
    is_settled: bool
    position: int | None
    """The next offset to train, if it is known."""
    lag: int


class RankState(msgspec.Struct, array_like=True):
    """What a rank has and wants before a step."""

    wants_stop: bool
    wants_checkpoint: bool
    is_unsaved: bool
    is_saving: bool
    publish: int
    """What is due to be published; of rank 0."""
    at_end: bool
    age_s: float
    """Since the oldest of its events came."""
    report: Report
    member: Member
    """What all ranks know of it, for whoever watches."""
    accounting: dict[str, Any]
    """Of its own events, since it started."""
    partitions: list[PartitionView]
    listed: list[Partition] | None
    """All partitions of the topics, if there are other ones than before; of rank 0."""


class Decision(NamedTuple):
    """What all ranks do next, computed by each from the same states."""

    events: dict[Partition, int]
    """How many events of each partition the next step has; empty for no step."""
    checkpoint: bool
    ends: bool
    """Whether there will be no further step."""
    publish: int
    """What rank 0 publishes after the step."""


class LockstepIngest(Ingest):
    """An `Ingest` whose batches are this rank's events of the steps of a group.

    Args:
        group: the ranks.
        settings: how steps are cut; `batch_size` and `max_events` are of all ranks.
        list_partitions: lists all partitions of the topics, or none while there are
            none.
    """

    def __init__(
        self,
        group: Group,
        settings: PipelineSettings,
        list_partitions: Callable[[], Sequence[Partition]],
    ) -> None:
        self.queues = Queues(settings.batch_size, settings.max_queued_events)
        super().__init__(self.queues)
        self.group = group
        self.seals = CheckpointSeals(group.size, self.changed)
        self.partitions: list[Partition] = []
        self.states: list[RankState] = []
        """What all ranks said before the last step."""
        self.accounting = Accounting()
        """What became of this rank's events."""
        self.wants_stop = False
        self.wants_checkpoint = False
        self.checkpoint_agreed = False
        self.publish_agreed = 0

        # parts of this rank that it says something of; set by whoever builds it
        self.users: Sized = ()
        self.checkpoints: Checkpointer | None = None
        self.publisher: Publisher | None = None

        self._settings = settings
        self._list_partitions = list_partitions
        self._list_at = 0.0
        self._is_unsaved = False  # trained since the last checkpoint was agreed on
        self._own_lag: dict[Partition, int] = {}

    # steps ----------------------------------------------------------------------------

    def _take(self, timeout_s: float) -> MicroBatch | None:
        """Agree on a step with the other ranks, and return our events of it; see
        `Ingest.batch`.

        1. wait a moment for events, if there are none;
        2. exchange what all have and want;
        3. take what was decided.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # 1.
            with self.changed:
                if self.error is not None:
                    raise self.error
                self.changed.wait_for(self._has_something, HEARTBEAT_S)
            # 2.
            decision = self._decide(self._exchange())
            # 3.
            with self.changed:
                batch = self._apply(decision)
                has_agreed = decision.ends or decision.checkpoint or decision.publish
                is_late = time.monotonic() >= deadline
                if batch is not None or has_agreed or is_late:
                    self._give_out(batch)
                    return batch
                self.changed.wait(PAUSE_S)

    def _has_something(self) -> bool:
        wants = self.wants_stop or self.wants_checkpoint
        return self.at_end or wants or self.queues.queued_events > 0

    def _decide(self, states: Sequence[RankState]) -> Decision:
        stop = any(state.wants_stop for state in states)
        all_ended = all(state.at_end for state in states)
        left = self._settings.batch_size
        if self._settings.max_events is not None:
            consumed = sum(state.accounting["consumed"] for state in states)
            left = min(left, self._settings.max_events - consumed)
            stop = stop or left <= 0

        ready = {}
        is_settled = True
        for state in states:
            for view in state.partitions:
                ready[view.partition] = view.ready
                is_settled = is_settled and view.is_settled
        queued = sum(ready.values())

        ends = stop or (all_ended and not queued)
        checkpoint = any(state.wants_checkpoint for state in states)
        if ends:
            checkpoint = checkpoint or any(state.is_unsaved for state in states)

        max_age_s = self._settings.max_age_s
        oldest_s = max(state.age_s for state in states)
        is_due = queued >= left or all_ended or (0 < max_age_s <= oldest_s)
        events = {}
        if is_settled and is_due and not ends and not checkpoint:
            partitions = sorted(ready)
            counts = np.array([ready[partition] for partition in partitions], np.int64)
            shares = fair_shares(counts, left).tolist()
            for partition, share in zip(partitions, shares, strict=True):
                if share:
                    events[partition] = share
        return Decision(events, checkpoint, ends, states[0].publish)

    def _apply(self, decision: Decision) -> MicroBatch | None:
        """Take our events of the step; an empty batch, if only others have some."""
        self.finished = decision.ends
        self.checkpoint_agreed = decision.checkpoint
        self.publish_agreed = decision.publish
        if decision.checkpoint:
            self.seals.agree()
            self._is_unsaved = False

        batch = None
        if not self.is_paused:
            batch = self.queues.take_events(decision.events)
        if batch is None and decision.events:
            batch = MicroBatch()
        if batch is not None:
            batch.step_events = sum(decision.events.values())
            self._is_unsaved = True
        return batch

    # the exchange ---------------------------------------------------------------------

    def _exchange(self) -> list[RankState]:
        """Say what we have and want, and return what all ranks have said."""
        listed = self._new_list()
        with self.changed:
            own = self._own_state(listed)
        states = self.group.wait(own, RankState)
        self.states = states
        self.seals.note([state.report for state in states])
        if states[0].listed is not None:
            self._adopt(states[0].listed)
        return states

    def _own_state(self, listed: list[Partition] | None) -> RankState:
        self.is_paused |= self.dead_letter_share.pause_reason is not None
        # before a partition is assigned, nobody knows whether its end is reached
        assigned = self.offsets.assigned().keys()
        own_partitions = self.own_partitions
        has_begun = bool(self.partitions) and assigned >= set(own_partitions)
        at_end = self.at_end and has_begun
        oldest_s = self.queues.oldest_s
        age_s = 0.0
        if oldest_s is not None:
            age_s = time.monotonic() - oldest_s
        saver = self.checkpoints
        is_unsaved = self._is_unsaved or self.seals.has_failed
        traffic = self.group.traffic
        return RankState(
            wants_stop=self.wants_stop,
            wants_checkpoint=self.wants_checkpoint,
            is_unsaved=is_unsaved and saver is not None,
            is_saving=saver is not None and saver.is_saving,
            publish=self.publisher.due() if self.publisher is not None else 0,
            at_end=at_end,
            age_s=age_s,
            report=self.seals.own,
            member=Member(
                partitions=own_partitions,
                users=len(self.users),
                queued_events=self.queues.queued_events,
                waiting_ms=int(1000 * traffic.waiting_s),
                exchange_ms=int(1000 * traffic.exchange_s),
                sent_bytes=traffic.sent_bytes,
            ),
            accounting=self.accounting.to_json(),
            partitions=[self._view(p, at_end) for p in own_partitions],
            listed=listed,
        )

    def _view(self, partition: Partition, at_end: bool) -> PartitionView:
        position = self.offsets.assigned().get(partition)
        if position is not None:
            position = int(position)  # without what tells its log from another
        lag = self._own_lag.get(partition, 0)
        if self.is_paused:
            return PartitionView(partition, 0, True, position, lag)
        queue = self.queues.of.get(partition)
        queued = 0
        if queue is not None:
            queued = queue.queued_events
        ready = min(queued, self.queues.batch_size)
        source = cast("Assigned | None", self.source)
        has_no_more = source is not None and source.has_no_more(partition)
        is_settled = ready == self.queues.batch_size or at_end or has_no_more
        return PartitionView(partition, ready, is_settled, position, lag)

    def lag(self) -> dict[Partition, int]:
        """Return for each partition of all ranks how many offsets are not trained yet,
        as far as is known.
        """
        self._own_lag = super().lag()
        found = {}
        for state in self.states:
            for view in state.partitions:
                found[view.partition] = view.lag
        return found | self._own_lag

    # checkpoints ----------------------------------------------------------------------

    @property
    def is_consistent(self) -> bool:
        """Whether all ranks have come to the same end."""
        return super().is_consistent and self.finished

    def take_snapshot(self) -> OffsetSnapshot:
        """The offsets of all ranks' partitions; a collective."""
        own = super().take_snapshot().positions
        return OffsetSnapshot(self._of_all_ranks(own), {})

    def trained(self) -> dict[Partition, Position]:
        """How far the partitions of all ranks are trained; a collective."""
        return self._of_all_ranks(super().trained())

    def _of_all_ranks(
        self, own: dict[Partition, Position]
    ) -> dict[Partition, Position]:
        said = {}
        for partition, position in own.items():
            if self._is_own(partition):
                said[partition] = position
        merged = dict(own)
        for of_rank in self.group.gather_values(positions_to_json(said)):
            merged |= positions_from_json(of_rank)
        return merged

    def settle(self) -> None:
        """Exchange until no rank writes a checkpoint any more; when all have ended."""
        while any(state.is_saving for state in self._exchange()):
            time.sleep(HEARTBEAT_S / 5)

    # partitions -----------------------------------------------------------------------

    def _is_own(self, partition: Partition) -> bool:
        return bool(self.group.reads(partition.number))

    @property
    def own_partitions(self) -> list[Partition]:
        """Those that this rank reads."""
        return [p for p in self.partitions if self._is_own(p)]

    def _new_list(self) -> list[Partition] | None:
        """On rank 0, all partitions if there are more than before; None otherwise."""
        if self.group.rank or time.monotonic() < self._list_at:
            return None
        self._list_at = time.monotonic() + LIST_EVERY_S
        found = sorted(self._list_partitions())
        if found == self.partitions:
            return None
        return found

    def _adopt(self, listed: list[Partition]) -> None:
        """All ranks take over the partitions that rank 0 has found, at the same step."""
        with self.changed:
            self.partitions = listed
            for partition in self.own_partitions:
                self.queues.expect(partition)
            self.changed.notify_all()


def fair_shares(ready: Counts, events: int) -> Counts:
    """How many events each partition gives: as equal as what is ready allows, `events`
    in all if there are as many.

    Examples:
        >>> fair_shares(np.array([10, 1, 0, 7]), 12)
        array([6, 1, 0, 5])
    """
    shares = np.zeros_like(ready)
    left = min(events, int(ready.sum()))
    while left > 0:
        hungry = np.flatnonzero(shares < ready)
        each, rest = divmod(left, len(hungry))
        more = np.full(len(hungry), each)
        more[:rest] += 1
        given = np.minimum(more, (ready - shares)[hungry])
        shares[hungry] += given
        left -= int(given.sum())
    return shares
