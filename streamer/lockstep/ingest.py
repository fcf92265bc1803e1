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
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.event.decoded import Decoded
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.ingest.ingest import Ingest
from streamer.ingest.offsets import OffsetLedger, OffsetSnapshot
from streamer.lockstep.group import Group
from streamer.lockstep.sources import Assigned
from streamer.sources.base import Partition, Position

Counts = NDArray[np.int64]

HEARTBEAT_S = 0.05
"""How often ranks without events look for what the others have."""
PAUSE_S = 0.005
"""How long ranks whose events do not make a step yet wait before they look again."""
NOT_OURS = (0, 1, -1, -1)
"""What a rank says of a partition that another reads."""
LIST_EVERY_S = 2.0
"""How often rank 0 looks for partitions that were added."""


class Queues(Batcher):
    """Events that wait to be trained, in one queue for each partition."""

    def __init__(self, batch_size: int, max_queued_events: int) -> None:
        super().__init__(batch_size)
        self._most = max(2 * batch_size, max_queued_events // 4)
        self.of: dict[Partition, Batcher] = {}

    @property
    def queued_events(self) -> int:
        return sum(queue.queued_events for queue in self.of.values())

    def wants(self, partition: Partition) -> bool:
        """Whether to read on in a partition."""
        return partition not in self.of or self.of[partition].has_room(self._most)

    def has_room(self, max_events: int) -> bool:
        return not self.of or any(
            queue.has_room(self._most) for queue in self.of.values()
        )

    def expect(self, partition: Partition) -> Batcher:
        """The queue of a partition: one from which nothing has come has room, however
        full the others are.
        """
        return self.of.setdefault(
            partition, Batcher(self._full.events, clock=self._clock)
        )

    def add(self, decoded: Decoded, now_s: float | None = None, lost: int = 0) -> None:
        self.expect(decoded.partition).add(decoded, now_s, lost)

    def drop(self, partitions: Collection[Partition]) -> int:
        return sum(self.of.pop(p).drop([p]) for p in partitions if p in self.of)

    @property
    def oldest_s(self) -> float | None:
        waiting = [
            at for queue in self.of.values() if (at := queue.oldest_s) is not None
        ]
        return min(waiting, default=None)

    def take_events(self, events: dict[Partition, int]) -> MicroBatch | None:
        """This many events of each partition, in the order of partitions, and records
        without events before and after.

        A record is never split: with a record of several events there may be more. None
        if nothing is taken.
        """
        batch = MicroBatch(user_features=[], item_features=[])
        for partition in sorted(self.of):
            self.of[partition].move_into(batch, events.get(partition, 0))
        return batch.closed() if batch.positions else None


class Report(NamedTuple):
    """What became of this rank's part of a checkpoint; of rank 0's part, which seals
    it, of the whole checkpoint.
    """

    agreed: int
    """The how-manieth checkpoint that the ranks have agreed on since they started."""
    number: int
    """Of the point that is safe; -1 if it failed."""
    crc32: int


class RankFigures(NamedTuple):
    """What all ranks know of each other, for whoever watches."""

    users: int
    queued_events: int
    waiting_ms: int
    """Until the slowest rank had come to a step."""
    exchange_ms: int
    """In collectives inside of steps."""
    sent_bytes: int


class Decision(NamedTuple):
    """What all ranks do next, computed by each from the same numbers."""

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
        queues: filled by the reading thread.
        offsets: where to resume, of all partitions.
        batch_size: events of a step, of all ranks.
        max_age_s: a step that is not full begins when its oldest event has waited this
            long; None: never.
        max_events: the group stops after this many consumed events; None for no limit.
        partitions: lists all partitions of the topics, or none while there are none.
        counts: how many events of this rank became what, in numbers that add up over
            ranks; the first is of consumed.
        users: how many users this rank knows.
    """

    def __init__(
        self,
        group: Group,
        queues: Queues,
        offsets: OffsetLedger,
        batch_size: int,
        max_age_s: float | None,
        max_events: int | None,
        partitions: Callable[[], Sequence[Partition]],
        counts: Callable[[], Counts],
        users: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(queues, offsets)
        self.queues = queues
        self.group = group
        self.partitions: list[Partition] = []
        self.wants_stop = self.wants_checkpoint = self.is_paused = False
        self.checkpoint_agreed = False
        self.agreed = 0
        self.is_saving: Callable[[], bool] = lambda: False
        self.due_to_publish: Callable[[], int] = lambda: 0
        self.publish_agreed = 0
        self.keeps_checkpoints = False
        self._is_unsaved = (
            False  # something was trained since the last checkpoint that was agreed on
        )
        self._report = Report(0, 0, 0)
        self._reports = [Report(0, 0, 0)] * group.size
        self._when_sealed: dict[int, Callable[[bool], None]] = {}
        self._is_over = False
        self.counts_of_ranks: Counts = np.zeros((group.size, len(counts())), np.int64)
        self._batch_size = batch_size
        self._max_age_s = max_age_s
        self._max_events = max_events
        self._list_partitions = partitions
        self._counts = counts
        self._users = users
        self.figures = [RankFigures(0, 0, 0, 0, 0)] * group.size
        self.positions: dict[Partition, int | None] = {}
        """The next offset to train of all ranks' partitions, as far as it is known."""
        self._lag_of_all: dict[Partition, int] = {}
        self._own_lag: dict[Partition, int] = {}
        self._list_at = 0.0

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
            decision = self._decide()
            # 3.
            with self.changed:
                batch = (
                    self.queues.take_events(decision.events)
                    if not self.is_paused
                    else None
                )
                self.finished = decision.ends
                self.checkpoint_agreed = decision.checkpoint
                self.publish_agreed = decision.publish
                self.agreed += decision.checkpoint
                if decision.events and batch is None:
                    batch = MicroBatch()
                if batch is not None:
                    batch.others = sum(decision.events.values())
                self._is_unsaved = batch is not None or (
                    self._is_unsaved and not decision.checkpoint
                )
                agreed = self.finished or self.checkpoint_agreed or self.publish_agreed
                if batch is not None or agreed or time.monotonic() >= deadline:
                    self.in_training = frozenset(
                        batch.positions if batch is not None else ()
                    )
                    self.changed.notify_all()
                    return batch
                self.changed.wait(PAUSE_S)

    def _has_something(self) -> bool:
        return (
            self.queues.queued_events > 0
            or self.at_end
            or self.wants_stop
            or self.wants_checkpoint
        )

    def _decide(self) -> Decision:
        flags, ready, settled = self._exchange()
        stop = bool(flags["stop"].any())
        all_ended = bool(flags["at_end"].all())
        left = self._batch_size
        if self._max_events is not None:
            left = min(left, self._max_events - int(self.counts_of_ranks[:, 0].sum()))
            stop = stop or left <= 0
        full = ready.sum() >= left or all_ended
        old = (
            self._max_age_s is not None
            and flags["age_ms"].max() >= 1000 * self._max_age_s
        )
        ends = stop or (all_ended and not ready.sum())
        checkpoint = bool(flags["checkpoint"].any()) or (
            ends and bool(flags["unsaved"].any())
        )
        events = {}
        if not ends and not checkpoint and settled.all() and (full or old):
            shares = fair_shares(ready, left)
            events = {
                p: int(n) for p, n in zip(self.partitions, shares, strict=True) if n
            }
        return Decision(events, checkpoint, ends, int(flags["publish"][0]))

    def _exchange(self) -> tuple[dict[str, Counts], Counts, NDArray[np.bool_]]:
        """What all ranks say: flags [W] by name, and of each partition how much is
        ready and whether it is settled.
        """
        listed = self._new_list()
        counts = self._counts()
        with self.changed:
            # before a partition is assigned, nobody knows whether its end is reached
            begun = bool(self.partitions) and self.offsets.assigned().keys() >= set(
                self.own_partitions
            )
            at_end = self.at_end and begun
            oldest = self.queues.oldest_s
            said = {
                "stop": self.wants_stop,
                "checkpoint": self.wants_checkpoint,
                "unsaved": self._is_unsaved and self.keeps_checkpoints,
                "saving": self.is_saving(),
                "publish": self.due_to_publish(),
                "at_end": at_end,
                "age_ms": 0
                if oldest is None
                else int(1000 * (time.monotonic() - oldest)),
                "listed": listed is not None,
            }
            own = [
                self._look(p, at_end) if self._is_own(p) else NOT_OURS
                for p in self.partitions
            ]
            report = self._report
            figures = self._own_figures()
        message = np.concatenate(
            [
                [*said.values(), *report, *figures],
                counts,
                np.array(own, np.int64).reshape(-1),
            ]
        )
        found = np.stack(self.group.wait(message.astype(np.int64)))  # [W, ...]
        ends = np.cumsum([len(said), len(report), len(figures), len(counts)])
        flags, reports, of_ranks, self.counts_of_ranks, looks = np.split(
            found, ends, axis=1
        )
        by_name = dict(zip(said, flags.T, strict=True))
        self.figures = [RankFigures(*numbers) for numbers in of_ranks.tolist()]
        self._note_reports([Report(*r) for r in reports.tolist()])
        if by_name["listed"][0]:
            self._adopt(listed or [])
            return (
                by_name,
                np.zeros(len(self.partitions), np.int64),
                np.zeros(len(self.partitions), np.bool_),
            )
        ready, settled, position, lag = looks.reshape(
            self.group.size, -1, len(NOT_OURS)
        ).transpose(2, 0, 1)  # [W, P]
        known = zip(
            self.partitions, position.max(0).tolist(), lag.max(0).tolist(), strict=True
        )
        for partition, at, behind in known:
            self.positions[partition] = at if at >= 0 else None
            self._lag_of_all[partition] = max(behind, 0)
        return by_name, ready.sum(0), np.asarray(settled.all(0))

    def _own_figures(self) -> RankFigures:
        traffic = self.group.traffic
        waiting_ms = int(1000 * traffic.waiting_s)
        exchange_ms = int(1000 * traffic.exchange_s)
        return RankFigures(
            self._users(),
            self.queues.queued_events,
            waiting_ms,
            exchange_ms,
            traffic.sent_bytes,
        )

    def lag(self) -> dict[Partition, int]:
        """Return for each partition of all ranks how many offsets are not trained yet,
        as far as is known.
        """
        self._own_lag = super().lag()
        return self._lag_of_all | self._own_lag

    # checkpoints ------------------------------------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        """This rank's part of a checkpoint is safe, or has failed; the others hear of
        it with the next exchange.
        """
        with self.changed:
            self._report = report
            self._is_unsaved |= report.number < 0

    def when_sealed(self, agreed: int, done: Callable[[bool], None]) -> None:
        """Call `done` on the training thread when the checkpoint is safe on all ranks,
        or has failed.
        """
        self._when_sealed[agreed] = done

    def _note_reports(self, reports: list[Report]) -> None:
        with self.changed:
            self._reports = reports
            self.changed.notify_all()
        sealed = reports[0]
        for agreed in [k for k in self._when_sealed if k <= sealed.agreed]:
            self._when_sealed.pop(agreed)(agreed == sealed.agreed and sealed.number > 0)

    def wait_for_reports(self, agreed: int) -> list[Report] | None:
        """The reports of all ranks but 0 on a checkpoint; None if there will not be
        all. On the writing thread.
        """
        with self.changed:
            while True:
                if self._is_over or self.agreed > agreed:
                    return None
                if all(report.agreed == agreed for report in self._reports[1:]):
                    return self._reports
                self.changed.wait(1.0)

    def take_snapshot(self) -> OffsetSnapshot:
        """The offsets of all ranks' partitions; a collective."""
        return OffsetSnapshot(self._of_all_ranks(super().take_snapshot().positions), {})

    def trained(self) -> dict[Partition, Position]:
        return self._of_all_ranks(super().trained())

    def _of_all_ranks(
        self, own: dict[Partition, Position]
    ) -> dict[Partition, Position]:
        said = [
            [*p, int(at), at.topic_id, at.leader_epoch]
            for p, at in own.items()
            if self._is_own(p)
        ]
        merged = {}
        for message in self.group.gather(
            np.frombuffer(msgspec.msgpack.encode(said), np.uint8)
        ):
            for topic, number, *position in msgspec.msgpack.decode(message.data):
                merged[Partition(topic, number)] = Position(*position)
        return own | merged

    def settle(self) -> None:
        """Exchange until no rank writes a checkpoint any more; when all have ended."""
        while self._exchange()[0]["saving"].any():
            time.sleep(HEARTBEAT_S / 5)

    def close(self) -> None:
        """Nobody is waited for any more."""
        with self.changed:
            self._is_over = True
            self.changed.notify_all()

    # partitions -------------------------------------------------------------------------------------------------------

    def _is_own(self, partition: Partition) -> bool:
        return self.group.owner(self.group.part_of(partition.number)) == self.group.rank

    def _look(self, partition: Partition, at_end: bool) -> tuple[int, int, int, int]:
        """Of a partition: how many events are ready, up to a batch; whether it is
        settled; next offset, and lag.
        """
        position = self.offsets.assigned().get(partition)
        lag = self._own_lag.get(partition, -1)
        where = (-1 if position is None else position, lag)
        if self.is_paused:
            return 0, 1, *where
        queue = self.queues.of.get(partition)
        queued = queue.queued_events if queue is not None else 0
        ready = min(queued, self._batch_size)
        source = cast("Assigned | None", self.source)
        has_no_more = source is not None and source.has_no_more(partition)
        return ready, int(ready == self._batch_size or at_end or has_no_more), *where

    def _new_list(self) -> list[Partition] | None:
        """On rank 0, all partitions if there are more than before; None otherwise."""
        if self.group.rank or time.monotonic() < self._list_at:
            return None
        self._list_at = time.monotonic() + LIST_EVERY_S
        found = sorted(self._list_partitions())
        return found if found != self.partitions else None

    def _adopt(self, listed: list[Partition]) -> None:
        """All ranks take over the partitions that rank 0 has found, at the same step."""
        sent = msgspec.msgpack.encode([tuple(p) for p in listed])
        lists = self.group.gather(np.frombuffer(sent, np.uint8))
        with self.changed:
            self.partitions = [
                Partition(*p) for p in msgspec.msgpack.decode(lists[0].tobytes())
            ]
            for partition in self.own_partitions:
                self.queues.expect(partition)
            self.changed.notify_all()

    @property
    def own_partitions(self) -> list[Partition]:
        """Those that this rank reads."""
        return [p for p in self.partitions if self._is_own(p)]


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
