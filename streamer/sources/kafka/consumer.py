"""One `KafkaConsumer`, in terms of our partitions, run by a thread of its own.

kafka-python calls a rebalance listener on its I/O thread while the caller of `poll` is
blocked; a `RebalanceListener` is promised the polling thread. So the polling thread has
`poll` run by another thread, and serves the listener's calls until that returns.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from difflib import get_close_matches
from typing import Any, TypeVar

from kafka import AsyncConsumerRebalanceListener, KafkaConsumer, TopicPartition, errors
from kafka.future import Future
from kafka.structs import MemberState

from streamer.errors import UnknownTopic
from streamer.sources.base import Partition, Position
from streamer.sources.kafka import private
from streamer.sources.kafka.client import connect_with_network
from streamer.sources.kafka.offsets import Commit
from streamer.sources.kafka.settings import KafkaSettings

T = TypeVar("T")

LOOKUP_TIMEOUT_MS = 2_000


class Consumer:
    """A consumer of the settings' topics: by `subscribe`, as a member of a group, or by
    `assign`, without one.

    Its methods raise the client's errors.

    Args:
        settings: how to connect.
        group_id: the group in whose name offsets are committed; None for nobody.
    """

    def __init__(self, settings: KafkaSettings, group_id: str | None) -> None:
        config = settings.consumer_config() | {"group_id": group_id}
        if group_id is None:
            config.pop("group_instance_id", None)
        self._client, self._network = connect_with_network(KafkaConsumer, config)
        self._cluster = self._network.cluster
        self._where = settings.where
        self.topics = settings.topics
        self.instance_id: str = self._client.config["group_instance_id"] or ""
        self.session_s: float = self._client.config["session_timeout_ms"] / 1000
        self.fetch_wait_ms: int = self._client.config["fetch_max_wait_ms"]
        self.retry_backoff_s: float = self._client.config["retry_backoff_ms"] / 1000
        self._thread = ClientThread("streamer-kafka")
        self._closing = False

    # -------------------------------------------------------------------- reading

    def poll(self, max_records: int, timeout_s: float) -> dict[Partition, list[Any]]:
        """Return `ConsumerRecord`s by partition; rebalances are served meanwhile."""
        found = self._thread.run(
            lambda: self._client.poll(round(timeout_s * 1000), max_records)
        )
        return {Partition(*tp): records for tp, records in found.items()}

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._client.pause(*_for_client(partitions))

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._client.resume(*_for_client(partitions))

    def seek(self, partition: Partition, position: Position) -> None:
        """Read on at a position; the client checks by its leader epoch that the log is
        still the one that we have read.
        """
        tp = TopicPartition(*partition)
        self._client.seek(tp, int(position))
        private.seek(self._client, tp, int(position), position.leader_epoch)

    def position(self, partition: Partition) -> int:
        """Return the offset that is fetched next, as far as is known now."""
        return self._client.position(TopicPartition(*partition), timeout_ms=0) or 0

    def leader_epoch(self, partition: Partition) -> int:
        """Return the leader epoch of what was read last; -1 if it is not known."""
        return private.leader_epoch(self._client, TopicPartition(*partition))

    # -------------------------------------------------------------------- membership

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these, whatever a group says."""
        self._client.assign(_for_client(partitions))

    def subscribe(
        self,
        assigned: Callable[[list[Partition]], None],
        revoked: Callable[[list[Partition], bool], None],
    ) -> None:
        """Join the group. It calls `assigned` and `revoked` inside of `poll`; the latter
        with whether the partitions were lost, so that nothing of them can be committed.
        """
        listener = _Rebalances(self._serve, assigned, revoked)
        self._client.subscribe(topics=list(self.topics), listener=listener)

    async def _serve(self, call: Callable[[], None]) -> None:
        """Have the polling thread call something, unless we are leaving."""
        if not self._closing:
            await self._thread.ask(call, self._network.wakeup)

    @property
    def is_stable(self) -> bool:
        """Whether we are in the group, and no rebalance is going on."""
        return self._client.group_metadata().state is MemberState.STABLE

    @property
    def member_id(self) -> str:
        """Our id in the group, as the broker gave it."""
        return str(self._client.group_metadata().member_id)

    def request_rejoin(self) -> None:
        """Have the group rebalance."""
        private.request_rejoin(self._client)

    # -------------------------------------------------------------------- commits

    def commit(self, commits: Mapping[Partition, Commit], timeout_ms: int) -> None:
        """Commit, and wait for the acknowledgement."""
        self._client.commit(_offsets(commits), timeout_ms=timeout_ms)

    def commit_async(
        self,
        commits: Mapping[Partition, Commit],
        done: Callable[[Exception | None], None],
    ) -> None:
        """Commit, and call `done` later, with the error if there was one."""

        def acknowledged(_: object, response: object) -> None:
            done(response if isinstance(response, Exception) else None)

        try:
            self._client.commit_async(_offsets(commits), acknowledged)
        except errors.KafkaError as error:
            done(error)

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Commit]:
        """Return what the group has committed; not of a topic that was deleted since."""
        commits: dict[Partition, Commit] = {}
        for partition in partitions:
            found = self._client.committed(
                TopicPartition(*partition), metadata=True, timeout_ms=LOOKUP_TIMEOUT_MS
            )
            if found is None:
                continue
            commit = Commit.of(found)
            if commit.topic_id in ("", self.topic_id(partition.topic)):
                commits[partition] = commit
        return commits

    def ask_before_commits(self, may_commit: Callable[[], bool]) -> None:
        """Have each commit dropped unless it is allowed when it is sent."""
        private.ask_before_commits(self._client, may_commit)

    # -------------------------------------------------------------------- lookups

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Any, int]:
        return self._client.beginning_offsets(  # type: ignore[no-any-return]
            _for_client(partitions), timeout_ms=LOOKUP_TIMEOUT_MS
        )

    def end_offsets(
        self, partitions: Iterable[Partition], timeout_ms: int = LOOKUP_TIMEOUT_MS
    ) -> dict[Any, int]:
        return self._client.end_offsets(  # type: ignore[no-any-return]
            _for_client(partitions), timeout_ms=timeout_ms
        )

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time; None if there is
        none.
        """
        tp = TopicPartition(*partition)
        found = self._client.offsets_for_times(
            {tp: timestamp_ms}, timeout_ms=LOOKUP_TIMEOUT_MS
        )
        return None if found[tp] is None else int(found[tp].offset)

    def existing_topics(self) -> set[str]:
        """Ask the brokers for all topics that we may read.

        Asking for one by name would create it on many brokers.
        """
        return self._client.topics()  # type: ignore[no-any-return]

    def check_topics(self, timeout_s: float = 0.0) -> None:
        """Return when our topics are there.

        Raises:
            UnknownTopic: one is not there after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            existing = self.existing_topics()
            missing = [topic for topic in self.topics if topic not in existing]
            if not missing:
                return
            if time.monotonic() >= deadline:
                raise UnknownTopic(
                    f"{self._where} has no topic {', '.join(map(repr, missing))} that "
                    f"this client may read; {_near(missing, existing)} Create the topic, "
                    "or set the client's allow_auto_create_topics to true"
                )
            time.sleep(0.2)

    def partitions_of(self, topic: str) -> set[Partition]:
        """Return the partitions of a topic, as far as is known; none if it is not
        there.
        """
        numbers = self._cluster.partitions_for_topic(topic) or ()
        return {Partition(topic, number) for number in numbers}

    def all_partitions(self) -> list[Partition]:
        """Return all partitions of our topics; none while one topic is missing."""
        found: list[Partition] = []
        for topic in self.topics:
            existing = self.partitions_of(topic)
            if not existing:
                return []
            found += sorted(existing)
        return found

    def topic_id(self, topic: str) -> str:
        """Return the id that a topic got when it was created; "" if the broker has none
        (before Kafka 2.8).
        """
        return str(self._cluster.topic_id(topic) or "")

    # -------------------------------------------------------------------- close

    def close(self, last: Mapping[Partition, Commit], timeout_s: float) -> None:
        """Commit for the last time and hang up; takes `timeout_s` at most.

        Raises:
            TimeoutError: it took longer.
        """
        self._closing = True
        half_ms = round(timeout_s * 1000 / 2)

        def leave() -> None:
            try:
                if last:
                    self.commit(last, half_ms)
            finally:
                self._client.close(autocommit=False, timeout_ms=half_ms)

        try:
            self._thread.run(leave, timeout_s)
        finally:
            self._thread.stop()


