"""Where to start reading partitions of Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kafka import TopicPartition
from kafka.errors import UnknownTopicOrPartitionError

from streamer.errors import SourceError
from streamer.sources.base import Partition, Position, Positions
from streamer.sources.kafka.commits import Commit
from streamer.sources.kafka.group import Group
from streamer.sources.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT_MS = 2_000


class Start(NamedTuple):
    """Where the reading of a partition begins."""

    position: Position
    commit: Commit
    """What our commits say of it, with the offset up to which it is known to be
    trained.
    """
    must_commit: bool
    """Whether that must be committed before reading begins: or nobody would know where
    we began.
    """
    lost: int
    """How many offsets were removed before we could read them."""
    end: int
    """Where the partition ends now."""


class Starts:
    """Finds starting positions, with questions to Kafka; raises the client's errors if
    it does not respond.
    """

    def __init__(self, settings: KafkaSettings, consumer: Any, group: Group) -> None:
        self._settings = settings
        self._consumer = consumer
        self._group = group
        self.trainer: str = consumer.config["group_instance_id"] or ""

    def of(
        self, trained: Mapping[Partition, int | None], joining: bool
    ) -> dict[Partition, Start]:
        """Return where each partition starts; `trained` is how far we have trained it,
        None if we never had it.

        While we are `joining` the group, nothing may be left out that was trained by
        nobody who runs.

        1. What we have trained of a topic that was recreated since is of another log,
           and does not count.
        2. Where we have trained: there; but after what others have trained since.
        3. Otherwise where the group has committed; if we did that and have no
           checkpoint of it, where we began.
        4. Otherwise a partition that is new in its topic starts at its beginning, any
           other by time or policy.
        5. What is gone by retention is skipped, and what lies beyond the end is not
           waited for.
        """
        tps = [TopicPartition(*partition) for partition in trained]
        first = _looked_up(self._consumer.beginning_offsets, tps)
        ends = _looked_up(self._consumer.end_offsets, tps)
        numbers = {
            p.topic: self._consumer.partitions_for_topic(p.topic) for p in trained
        }
        commits = self.commits(
            Partition(topic, number)
            for topic, found in numbers.items()
            for number in found
        )
        if joining:
            self._refuse_to_skip(trained, commits, _by_partition(first))
        starts: dict[Partition, Start] = {}
        for partition, ours in trained.items():
            tp = TopicPartition(*partition)
            known = [c for p, c in commits.items() if p.topic == partition.topic]
            began_with = min(
                [c.partitions for c in known if c.trainer],
                default=len(numbers[partition.topic]),
            )
            starts[partition] = self._start(
                partition, ours, commits.get(partition), first[tp], ends[tp], began_with
            )
        return starts

    def commits(self, partitions: Iterable[Partition]) -> dict[Partition, Commit]:
        """Return what the group has committed; not of a topic that was deleted since."""
        tps = [TopicPartition(*partition) for partition in partitions]
        found = self._consumer._coordinator.fetch_committed_offsets(
            tps, timeout_ms=LOOKUP_TIMEOUT_MS
        )
        commits = {
            Partition(*tp): Commit.of(committed) for tp, committed in found.items()
        }
        return {
            p: c
            for p, c in commits.items()
            if c.topic_id in ("", self.topic_id(p.topic))
        }

    def topic_id(self, topic: str) -> str:
        """Return the id that a topic got when it was created; "" if the broker has none
        (before Kafka 2.8).
        """
        return str(self._consumer._cluster.topic_id(topic) or "")

    def _start(
        self,
        partition: Partition,
        ours: int | None,
        commit: Commit | None,
        first: int,
        end: int,
        began_with: int,
    ) -> Start:
        topic_id = self.topic_id(partition.topic)
        since = None
        recreated = topic_id and getattr(ours, "topic_id", "") not in ("", topic_id)
        if recreated:  # 1.
            log.warning(
                "%s was deleted and created again since it was trained: reading all of it",
                partition,
            )
            ours = None
        own = commit is not None and commit.trainer == self.trainer != ""
        if commit is not None:  # 2. and 3.
            since = commit.since if own else commit.offset
            position = since if ours is None else max(ours, since)
            if ours is not None and position > ours:
                log.info(
                    "%s was trained by others from offset %s to %s",
                    partition,
                    f"{ours:,}",
                    f"{position:,}",
                )
        elif ours is not None:
            position = ours
        elif recreated or partition.number >= began_with:  # 4.
            position = first
            log.info("%s is new: reading it from its beginning", partition)
        else:
            position = self._by_time_or_policy(partition, first, end)
        start = self._in_range(partition, position, first, end)  # 5.
        if own and commit is not None and start < commit.offset:
            was = f"{commit.offset:,}"
            log.warning(
                "%s: the committed offset goes back from %s to %s, where our state ends",
                partition,
                was,
                f"{start:,}",
            )
        safe = start if commit is None else min(start, commit.offset)
        epoch = (
            ours.leader_epoch if isinstance(ours, Position) and ours == start else -1
        )
        ours_now = Commit(
            safe,
            self.trainer,
            topic_id,
            min(safe if since is None else since, safe),
            began_with,
        )
        must_commit = (
            self.trainer != "" and ours is None
            if commit is None
            else not own or safe < commit.offset
        )
        lost = max(0, first - position) if commit is not None or ours is not None else 0
        return Start(
            Position(start, topic_id, epoch),
            ours_now,
            bool(must_commit and self.trainer),
            lost,
            end,
        )

    def _refuse_to_skip(
        self,
        trained: Mapping[Partition, int | None],
        commits: Mapping[Partition, Commit],
        first: Positions,
    ) -> None:
        """Do not begin with an empty model where a trainer that is gone has stopped,
        unless others of the group run.

        Raises:
            SourceError: that is what would happen.
        """
        trainers = {commit.trainer for commit in commits.values()} - {""}
        stateless = self.trainer not in trainers and all(
            ours is None for ours in trained.values()
        )
        skipped = {
            p: c
            for p, c in commits.items()
            if p in trained and c.trainer and c.offset > first[p]
        }
        if not (self.trainer and stateless and skipped):
            return
        offsets = ", ".join(
            f"{p} at offset {c.offset:,}" for p, c in sorted(skipped.items())[:3]
        )
        offsets += ", ..." if len(skipped) > 3 else ""
        if self._group.has_member(trainers):
            log.info(
                "joining the trainers of group %r: they have trained %s",
                self._settings.group_id,
                offsets,
            )
            return
        raise SourceError(
            f"the group {self._settings.group_id!r} has committed {offsets}, trained by one that does not run now. "
            "The checkpoint directory holds nothing of that, so what is before would be left out. Give the "
            "--checkpoint-dir of that trainer to continue it, or another --group-id to train from --start on"
        )

    def _by_time_or_policy(self, partition: Partition, first: int, end: int) -> int:
        """Return the first record at or after the start time, or the end if there is
        none; or what the policy says.
        """
        if partition.topic in self._settings.from_beginning:
            return first
        if self._settings.start_timestamp_ms is not None:
            tp = TopicPartition(*partition)
            wanted = {tp: self._settings.start_timestamp_ms}
            found = self._consumer.offsets_for_times(
                wanted, timeout_ms=LOOKUP_TIMEOUT_MS
            )[tp]
            return end if found is None else int(found.offset)
        if self._settings.auto_offset_reset == "error":
            raise SourceError(
                f"{partition} has no position yet, and --start is 'error': choose earliest or latest"
            )
        return first if self._settings.auto_offset_reset == "earliest" else end

    def _in_range(
        self, partition: Partition, position: int, first: int, end: int
    ) -> int:
        """Return the position, or the nearest one that there is: never the beginning of
        a log that became shorter.
        """
        if first <= position <= end:
            return position
        if position < first:
            why = f"offsets {position:,} to {first - 1:,} were removed by retention before they were read"
        else:
            why = f"it ends at offset {end:,}, and we have trained up to {position:,}: its last records were lost"
        if self._settings.auto_offset_reset == "error":
            raise SourceError(
                f"{partition}: {why}. To go on there, start with --start earliest"
            )
        log.warning(
            "%s: %s; going on at offset %s",
            partition,
            why,
            f"{min(max(position, first), end):,}",
        )
        return min(max(position, first), end)


def _looked_up(
    lookup: Callable[..., dict[TopicPartition, int]], tps: list[TopicPartition]
) -> dict[TopicPartition, int]:
    """Offsets of partitions; one of a topic that was just created may not be known by
    its broker yet.
    """
    deadline = time.monotonic() + LOOKUP_TIMEOUT_MS / 1000
    while True:
        try:
            return lookup(tps, timeout_ms=LOOKUP_TIMEOUT_MS)
        except UnknownTopicOrPartitionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _by_partition(offsets: Mapping[TopicPartition, int]) -> dict[Partition, int]:
    return {Partition(*tp): offset for tp, offset in offsets.items()}
