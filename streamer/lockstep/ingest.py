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
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from streamer.ingest.batcher import MicroBatch
from streamer.ingest.ingest import Ingest
from streamer.ingest.offsets import OffsetSnapshot
from streamer.lockstep.group import Group
from streamer.lockstep.queues import Queues
from streamer.lockstep.seals import CheckpointSeals, Report
from streamer.lockstep.sources import Assigned
from streamer.settings import PipelineSettings
from streamer.snapshot.snapshot import positions_from_json, positions_to_json
from streamer.sources.base import Partition, Position

Counts = NDArray[np.int64]

HEARTBEAT_S = 0.05
"""How often ranks without events look for what the others have."""
PAUSE_S = 0.005
"""How long ranks whose events do not make a step yet wait before they look again."""
LIST_EVERY_S = 2.0
"""How often rank 0 looks for partitions that were added."""


class RankFigures(NamedTuple):
    """What all ranks know of each other, for whoever watches."""

    users: int
    queued_events: int
    waiting_ms: int
    """Until the slowest rank had come to a step."""
    exchange_ms: int
    """In collectives inside of steps."""
    sent_bytes: int


class PartitionView(NamedTuple):
    """What the rank that reads a partition says of it."""

    ready: int
    """Events that can be trained, up to a batch."""
    is_settled: int
    position: int
    """The next offset to train; -1 if it is not known."""
    lag: int


NOT_OURS = PartitionView(0, 1, -1, -1)
"""What a rank says of a partition that another reads."""


class Decision(NamedTuple):
    """What all ranks do next, computed by each from the same numbers."""

    events: dict[Partition, int]
    """How many events of each partition the next step has; empty for no step."""
    checkpoint: bool
    ends: bool
    """Whether there will be no further step."""
    publish: int
    """What rank 0 publishes after the step."""