class ClientThread:
    """Runs calls one after the other. `run` is for one thread, `ask` for any other."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[_Question | None] | None = None
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """Return what `call()` returns, and do what is asked until then.

        Raises:
            TimeoutError: it takes longer than `timeout_s`; it goes on behind our back.
        """
        result: futures.Future[T] = futures.Future()
        inbox: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        result.add_done_callback(lambda _: inbox.put(None))
        self._inbox = inbox
        self._jobs.put(lambda: _fulfil(result, call))
        try:
            while (question := inbox.get(timeout=timeout_s)) is not None:
                question.answer()
        except queue.Empty:
            raise TimeoutError(f"no end after {timeout_s:.1f} s") from None
        finally:
            self._inbox = None
            while not inbox.empty():
                if (unanswered := inbox.get()) is not None:
                    unanswered.release()
        return result.result()

    async def ask(self, call: Callable[[], None], wakeup: Callable[[], None]) -> None:
        """Have `call()` done by the thread that waits in `run`; nobody does if that was
        interrupted.

        For the client's I/O thread, which sends heartbeats meanwhile; `wakeup` has it
        look again.
        """
        inbox = self._inbox
        if inbox is None:
            return
        question = _Question(call, wakeup)
        inbox.put(question)
        if self._inbox is inbox:  # or `run` may have ended without seeing it
            await question.done

    def stop(self) -> None:
        """End the thread after what it is doing."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class _Question:
    """A call that the I/O thread waits for."""

    def __init__(self, call: Callable[[], None], wakeup: Callable[[], None]) -> None:
        self.done = Future()
        self._call = call
        self._wakeup = wakeup

    def answer(self) -> None:
        try:
            self._call()
        finally:
            self.release()

    def release(self) -> None:
        self.done.success(None)
        self._wakeup()


