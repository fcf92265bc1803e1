"""Where to start reading partitions of Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from streamer.errors import SourceError
from streamer.sources.base import (
    Partition,
    Position,
    Positions,
    check_log,
    is_of_other_log,
)
from streamer.sources.kafka.consumer import Consumer
from streamer.sources.kafka.offsets import Commit, Start
from streamer.sources.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)


class _Known(NamedTuple):
    """What Kafka says of a partition."""

    first: int
    end: int
    commit: Commit | None
    """What the group has committed."""
    began_with: int
    """How many partitions the topic had when the group began to read it."""


class Starts:
    """Finds starting positions, with questions to Kafka.

    Args:
        settings: where to start without a position.
        consumer: who is asked.
        has_member: whether one of some trainers runs in our group; None without a
            group, where committed offsets say nothing that the listener does not.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        consumer: Consumer,
        has_member: Callable[[set[str]], bool] | None = None,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._has_member = has_member
        self._trainer = consumer.instance_id if has_member is not None else ""
        self.from_beginning: set[Partition] = set()
        """Partitions that start at their beginning if the listener has no position."""

    def of(
        self,
        trained: Mapping[Partition, int | None],
        joining: bool,
        on_start: Callable[[Positions], Positions],
    ) -> dict[Partition, Start]:
        """Return where each partition starts; `trained` is how far we have trained it,
        None if we never had it. `on_start` may want some to start earlier.

        While we are `joining` the group, nothing may be left out that was trained by
        nobody who runs.

        1. What we have trained of a topic that was recreated since is of another log.
           If that is so when we join, the run ends; later it does not count. Neither
           does what we or the group had before `streamer reset` moved the other.
        2. Where we have trained: there; but after what others have trained since.
        3. Otherwise where the group has committed; if we did that and have no
           checkpoint of it, where we began.
        4. Otherwise a partition that is new in its topic starts at its beginning, any
           other by time or policy.
        5. What is gone by retention is skipped, and what lies beyond the end is not
           waited for.
        """
        known: dict[Partition, _Known] = {}
        first = self._consumer.beginning_offsets(trained)
        ends = self._consumer.end_offsets(trained)
        trainers: set[str] = set()
        for topic in {partition.topic for partition in trained}:
            existing = self._consumer.partitions_of(topic)
            commits: dict[Partition, Commit] = {}
            if self._has_member is not None:
                commits = self._consumer.committed(existing)
            ours = [commit for commit in commits.values() if commit.trainer]
            trainers |= {commit.trainer for commit in ours}
            began_with = min((c.partitions for c in ours), default=len(existing))
            for p in trained:
                if p.topic == topic:
                    known[p] = _Known(first[p], ends[p], commits.get(p), began_with)
        has_state = any(ours is not None for ours in trained.values())
        if joining and self._trainer not in {"", *trainers} and not has_state:
            self._refuse_to_skip(known, trainers)
        for partition in trained if joining else ():
            topic_id = self._consumer.topic_id(partition.topic)
            check_log(partition, trained[partition], topic_id)
        starts = {p: self._start(p, ours, known[p]) for p, ours in trained.items()}
        allowed = on_start({p: start.position for p, start in starts.items()})
        for p, at in allowed.items():
            if at < starts[p].position:
                start = starts[p].position
                at = max(at, first[p])
                position = Position(at, start.topic_id, resets=start.resets)
                starts[p] = starts[p]._replace(position=position)
        return starts

    def _start(self, partition: Partition, ours: int | None, known: _Known) -> Start:
        topic_id = self._consumer.topic_id(partition.topic)
        commit = known.commit
        resets = getattr(ours, "resets", 0)
        recreated = is_of_other_log(ours, topic_id)  # 1.
        if recreated:
            log.warning(
                "%s was deleted and created again since it was trained: reading all of it",
                partition,
            )
            ours = None
        elif commit is not None and ours is not None and commit.resets != resets:
            if commit.resets > resets:
                ours = None
            else:
                commit = None
        if commit is not None:
            resets = commit.resets
        since: int | None = None
        own = commit is not None and commit.trainer == self._trainer != ""
        if commit is not None:  # 2. and 3.
            since = commit.since if own else commit.offset
            position = since if ours is None else max(ours, since)
            if ours is not None and position > ours:
                _log_others(partition, ours, position, commit, own)
        elif ours is not None:
            position = ours
        elif recreated or partition.number >= known.began_with:  # 4.
            position = known.first
            log.info("%s is new: reading it from its beginning", partition)
        else:
            position = self._by_time_or_policy(partition, known)
        start = self._in_range(partition, position, known)  # 5.
        if own and commit is not None and start < commit.offset:
            log.warning(
                "%s: the committed offset goes back from %s to %s, where our state ends",
                partition,
                f"{commit.offset:,}",
                f"{start:,}",
            )

        safe = start if commit is None else min(start, commit.offset)
        began = safe if since is None else min(since, safe)
        nobody_knows = ours is None
        if commit is not None:
            nobody_knows = not own or safe < commit.offset
        was_known = commit is not None or ours is not None
        epoch = (
            ours.leader_epoch if isinstance(ours, Position) and ours == start else -1
        )
        return Start(
            Position(start, topic_id, epoch, resets),
            Commit(
                safe,
                self._trainer,
                topic_id,
                began,
                known.began_with,
                resets=resets,
            ),
            must_commit=nobody_knows and self._trainer != "",
            lost=max(0, known.first - position) if was_known else 0,
            end=known.end,
        )

    def _refuse_to_skip(
        self, known: Mapping[Partition, _Known], trainers: set[str]
    ) -> None:
        """Do not begin with an empty model where a trainer that is gone has stopped,
        unless others of the group run.

        Raises:
            SourceError: that is what would happen.
        """
        skipped: list[str] = []
        for partition, (first, _, commit, _) in sorted(known.items()):
            if commit is not None and commit.trainer and commit.offset > first:
                skipped.append(f"{partition} at offset {commit.offset:,}")
        if not skipped:
            return
        offsets = ", ".join(skipped[:3] + ["..."] * (len(skipped) > 3))
        group = self._settings.group_id
        assert self._has_member is not None
        if self._has_member(trainers):
            log.info(
                "Joining the trainers of group %r: they have trained %s", group, offsets
            )
            return
        raise SourceError(
            f"the group {group!r} has committed {offsets}, trained by one that does not run now. "
            "The checkpoint directory holds nothing of that, so what is before would be left out. Give the "
            "--checkpoint-dir of that trainer to continue it, or another --group-id to train from --start on"
        )

    def _by_time_or_policy(self, partition: Partition, known: _Known) -> int:
        """Return the first record at or after the start time, or the end if there is
        none; or what the policy says.
        """
        settings = self._settings
        if (
            partition in self.from_beginning
            or partition.topic in settings.from_beginning
        ):
            return known.first
        if settings.start_timestamp_ms is not None:
            found = self._consumer.offset_at(partition, settings.start_timestamp_ms)
            return known.end if found is None else found
        if settings.auto_offset_reset == "error":
            raise SourceError(
                f"{partition} has no position yet, and --start is 'error': choose earliest or latest"
            )
        return known.first if settings.auto_offset_reset == "earliest" else known.end

    def _in_range(self, partition: Partition, position: int, known: _Known) -> int:
        """Return the position, or the nearest one that there is: never the beginning of
        a log that became shorter.
        """
        first, end, *_ = known
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
        nearest = min(max(position, first), end)
        log.warning("%s: %s; resuming at offset %s", partition, why, f"{nearest:,}")
        return nearest


def _log_others(
    partition: Partition, ours: int, position: int, commit: Commit, own: bool
) -> None:
    """Say from where on others have trained, and what of it we have trained, too."""
    began = ours
    if commit.trainer and not own:
        began = min(ours, commit.since)
    twice = f", of which we have trained {ours - began:,} too" if began < ours else ""
    log.info(
        "%s was trained by others from offset %s to %s%s",
        partition,
        f"{began:,}",
        f"{position:,}",
        twice,
    )