class Exchanged(NamedTuple):
    """What all ranks have said."""

    flags: dict[str, Counts]
    """[W] by name."""
    ready: Counts
    """[P] events of each partition."""
    is_settled: bool
    """Whether all partitions are."""


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
        self.positions: dict[Partition, int | None] = {}
        """The next offset to train of all ranks' partitions, as far as it is known."""
        self.figures = [RankFigures(0, 0, 0, 0, 0)] * group.size
        self.wants_stop = False
        self.wants_checkpoint = False
        self.checkpoint_agreed = False
        self.publish_agreed = 0

        # what this rank says of itself; set by whoever knows
        self.is_saving: Callable[[], bool] = lambda: False
        self.keeps_checkpoints = False
        self.due_to_publish: Callable[[], int] = lambda: 0
        self.own_counts: Callable[[], Counts] = lambda: np.zeros(1, np.int64)
        """What became of this rank's events, in numbers that add up over ranks; the
        first is of consumed events.
        """
        self.own_users: Callable[[], int] = lambda: 0
        self.total_counts: Counts | None = None
        """The sum of `own_counts` over all ranks, when they agreed on the last step."""

        self._settings = settings
        self._list_partitions = list_partitions
        self._list_at = 0.0
        self._is_unsaved = False  # trained since the last checkpoint was agreed on
        self._lag_of_all: dict[Partition, int] = {}
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

    def _decide(self, exchanged: Exchanged) -> Decision:
        flags, ready, is_settled = exchanged
        stop = bool(flags["stop"].any())
        all_ended = bool(flags["at_end"].all())
        left = self._settings.batch_size
        if self._settings.max_events is not None and self.total_counts is not None:
            consumed = int(self.total_counts[0])
            left = min(left, self._settings.max_events - consumed)
            stop = stop or left <= 0

        ends = stop or (all_ended and not ready.sum())
        checkpoint = bool(flags["checkpoint"].any())
        if ends:
            checkpoint = checkpoint or bool(flags["unsaved"].any())

        max_age_s = self._settings.max_age_s
        is_full = ready.sum() >= left or all_ended
        is_old = max_age_s > 0 and flags["age_ms"].max() >= 1000 * max_age_s
        events = {}
        if is_settled and (is_full or is_old) and not ends and not checkpoint:
            shares = fair_shares(ready, left).tolist()
            for partition, share in zip(self.partitions, shares, strict=True):
                if share:
                    events[partition] = share
        return Decision(events, checkpoint, ends, int(flags["publish"][0]))

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

    def _exchange(self) -> Exchanged:
        """Say what we have and want, and return what all ranks have said."""
        listed = self._new_list()
        counts = self.own_counts()
        with self.changed:
            flags = self._own_flags()
            flags["listed"] = listed is not None
            at_end = bool(flags["at_end"])
            views: list[int] = []
            for partition in self.partitions:
                views += self._view(partition, at_end)
            report = self.seals.own
            figures = self._own_figures()
        parts: list[Sequence[int] | Counts] = [
            list(flags.values()),
            report,
            figures,
            counts,
        ]
        message = np.concatenate([*parts, views]).astype(np.int64)
        of_ranks = np.stack(self.group.wait(message))  # [W, ...]

        ends = np.cumsum([len(part) for part in parts])
        said, reports, figures_of, counts_of, views_of = np.split(
            of_ranks, ends, axis=1
        )
        flags_of = dict(zip(flags, said.T, strict=True))
        self.figures = [RankFigures(*numbers) for numbers in figures_of.tolist()]
        self.total_counts = counts_of.sum(0)
        self.seals.note([Report(*numbers) for numbers in reports.tolist()])
        if flags_of["listed"][0]:
            self._adopt(listed or [])
            nothing = np.zeros(len(self.partitions), np.int64)
            return Exchanged(flags_of, nothing, False)

        by_field = views_of.reshape(self.group.size, -1, len(NOT_OURS))  # [W, P, 4]
        ready, is_settled, position, lag = by_field.transpose(2, 0, 1)  # [W, P] each
        positions = position.max(0).tolist()
        lags = lag.max(0).tolist()
        for partition, at, behind in zip(self.partitions, positions, lags, strict=True):
            self.positions[partition] = at if at >= 0 else None
            self._lag_of_all[partition] = max(behind, 0)
        all_settled = bool(is_settled.all())
        return Exchanged(flags_of, ready.sum(0), all_settled)

    def _own_flags(self) -> dict[str, int]:
        # before a partition is assigned, nobody knows whether its end is reached
        assigned = self.offsets.assigned().keys()
        has_begun = bool(self.partitions) and assigned >= set(self.own_partitions)
        oldest_s = self.queues.oldest_s
        age_s = 0.0
        if oldest_s is not None:
            age_s = time.monotonic() - oldest_s
        is_unsaved = self._is_unsaved or self.seals.has_failed
        return {
            "stop": self.wants_stop,
            "checkpoint": self.wants_checkpoint,
            "unsaved": is_unsaved and self.keeps_checkpoints,
            "saving": self.is_saving(),
            "publish": self.due_to_publish(),
            "at_end": self.at_end and has_begun,
            "age_ms": int(1000 * age_s),
        }

    def _view(self, partition: Partition, at_end: bool) -> PartitionView:
        if not self._is_own(partition):
            return NOT_OURS
        position = self.offsets.assigned().get(partition)
        where = -1 if position is None else position
        lag = self._own_lag.get(partition, -1)
        if self.is_paused:
            return PartitionView(0, 1, where, lag)
        queue = self.queues.of.get(partition)
        queued = 0
        if queue is not None:
            queued = queue.queued_events
        ready = min(queued, self.queues.batch_size)
        source = cast("Assigned | None", self.source)
        has_no_more = source is not None and source.has_no_more(partition)
        is_settled = ready == self.queues.batch_size or at_end or has_no_more
        return PartitionView(ready, int(is_settled), where, lag)

    def _own_figures(self) -> RankFigures:
        traffic = self.group.traffic
        return RankFigures(
            users=self.own_users(),
            queued_events=self.queues.queued_events,
            waiting_ms=int(1000 * traffic.waiting_s),
            exchange_ms=int(1000 * traffic.exchange_s),
            sent_bytes=traffic.sent_bytes,
        )

    def lag(self) -> dict[Partition, int]:
        """Return for each partition of all ranks how many offsets are not trained yet,
        as far as is known.
        """
        self._own_lag = super().lag()
        return self._lag_of_all | self._own_lag

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
        while self._exchange().flags["saving"].any():
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
        lists = self.group.gather_values(listed, list[Partition])
        with self.changed:
            self.partitions = lists[0]
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