class _Rebalances(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Brings what the client says on its I/O thread to the polling thread."""

    def __init__(
        self,
        serve: Callable[[Callable[[], None]], Any],
        assigned: Callable[[list[Partition]], None],
        revoked: Callable[[list[Partition], bool], None],
    ) -> None:
        self._serve = serve
        self._assigned = assigned
        self._revoked = revoked

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        partitions = _from_client(assigned)
        await self._serve(lambda: self._assigned(partitions))

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        partitions = _from_client(revoked)
        await self._serve(lambda: self._revoked(partitions, False))

    async def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        partitions = _from_client(lost)
        await self._serve(lambda: self._revoked(partitions, True))


def _fulfil(future: futures.Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _for_client(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]


def _from_client(partitions: Iterable[TopicPartition]) -> list[Partition]:
    return [Partition(*tp) for tp in sorted(partitions)]


def _offsets(commits: Mapping[Partition, Commit]) -> dict[TopicPartition, Any]:
    return {TopicPartition(*p): commit.for_kafka() for p, commit in commits.items()}


def _near(missing: Iterable[str], existing: Iterable[str]) -> str:
    """Which topics could be meant."""
    names = sorted(existing)
    near = {name for topic in missing for name in get_close_matches(topic, names)}
    if near:
        return f"did you mean {' or '.join(sorted(near))}?"
    more = ", ..." if len(names) > 10 else ""
    return f"it has {', '.join(names[:10]) or 'none'}{more}."
