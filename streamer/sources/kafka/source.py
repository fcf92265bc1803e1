"""Kafka topics as a source.

The listener decides where reading resumes: its positions rule over the offsets committed in Kafka. Those are
written for lag monitors, and used for partitions that the listener knows nothing of.

A record without a value (a tombstone) is delivered with the value `b""`. No event is that short, so it
becomes a dead letter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition, errors
from kafka.structs import MemberState

from streamer.errors import SourceError, SourceUnavailable, UnknownTopic
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener
from streamer.sources.kafka.client import connect, explained, in_our_words, is_transient
from streamer.sources.kafka.group import Group
from streamer.sources.kafka.progress import Progress
from streamer.sources.kafka.records import columns, use_rows
from streamer.sources.kafka.settings import (
    KafkaSettings,
    client_settings,
    settings_from_environment,
    settings_from_file,
)
from streamer.sources.kafka.starts import Starts
from streamer.sources.kafka.thread import ClientThread
from streamer.sources.kafka.watch import Watch

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


class KafkaSource:
    """Reads topics as a member of a consumer group. See `Source` for what its methods promise.

    Partitions come in two steps, because the client can look nothing up while it assigns them:

    1. assigned: the listener is asked for positions, and the partition is paused;
    2. settled, right after: where the listener had no position, the committed offset, the start time or the
       reset policy decides; the exact end is looked up; reading begins.

    Two threads help: one runs the client (see `kafka_thread`), one looks after the ends (see `kafka_watch`).
    """

    at_end = False

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._where = f"Kafka at {', '.join(settings.bootstrap_servers)}"
        self._progress = Progress()
        self._consumer: Any = None
        self._listener: RebalanceListener | None = None
        self._listener_error: BaseException | None = None
        self._joined = False
        self._closing = False
        self._unsettled: dict[TopicPartition, int | None] = {}  # with the listener's position
        self._reading: dict[TopicPartition, Partition] = {}  # settled

    # ----------------------------------------------------------------------------------------- open

    def open(self, listener: RebalanceListener) -> None:
        """Connect, join the group, and begin.

        1. connect; 2. see that the topics are there; 3. subscribe, and wait for the group and for our
        partitions to be settled; 4. look after them from now on.

        After an error it may be called again.
        """
        self._listener = listener
        self._joined = self._closing = False
        self._consumer = connect(KafkaConsumer, self._settings.consumer_config())
        self._thread = ClientThread("streamer-kafka")
        self._starts = Starts(self._settings, self._consumer)
        self._group = Group(self._settings, self._consumer.config["session_timeout_ms"] / 1000)
        self._watch = Watch(self._consumer, self._progress, self._where)
        try:
            if self._settings.fast_records and not use_rows(self._consumer):
                log.debug("%s: records are read the client's own, slower way", self._where)
            with explained(self._where):
                self._subscribe()
                self._join()
        except BaseException:
            self.close()
            raise
        self._watch.start()

    def _check_topics(self, timeout_s: float = 0.0) -> None:
        """Look at the list of all topics: asking for one by name would create it on many brokers."""
        deadline = time.monotonic() + timeout_s
        while True:
            existing = self._consumer.topics()
            missing = [topic for topic in self._settings.topics if topic not in existing]
            if not missing:
                return
            if time.monotonic() >= deadline:
                raise UnknownTopic(self._no_such_topic(missing, existing))
            time.sleep(0.2)

    def _no_such_topic(self, missing: Sequence[str], existing: Collection[str]) -> str:
        close = sorted({match for topic in missing for match in get_close_matches(topic, existing)})
        shown = f"did you mean {' or '.join(close)}?" if close else f"it has {_some(existing)}."
        names = ", ".join(repr(topic) for topic in missing)
        return (
            f"{self._where} has no topic {names} that this client may read; {shown} "
            "Create the topic, or set the client's allow_auto_create_topics to true"
        )

    def _subscribe(self) -> None:
        """1. see that the topics are there, unless they may be created; 2. subscribe; 3. look at them again.

        The client asks for topics that it subscribes to by name, a little later, and brokers may create them
        then. Looking again shows whether they did; and without it the client would rebalance a second time,
        when it learns of the topics.
        """
        create = bool(self._settings.client.get("allow_auto_create_topics"))
        if not create:
            self._check_topics()
        rebalances = _Rebalances(self._ask, self._assigned, self._revoked)
        self._consumer.subscribe(topics=list(self._settings.topics), listener=rebalances)
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
                self._assigned([])  # nothing is left for us, and the client does not always say so
            waited_s = time.monotonic() - began
            if waited_s > self._settings.join_timeout_s:
                raise SourceUnavailable(self._not_let_in())
            if waited_s > 3 and not told:
                log.info("waiting: %s", self._not_let_in())
                told = True

    def _not_let_in(self) -> str:
        return (
            f"{self._where} has not let this trainer into the group {self._settings.group_id!r} yet; "
            "a member that died may hold up the group until its session expires"
        )

    def _is_quiet(self) -> bool:
        """True if no rebalance is going on, and nothing is left of the last one."""
        return not self._unsettled and self._consumer.group_metadata().state is MemberState.STABLE

    # ----------------------------------------------------------------------------------------- poll

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`. With `max_records=0` it waits only while a rebalance is going on."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            records = self._step(max_records, min(left_s, SLICE_S) if max_records else 0.0)
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
        """See `Source.positions`. While a rebalance is going on, partitions that may come back are missing."""
        return self._progress.positions()

    @property
    def all_assigned(self) -> bool:
        """See `Source.all_assigned`."""
        existing = {topic: self._consumer.partitions_for_topic(topic) for topic in self._settings.topics}
        if not all(existing.values()):
            return False
        others = {Partition(topic, number) for topic, numbers in existing.items() for number in numbers}
        others.difference_update(self._reading.values())
        return self._group.read_by_others(others, self._consumer.group_metadata().member_id)

    @property
    def problem(self) -> str | None:
        """See `Source.problem`."""
        return self._watch.problem

    def _step(self, max_records: int, timeout_s: float) -> Records:
        """1. send commits; 2. let the client work; 3. settle the partitions that it brought."""
        if self._consumer is None:
            raise SourceError(f"{self._where}: the source is not open")
        self._send_commits()
        records = self._let_client_poll(max_records, timeout_s)
        if self._listener_error:
            error, self._listener_error = self._listener_error, None
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
            return self._thread.run(lambda: self._consumer.poll(timeout_ms, max_records or 1))
        except errors.OffsetOutOfRangeError as error:
            self._reset({Partition(*tp): offset for tp, offset in error.args[0].items()})
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
            chunks.append(Chunk(self._reading[tp], offsets, timestamps_ms, keys, filled))
        self._progress.returned({chunk.partition: chunk.offsets[-1] + 1 for chunk in chunks})
        return chunks

    def _note_passed(self) -> None:
        """Called when nothing came: what we still expect before the end of a partition may not be there."""
        for partition in self._progress.behind():
            try:
                position = self._consumer.position(TopicPartition(*partition), timeout_ms=0)
                self._progress.pass_by(partition, position or 0)
            except errors.LogTruncationError as error:
                self._cut_back(error.divergent_offsets)
            except errors.KafkaError as error:
                self._go_on_or_raise(error, "reading")

    def _go_on_or_raise(self, error: errors.KafkaError, doing: str) -> None:
        """What the client recovers from by itself is not an error; the watch logs it if it lasts."""
        if not is_transient(error):
            raise in_our_words(error, f"{self._where}, {doing} {', '.join(self._settings.topics)}") from error
        log.debug("%s, %s: %s", self._where, doing, error)

    # ----------------------------------------------------------------------------------------- rebalance

    def _ask(self, question: Callable[[], None]) -> None:
        """Have the polling thread do something; called on the client's I/O thread. Not while closing."""
        if not self._closing:
            self._thread.ask(lambda: self._guarded(question))

    def _guarded(self, question: Callable[[], None]) -> None:
        """An error of the listener is kept for the caller of `poll`; the client would bury it in its own."""
        try:
            question()
        except BaseException as error:
            self._listener_error = error

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Pause, and ask the listener. (Without a position the client would look for one itself.)"""
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
        """1. call the listener; 2. commit, also what it just wanted; 3. forget the partitions.

        The commit goes ahead of our consent to the rebalance, so whoever gets a partition finds it. Lost
        partitions are others' already.
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
            self._progress.forget(gone)

    def _settle(self) -> None:
        """Find where to read the new partitions, and begin; if Kafka does not respond, try in the next poll."""
        try:
            starts, ends = self._starts.of({Partition(*tp): at for tp, at in self._unsettled.items()})
        except errors.KafkaError as error:
            self._go_on_or_raise(error, "looking up offsets of")
            return
        self._progress.begin(starts, ends)
        for tp in list(self._unsettled):
            self._reading[tp] = Partition(*tp)
            self._consumer.seek(tp, starts[self._reading[tp]])
            self._consumer.resume(tp)
            del self._unsettled[tp]

    def _reset(self, out_of_range: Positions) -> None:
        """Records were removed before we read them, or the log was cut short."""
        ours = {p: at for p, at in out_of_range.items() if TopicPartition(*p) in self._reading}
        try:
            starts = self._starts.again(ours)
        except errors.KafkaError as error:  # the client has kept the position, and will complain again
            self._go_on_or_raise(error, "looking up offsets of")
            return
        for partition, start in starts.items():
            self._move(partition, start)

    def _cut_back(self, truncated: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """A new leader's log ends before our position; what we read after that end is lost to Kafka."""
        for tp, end in truncated.items():
            if tp not in self._reading:
                continue
            if end is None or self._settings.auto_offset_reset == "error":
                self._reset({self._reading[tp]: -1})
            else:
                log.warning("%s was truncated by a new leader; resuming at offset %d", self._reading[tp], end.offset)
                self._move(self._reading[tp], end.offset)

    def _move(self, partition: Partition, position: int) -> None:
        self._consumer.seek(TopicPartition(*partition), position)
        self._progress.moved(partition, position)

    # ----------------------------------------------------------------------------------------- any thread

    def commit(self, positions: Positions) -> None:
        """See `Source.commit`. Sent by the next `poll`, or by `close`; what is not ours is left out."""
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
                self._consumer.commit_async(_offsets(positions), answered)
            except errors.KafkaError as error:
                answered(None, error)

    # ----------------------------------------------------------------------------------------- close

    def close(self) -> None:
        """See `Source.close`. Takes `close_timeout_s` at most, whatever state Kafka is in.

        1. commit; 2. leave the group and hang up; 3. forget.
        """
        if self._consumer is None:
            return
        self._closing = True
        self._watch.stop()
        half_s = self._settings.close_timeout_s / 2
        try:
            consumer, last = self._consumer, self._progress.take_last_commit()
            self._thread.run(lambda: self._leave(consumer, last, half_s), timeout_s=2 * half_s)
        except (errors.KafkaError, TimeoutError) as error:
            log.warning("%s: could not leave the group cleanly: %s", self._where, error)
        finally:
            self._thread.stop()
            self._consumer = None
            self._unsettled, self._reading = {}, {}
            self._progress.forget(self._progress.known()[0])

    def _leave(self, consumer: Any, last: Positions, timeout_s: float) -> None:
        timeout_ms = round(timeout_s * 1000)
        try:
            if last:
                consumer.commit(_offsets(last), timeout_ms=timeout_ms)
        except errors.KafkaError as error:
            log.warning("%s: the last offsets could not be committed: %s", self._where, error)
        consumer.close(autocommit=False, timeout_ms=timeout_ms)


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Brings what the client says on its I/O thread to the polling thread."""

    def __init__(
        self,
        ask: Callable[[Callable[[], None]], None],
        assigned: Callable[[Sequence[TopicPartition]], None],
        revoked: Callable[[Sequence[TopicPartition], bool], None],
    ) -> None:
        self._ask, self._assigned, self._revoked = ask, assigned, revoked

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._ask(lambda: self._assigned(sorted(assigned)))

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._ask(lambda: self._revoked(sorted(revoked), False))

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._ask(lambda: self._revoked(sorted(lost), True))


def _offsets(positions: Mapping[Partition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*p): OffsetAndMetadata(position, "", -1) for p, position in positions.items()}


def _some(names: Iterable[str], most: int = 10) -> str:
    shown = sorted(names)
    return (", ".join(shown[:most]) or "none") + (", ..." if len(shown) > most else "")
