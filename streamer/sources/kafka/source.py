"""Kafka topics as a source.

The listener knows how far this trainer has trained, the group's committed offsets how
far anybody has; see `starts`.

A record without a value (a tombstone) is delivered with the value `b""`. No event is
that short, so it becomes a dead letter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from kafka import (
    AsyncConsumerRebalanceListener,
    KafkaConsumer,
    OffsetAndMetadata,
    TopicPartition,
    errors,
)
from kafka.structs import MemberState

from streamer.errors import SourceError, SourceUnavailable, UnknownTopic
from streamer.sources.base import (
    Chunk,
    Partition,
    Position,
    Positions,
    RebalanceListener,
)
from streamer.sources.kafka.client import (
    connect,
    explained,
    is_transient,
    to_streamer_error,
)
from streamer.sources.kafka.group import Group
from streamer.sources.kafka.progress import Progress
from streamer.sources.kafka.records import columns, use_rows
from streamer.sources.kafka.settings import (
    KafkaSettings,
    client_settings,
    settings_from_environment,
    settings_from_file,
)
from streamer.sources.kafka.starts import LOOKUP_TIMEOUT_MS, Start, Starts
from streamer.sources.kafka.thread import ClientThread
from streamer.sources.kafka.watch import Watch
from streamer.sources.positions import warn_of_gap

__all__ = [
    "KafkaSettings",
    "KafkaSource",
    "client_settings",
    "settings_from_environment",
    "settings_from_file",
]

log = logging.getLogger(__name__)

Records = Mapping[TopicPartition, Sequence[Any]]

SLICE_S = 0.2
"""How long the client waits at a time; after it, new partitions are settled."""
JOINING_SLICE_S = 0.05
LOOK_S = 1.0
"""How often topics are looked at: whether one was deleted or recreated, or has
partitions that nobody reads.
"""
UNREAD_S = 5.0
"""How long a new partition may have no reader before we ask the group to rebalance."""
GONE_S = 5.0
"""How long a topic must be missing to be taken for deleted."""


class KafkaSource:
    """Reads topics as a member of a consumer group. See `Source` for what its methods
    promise.

    Partitions come in two steps, because the client can look nothing up while it
    assigns them:

    1. assigned: the listener is asked for positions, and the partition is paused;
    2. settled, right after: `Starts` finds where to begin, and where the partition
       ends; if nobody could know otherwise that we began there, it is committed;
       reading begins.

    Two threads help: one runs the client (see `kafka_thread`), one looks after the ends
    (see `kafka_watch`).
    """

    at_end = False

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._where = f"Kafka at {', '.join(settings.bootstrap_servers)}"
        self._progress = Progress()
        self._consumer: Any = None
        self._listener: RebalanceListener | None = None
        self._listener_error: BaseException | None = None
        self._joined = self._opened = False
        self._closing = False
        self._unsettled: dict[
            TopicPartition, int | None
        ] = {}  # with the listener's position
        self._reading: dict[TopicPartition, Partition] = {}  # settled
        self._started: dict[Partition, Start] = {}  # of these
        self._lost: dict[
            Partition, int
        ] = {}  # removed before they were read, not yet reported by a chunk
        self._look_at = self._ask_commits_at = 0.0
        self._has_reader: set[Partition] = (
            set()
        )  # of the others' partitions, as far as we have looked
        self._unread_since: dict[Partition, float] = {}
        self._gone_since: dict[str, float] = {}
        self._ends_of_others: dict[Partition, int] = {}
        self._done_by_others: set[Partition] = set()

    # ----------------------------------------------------------------------------------------- open

    def open(self, listener: RebalanceListener) -> None:
        """Connect, join the group, and begin.

        1. connect; 2. see that the topics are there; 3. subscribe, and wait for the
        group and for our partitions to be settled; 4. look after them from now on.

        After an error it may be called again.
        """
        self._listener = listener
        self._joined = self._closing = self._opened = False
        self._consumer = connect(KafkaConsumer, self._settings.consumer_config())
        # kafka-python does not pass this on, and would have the broker create a topic
        # again that was deleted
        create = self._consumer.config["allow_auto_create_topics"]
        self._consumer._cluster.config["allow_auto_create_topics"] = create
        self._thread = ClientThread("streamer-kafka")
        self._group = Group(
            self._settings, self._consumer.config["session_timeout_ms"] / 1000
        )
        self._starts = Starts(self._settings, self._consumer, self._group)
        self._watch = Watch(self._consumer, self._progress, self._where)
        try:
            if self._settings.fast_records and not use_rows(self._consumer):
                log.debug(
                    "%s: records are read the client's own, slower way", self._where
                )
            with explained(self._where):
                self._subscribe()
                self._join()
        except BaseException:
            self.close()
            raise
        self._opened = True
        self._watch.start()

    def _check_topics(self, timeout_s: float = 0.0) -> None:
        """Look at the list of all topics: asking for one by name would create it on
        many brokers.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            existing = self._consumer.topics()
            missing = [
                topic for topic in self._settings.topics if topic not in existing
            ]
            if not missing:
                return
            if time.monotonic() >= deadline:
                raise UnknownTopic(self._no_such_topic(missing, existing))
            time.sleep(0.2)

    def _no_such_topic(self, missing: Sequence[str], existing: Collection[str]) -> str:
        close = sorted(
            {match for topic in missing for match in get_close_matches(topic, existing)}
        )
        shown = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"it has {_some(existing)}."
        )
        names = ", ".join(repr(topic) for topic in missing)
        return (
            f"{self._where} has no topic {names} that this client may read; {shown} "
            "Create the topic, or set the client's allow_auto_create_topics to true"
        )

    def _subscribe(self) -> None:
        """1. see that the topics are there, unless they may be created; 2. subscribe;
        3. look at them again.

        The client asks for topics that it subscribes to by name, a little later, and
        brokers may create them then. Looking again shows whether they did; and without
        it the client would rebalance a second time, when it learns of the topics.
        """
        create = bool(self._settings.client.get("allow_auto_create_topics"))
        if not create:
            self._check_topics()
        rebalances = _Rebalances(self._ask, self._assigned, self._revoked)
        self._consumer.subscribe(
            topics=list(self._settings.topics), listener=rebalances
        )
        if create:
            time.sleep(3 * self._consumer.config["retry_backoff_ms"] / 1000 + 0.1)
        self._check_topics(self._settings.open_timeout_s)

    def _join(self) -> None:
        """Poll until the group has let us in and our partitions are settled."""
        began = time.monotonic()
        told = False
        while not (self._joined and self._is_quiet()):
            self._step(0, JOINING_SLICE_S)
            if self._is_quiet() and not self._joined:
                self._assigned(
                    []
                )  # nothing is left for us, and the client does not always say so
            waited_s = time.monotonic() - began
            if waited_s > self._settings.join_timeout_s:
                raise SourceUnavailable(self._not_let_in())
            if (
                waited_s > 10 and not told
            ):  # an empty group is made to wait for 3 s by its broker
                log.info("waiting: %s", self._not_let_in())
                told = True

    def _not_let_in(self) -> str:
        session_s = self._consumer.config["session_timeout_ms"] / 1000
        return (
            f"{self._where} has not let us into the group {self._settings.group_id!r} yet; it waits until its members "
            f"have handed their partitions over, and for one that died until its session ends ({session_s:.0f} s)"
        )

    def _is_quiet(self) -> bool:
        """True if no rebalance is going on, and nothing is left of the last one."""
        return (
            not self._unsettled
            and self._consumer.group_metadata().state is MemberState.STABLE
        )

    # ----------------------------------------------------------------------------------------- poll

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`. With `max_records=0` it waits only while a rebalance is
        going on.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            # The client forgets a join that ended between two polls, and joins again:
            # so it is given time for one.
            idle_s = 0.0 if self._consumer is None or self._is_quiet() else SLICE_S
            records = self._step(
                max_records, min(left_s, SLICE_S) if max_records else idle_s
            )
            if records:
                return self._chunks(records)
            if max_records == 0 and (left_s == 0 or self._is_quiet()):
                return []
            if left_s == 0:
                self._note_passed()
                return []
            if max_records == 0:
                time.sleep(min(left_s, 0.01))

    def positions(self) -> Positions:
        """See `Source.positions`. While a rebalance is going on, partitions that may
        come back are missing.
        """
        return {
            p: self._identified(p, at) for p, at in self._progress.positions().items()
        }

    def _identified(self, partition: Partition, offset: int) -> Position:
        """The offset, with the topic's id and the leader epoch of what the client has
        fetched last.
        """
        start = self._started[partition].position
        state = self._consumer._subscription.assignment.get(partition)
        fetched = getattr(getattr(state, "position", None), "leader_epoch", -1)
        return Position(
            offset,
            start.topic_id,
            max(start.leader_epoch, -1 if fetched is None else fetched),
        )

    @property
    def all_assigned(self) -> bool:
        """See `Source.all_assigned`."""
        existing = {
            topic: self._consumer.partitions_for_topic(topic)
            for topic in self._settings.topics
        }
        if not all(existing.values()):
            return False
        others = {
            Partition(topic, number)
            for topic, numbers in existing.items()
            for number in numbers
        }
        others.difference_update(self._reading.values())
        others = self._not_trained_to_the_end(others)
        return self._group.read_by_others(
            others, self._consumer.group_metadata().member_id
        )

    @property
    def problem(self) -> str | None:
        """See `Source.problem`."""
        return self._watch.problem

    def _not_trained_to_the_end(self, partitions: set[Partition]) -> set[Partition]:
        """Leave out the partitions whose committed offset has reached the end that they
        had when we first looked.
        """
        left = partitions - self._done_by_others
        if left and time.monotonic() >= self._ask_commits_at:
            self._ask_commits_at = time.monotonic() + LOOK_S
            try:
                new = [
                    TopicPartition(*p) for p in left if p not in self._ends_of_others
                ]
                ends = (
                    self._consumer.end_offsets(new, timeout_ms=LOOKUP_TIMEOUT_MS)
                    if new
                    else {}
                )
                self._ends_of_others |= {
                    Partition(*tp): end for tp, end in ends.items()
                }
                commits = self._starts.commits(left)
                self._done_by_others |= {
                    p for p, c in commits.items() if c.reaches(self._ends_of_others[p])
                }
            except errors.KafkaError as error:
                self._go_on_or_raise(error, "looking up offsets of")
        return partitions - self._done_by_others

    def _step(self, max_records: int, timeout_s: float) -> Records:
        """1. send commits; 2. let the client work; 3. settle the partitions that it
        brought.
        """
        if self._consumer is None:
            raise SourceError(f"{self._where}: the source is not open")
        self._send_commits()
        if self._joined and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._look_at_topics()
        records = self._let_client_poll(max_records, timeout_s)
        if self._listener_error:
            error = self._listener_error
            self._listener_error = None
            raise error
        if self._unsettled:
            self._settle()
        return records

    def _let_client_poll(self, max_records: int, timeout_s: float) -> Records:
        hold = max_records == 0
        if hold:
            self._consumer.pause(*self._reading)
        try:
            timeout_ms = round(timeout_s * 1000)
            return self._thread.run(
                lambda: self._consumer.poll(timeout_ms, max_records or 1)
            )
        except errors.OffsetOutOfRangeError as error:
            self._reset(
                {Partition(*tp): offset for tp, offset in error.args[0].items()}
            )
        except errors.LogTruncationError as error:
            self._cut_back(error.divergent_offsets)
        except errors.KafkaError as error:
            self._go_on_or_raise(error, "reading")
            time.sleep(min(timeout_s, 0.1))
        finally:
            if hold:
                self._consumer.resume(*self._reading)
        return {}

    def _chunks(self, records: Records) -> list[Chunk]:
        chunks = []
        for tp, rows in records.items():
            offsets, timestamps_ms, keys, values = columns(rows)
            filled = [value or b"" for value in values]
            lost = self._lost.pop(self._reading[tp], 0)
            chunks.append(
                Chunk(self._reading[tp], offsets, timestamps_ms, keys, filled, lost)
            )
        self._progress.returned(
            {chunk.partition: chunk.offsets[-1] + 1 for chunk in chunks}
        )
        return chunks

    def _note_passed(self) -> None:
        """Called when nothing came: what we still expect before the end of a partition
        may not be there.
        """
        for partition in self._progress.behind():
            try:
                position = self._consumer.position(
                    TopicPartition(*partition), timeout_ms=0
                )
                self._progress.pass_by(partition, position or 0)
            except errors.LogTruncationError as error:
                self._cut_back(error.divergent_offsets)
            except errors.KafkaError as error:
                self._go_on_or_raise(error, "reading")

    def _go_on_or_raise(self, error: errors.KafkaError, doing: str) -> None:
        """What the client recovers from by itself is not an error; the watch logs it if
        it lasts.
        """
        if not is_transient(error):
            raise to_streamer_error(
                error, f"{self._where}, {doing} {', '.join(self._settings.topics)}"
            ) from error
        log.debug("%s, %s: %s", self._where, doing, error)

    # ----------------------------------------------------------------------------------------- rebalance

    async def _ask(self, question: Callable[[], None]) -> None:
        """Have the polling thread do something; called on the client's I/O thread. At
        close nobody is told.
        """
        if not self._closing:
            await self._thread.ask(
                lambda: self._guarded(question), self._consumer._coordinator._net.sleep
            )

    def _guarded(self, question: Callable[[], None]) -> None:
        """An error of the listener is kept for the caller of `poll`; the client would
        bury it in its own.
        """
        try:
            question()
        except BaseException as error:
            self._listener_error = error

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Pause, and ask the listener. (Without a position the client would look for
        one itself.)
        """
        assert self._listener is not None
        self._joined = True
        self._group.changed()
        for tp in partitions:
            self._consumer.pause(tp)
            self._consumer.seek(tp, 0)
            self._unsettled[tp] = None
        answers = self._listener.on_assigned([Partition(*tp) for tp in partitions])
        self._unsettled.update({tp: answers.get(Partition(*tp)) for tp in partitions})

    def _revoked(self, partitions: Sequence[TopicPartition], lost: bool) -> None:
        """1. call the listener; 2. commit, also what it just wanted; 3. forget the
        partitions.

        The commit goes ahead of our consent to the rebalance, so whoever gets a
        partition finds it. Lost partitions are others' already.
        """
        assert self._listener is not None
        if not partitions:
            return
        self._group.changed()
        gone = [Partition(*tp) for tp in partitions]
        try:
            self._listener.on_revoked(gone)
            if not lost:
                self._commit_async(self._progress.take_last_commit())
        finally:
            for tp in partitions:
                self._reading.pop(tp, None)
                self._unsettled.pop(tp, None)
                self._started.pop(Partition(*tp), None)
                self._lost.pop(Partition(*tp), None)
            self._progress.forget(gone)

    def _settle(self) -> None:
        """Find where to read the new partitions, and begin; if Kafka does not answer,
        try in the next poll.

        1. find the starts; 2. commit those that nobody could know otherwise; 3. read
           from there.
        """
        try:
            # 1.
            starts = self._starts.of(
                {Partition(*tp): at for tp, at in self._unsettled.items()},
                not self._opened,
            )
            # 2.
            commits = {
                TopicPartition(*p): s.commit.for_kafka()
                for p, s in starts.items()
                if s.must_commit
            }
            if commits:
                self._consumer.commit(commits, timeout_ms=LOOKUP_TIMEOUT_MS)
        except errors.CommitFailedError as error:  # the next rebalance has begun
            log.debug(
                "%s: where reading starts is not committed: %s", self._where, error
            )
            return
        except errors.KafkaError as error:
            self._go_on_or_raise(error, "looking up offsets of")
            return
        # 3.
        self._progress.begin(
            {p: s.position for p, s in starts.items()},
            {p: s.end for p, s in starts.items()},
        )
        for partition, start in starts.items():
            tp = TopicPartition(*partition)
            self._reading[tp] = partition
            self._started[partition] = start
            if start.lost:
                self._lost[partition] = start.lost
            self._seek(tp, start.position)
            self._consumer.resume(tp)
            del self._unsettled[tp]

    def _seek(self, tp: TopicPartition, position: Position) -> None:
        """With its leader epoch the client finds out whether the log is still the one
        that we have read.
        """
        at = OffsetAndMetadata(int(position), "", position.leader_epoch)
        self._consumer.seek(tp, int(position))
        self._consumer._subscription.assignment[tp].seek(at)

    def _reset(self, out_of_range: Positions) -> None:
        """Records were removed before we read them, or the log was cut short or
        recreated.
        """
        ours = {
            TopicPartition(*p): at
            for p, at in out_of_range.items()
            if TopicPartition(*p) in self._reading
        }
        try:
            self._consumer.topics()  # asks the broker, so that we know a topic that was recreated
            if self._look_at_topics():
                return
            first = self._consumer.beginning_offsets(
                list(ours), timeout_ms=LOOKUP_TIMEOUT_MS
            )
        except (
            errors.KafkaError
        ) as error:  # the client has kept the position, and will complain again
            self._go_on_or_raise(error, "looking up offsets of")
            return
        for tp, at in ours.items():
            if at < first[tp] and self._settings.auto_offset_reset != "error":
                self._skip(tp, at, first[tp])
            else:
                self._begin_again([tp])

    def _skip(self, tp: TopicPartition, position: int, first: int) -> None:
        """Go on after records that were removed; what was read before them is kept."""
        partition = self._reading[tp]
        warn_of_gap(partition, position, first)
        self._lost[partition] = self._lost.get(partition, 0) + first - position
        self._consumer.seek(tp, first)
        self._progress.moved(partition, first)

    def _cut_back(
        self, truncated: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> None:
        """A new leader's log ends before our position; what we read after that end is
        lost to Kafka.
        """
        for tp, end in truncated.items():
            if tp not in self._reading:
                continue
            partition = self._reading[tp]
            topic_id = self._starts.topic_id(tp.topic)
            at = (
                "an offset that is not known"
                if end is None
                else f"offset {end.offset:,}"
            )
            if self._settings.auto_offset_reset == "error":
                raise SourceError(
                    f"{partition}: a new leader has cut it back to {at}. To go on, use --start earliest"
                )
            log.warning(
                "%s: a new leader has cut it back to %s; going on there", partition, at
            )
            if end is None:
                end = OffsetAndMetadata(
                    self._consumer.end_offsets([tp], timeout_ms=LOOKUP_TIMEOUT_MS)[tp],
                    "",
                    -1,
                )
            self._begin_again([tp], Position(end.offset, topic_id, end.leader_epoch))

    def _begin_again(
        self, tps: Sequence[TopicPartition], at_most: Position | None = None
    ) -> None:
        """Give partitions up and take them over again: their log is not the one that we
        have read.
        """
        self._revoked(tps, lost=True)
        self._assigned(tps)
        if at_most is not None:
            for tp in tps:
                answer = self._unsettled[tp]
                self._unsettled[tp] = (
                    at_most if answer is None else min(at_most, answer)
                )

    def _look_at_topics(self) -> bool:
        """See whether a topic was deleted or recreated, or has new partitions; return
        whether one was recreated.

        Raises:
            UnknownTopic: a topic was deleted.
        """
        recreated = False
        now = time.monotonic()
        cluster = self._consumer._cluster
        for topic in self._settings.topics:
            numbers = cluster.partitions_for_topic(topic)
            if not numbers:
                if (
                    now - self._gone_since.setdefault(topic, now) > GONE_S
                    and topic not in self._consumer.topics()
                ):
                    raise UnknownTopic(
                        f"{self._where}: the topic {topic!r} was deleted while it was read. Create it again"
                    )
                continue
            self._gone_since.pop(topic, None)
            ours = [tp for tp in self._reading if tp.topic == topic]
            known = {
                self._started[self._reading[tp]].position.topic_id for tp in ours
            } - {""}
            if known and known != {self._starts.topic_id(topic)}:
                recreated = True
                self._begin_again(ours)
            elif self._starts.trainer:
                self._look_for_unread(
                    {Partition(topic, number) for number in numbers}, now
                )
        return recreated

    def _look_for_unread(self, partitions: set[Partition], now: float) -> None:
        """Have the group rebalance if a partition has had no reader for a while; every
        reader commits where it begins.

        The client does that itself where it leads the group. After a restart of a
        static member no client knows that it does (KAFKA-13435).
        """
        missing = partitions - self._has_reader - set(self._started)
        if not missing:
            return
        try:
            self._has_reader |= self._starts.commits(missing).keys()
        except errors.KafkaError as error:
            self._go_on_or_raise(error, "looking up offsets of")
            return
        unread = [
            p
            for p in sorted(missing - self._has_reader)
            if now - self._unread_since.setdefault(p, now) > UNREAD_S
        ]
        if unread:
            log.info(
                "nobody reads %s yet: asking the group to rebalance",
                ", ".join(map(str, unread)),
            )
            self._unread_since = {}
            self._consumer._coordinator.request_rejoin()

    # ----------------------------------------------------------------------------------------- any thread

    def commit(self, positions: Positions) -> None:
        """See `Source.commit`. Sent by the next `poll`, or by `close`; what is not ours
        is left out.
        """
        self._progress.want_commit(positions)

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets` and `Progress.ends`."""
        return self._progress.ends()

    def _send_commits(self) -> None:
        self._commit_async(self._progress.take_commit())

    def _commit_async(self, positions: Mapping[Partition, int]) -> None:
        def answered(_: Any, answer: Any) -> None:
            if isinstance(answer, Exception):
                log.debug("%s: offsets are not committed: %s", self._where, answer)
                self._progress.not_committed(positions)
            else:
                self._progress.committed()

        if positions:
            try:
                self._consumer.commit_async(self._commits(positions), answered)
            except errors.KafkaError as error:
                answered(None, error)

    def _commits(self, positions: Positions) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit, with what it says of us."""
        ours = {
            p: self._started[p].commit._replace(
                offset=int(at), no_record_before=self._progress.passed_after(p, at)
            )
            for p, at in positions.items()
            if p in self._started
        }
        return {TopicPartition(*p): commit.for_kafka() for p, commit in ours.items()}

    # ----------------------------------------------------------------------------------------- close

    def close(self) -> None:
        """See `Source.close`. Takes `close_timeout_s` at most, whatever state Kafka is
        in.

        1. commit; 2. leave the group and hang up; 3. forget.
        """
        if self._consumer is None:
            return
        self._closing = True
        self._watch.stop()
        half_s = self._settings.close_timeout_s / 2
        try:
            consumer = self._consumer
            last = self._commits(self._progress.take_last_commit())
            self._thread.run(
                lambda: self._leave(consumer, last, half_s), timeout_s=2 * half_s
            )
        except (errors.KafkaError, TimeoutError) as error:
            log.warning("%s: could not leave the group cleanly: %s", self._where, error)
        finally:
            self._thread.stop()
            self._consumer = None
            self._unsettled = {}
            self._reading = {}
            self._started = {}
            self._progress.forget(self._progress.known()[0])

    def _leave(
        self,
        consumer: Any,
        last: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float,
    ) -> None:
        timeout_ms = round(timeout_s * 1000)
        try:
            if last:
                consumer.commit(last, timeout_ms=timeout_ms)
        except errors.KafkaError as error:
            log.warning(
                "%s: the last offsets are not committed: %s", self._where, error
            )
        # A static member would stay in the group until its session expires, and nobody
        # would read its partitions.
        consumer._coordinator.config["group_instance_id"] = None
        consumer.close(autocommit=False, timeout_ms=timeout_ms)


class _Rebalances(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Brings what the client says on its I/O thread to the polling thread."""

    def __init__(
        self,
        ask: Callable[[Callable[[], None]], Awaitable[None]],
        assigned: Callable[[Sequence[TopicPartition]], None],
        revoked: Callable[[Sequence[TopicPartition], bool], None],
    ) -> None:
        self._ask = ask
        self._assigned = assigned
        self._revoked = revoked

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        await self._ask(lambda: self._assigned(sorted(assigned)))

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._ask(lambda: self._revoked(sorted(revoked), False))

    async def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        await self._ask(lambda: self._revoked(sorted(lost), True))


def _some(names: Iterable[str], most: int = 10) -> str:
    shown = sorted(names)
    return (", ".join(shown[:most]) or "none") + (", ..." if len(shown) > most else "")
