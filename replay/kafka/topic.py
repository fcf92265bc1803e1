"""A topic of Kafka from the writing side: batches in, each exactly once, and a look at what is there.

A `KafkaProducer` decides itself where batches end and which numbers they get, and begins with new numbers at every
start. Here both are ours: the batches of a producer id are numbered record by record in each partition, and a broker
takes a batch only if it follows the last one that it has of this id. So

- a batch that is sent again because an answer was lost is not written twice;
- a writer that goes on after a kill, with the same id, cannot double what its predecessor still had on its way:
  the broker answers that the numbers do not follow;
- the numbers of the last batch in a partition tell how many records of this id the partition holds.

Requests travel through the connections of kafka-python's admin client, which has a thread for them.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kafka import KafkaAdminClient, TopicPartition, errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.record import MemoryRecords
from kafka.structs import OffsetAndMetadata

from streamer.errors import SourceError, UnknownTopic
from streamer.replay.kafka.batches import Batch
from streamer.sources.kafka.client import connect, explained
from streamer.sources.kafka.settings import KafkaSettings

T = TypeVar("T")

WRITER_DEFAULTS = {"max_block_ms": 10_000, "request_timeout_ms": 30_000, "delivery_timeout_ms": 120_000}
"""As a producer's, but that a missing topic is not waited for so long."""
FETCH_BYTES, MOST_FETCH_BYTES = 1 << 20, 1 << 27
PAUSE_S = 0.1
_Data = ProduceRequest.TopicProduceData
_Wanted = FetchRequest.FetchTopic

ALREADY_WRITTEN = errors.DuplicateSequenceNumberError
NOT_NEXT = (errors.OutOfOrderSequenceNumberError, errors.InvalidProducerEpochError)


class Producer(NamedTuple):
    """Who writes: brokers number batches for each."""

    id: int
    epoch: int


class KafkaTopic:
    """A topic; brokers that create topics when they are asked for one create it.

    Args:
        settings: of a source; cluster and client settings are the same.
        name: the topic.

    Raises:
        SourceUnavailable: no broker answers.
        SourceError: there is no such topic, or we may not write to it.
    """

    def __init__(self, settings: KafkaSettings, name: str) -> None:
        self.name = name
        self.where = f"topic {name!r} of Kafka at {', '.join(settings.bootstrap_servers)}"
        self._config = WRITER_DEFAULTS | settings.producer_config()
        self._admin: Any = connect(KafkaAdminClient, settings.admin_config())
        self._manager = self._admin._manager
        try:
            with explained(self.where):
                self.partitions = self._found()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Hang up. May be called twice."""
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(errors.KafkaError):
                admin.close()

    @property
    def max_request_bytes(self) -> int:
        """The client's setting."""
        return int(self._config.get("max_request_size", 1 << 20))

    def _found(self) -> int:
        """How many partitions the topic has; waits a little for it to appear."""
        cluster, deadline = self._manager.cluster, time.monotonic() + self._config["max_block_ms"] / 1000
        try:
            cluster.add_topic(self.name)
        except ValueError as error:  # the name is not allowed
            raise SourceError(f"{self.where}: {error}") from error
        while time.monotonic() < deadline:
            self._manager.run(cluster.refresh_metadata)
            if self.name in cluster.unauthorized_topics:
                raise errors.TopicAuthorizationFailedError(self.name)
            numbers = cluster.partitions_for_topic(self.name) or set()
            if numbers and numbers == cluster.available_partitions_for_topic(self.name):
                return len(numbers)
            time.sleep(PAUSE_S)
        raise UnknownTopic(f"{self.where}: there is no such topic, and the brokers do not create it. Create it first")

    # writing ----------------------------------------------------------------------------------------------------------

    def new_producer(self) -> Producer:
        """An id that nobody has used."""
        nobody = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1, "transaction_timeout_ms": 0}
        answer = self._patiently(lambda: self._ask(InitProducerIdRequest(**nobody, max_version=4)))
        return Producer(answer.producer_id, answer.producer_epoch)

    def write(self, batches: Mapping[int, Sequence[Batch]]) -> dict[int, int]:
        """Return when the brokers have all batches; those of a partition are written one after the other.

        Returns:
            The offset after the last record of each of the partitions, where the broker has told it.

        Raises:
            SourceUnavailable: the brokers are away for too long.
            SourceError: they do not take a batch, or its numbers do not follow the last ones.
        """
        with explained(f"events to {self.where}"):
            ends: dict[int, int] = self._manager.run(self._write, batches)
            return ends

    async def _write(self, batches: Mapping[int, Sequence[Batch]]) -> dict[int, int]:
        waiting = {partition: deque(queue) for partition, queue in batches.items() if queue}
        ends: dict[int, int] = {}
        patience_s = self._config["delivery_timeout_ms"] / 1000
        deadline = time.monotonic() + patience_s
        while waiting:
            problem = await self._send_first_of(waiting, ends)
            if problem is None:
                deadline = time.monotonic() + patience_s
            elif not isinstance(problem, errors.RetriableError) or time.monotonic() > deadline:
                raise problem
            else:
                await self._look_around()
        return ends

    async def _send_first_of(self, waiting: dict[int, deque[Batch]], ends: dict[int, int]) -> errors.KafkaError | None:
        """Send the first batch of each partition; those that are written leave their queue. Answers a problem."""
        requests = [
            (numbers, self._manager.send(self._produce_request({n: waiting[n][0] for n in numbers}), node_id=leader))
            for leader, numbers in self._by_leader(waiting).items()
        ]
        problem: errors.KafkaError | None = None if requests else errors.LeaderNotAvailableError(self.name)
        for numbers, sent in requests:
            try:
                answer = await sent
            except errors.KafkaError as error:
                problem = error
                continue
            for part in answer.responses[0].partition_responses:
                problem = self._answered(part, waiting, ends) or problem
            if len(answer.responses[0].partition_responses) != len(numbers):
                raise errors.KafkaError("a broker has answered for other partitions than it was asked about")
        return problem

    def _answered(self, part: Any, waiting: dict[int, deque[Batch]], ends: dict[int, int]) -> errors.KafkaError | None:
        kind = errors.for_code(part.error_code)
        if kind in NOT_NEXT:
            raise SourceError(
                f"{self.where}, partition {part.index}: somebody else goes on with this replay, or its last events "
                "arrived only now. Nothing was doubled; see that it runs only once, and start it again"
            )
        if kind not in (errors.NoError, ALREADY_WRITTEN):
            problem: errors.KafkaError = kind(part.error_message or f"partition {part.index}")
            return problem
        batch = waiting[part.index].popleft()
        if part.base_offset >= 0:
            ends[part.index] = part.base_offset + len(batch)
        if not waiting[part.index]:
            del waiting[part.index]
        return None

    def _produce_request(self, batches: Mapping[int, Batch]) -> Any:
        parts = [_Data.PartitionProduceData(index=n, records=batch.content) for n, batch in batches.items()]
        topics = [_Data(name=self.name, partition_data=parts)]
        timeout_ms = self._config["request_timeout_ms"]
        return ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=topics, min_version=3, max_version=9)

    # looking ----------------------------------------------------------------------------------------------------------

    def ends(self) -> list[int]:
        """The offset after the last record of each partition."""
        return self._offsets(OffsetSpec.LATEST)

    def beginnings(self) -> list[int]:
        """The first offset that each partition still has."""
        return self._offsets(OffsetSpec.EARLIEST)

    def _offsets(self, spec: OffsetSpec) -> list[int]:
        wanted = dict.fromkeys(self._all(), spec)
        found = self._patiently(lambda: self._admin.list_partition_offsets(wanted))
        return [found[partition].offset for partition in self._all()]

    def last_sequences(self, producer: Producer, starts: Sequence[int], ends: Sequence[int]) -> list[int | None]:
        """The number of the producer's last record among those from `starts` to `ends`; None where it has none."""
        return [
            self._last_sequence(producer, number, start, end)
            for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]

    def _last_sequence(self, producer: Producer, number: int, start: int, end: int) -> int | None:
        last, size = None, FETCH_BYTES
        while start < end and size <= MOST_FETCH_BYTES:
            batches = self._fetched(number, start, size)
            size = FETCH_BYTES if batches else 2 * size
            for batch in batches:
                start = batch.next_offset
                if batch.producer_id == producer.id and not batch.is_control_batch:
                    last = batch.last_sequence
        return last

    def _fetched(self, number: int, start: int, size: int) -> list[Any]:
        """The whole batches that come next."""

        async def ask() -> Any:
            leader = self._manager.cluster.leader_for_partition(TopicPartition(self.name, number))
            answer = await self._manager.send(self._fetch_request(number, start, size), node_id=leader)
            [part] = answer.responses[0].partitions
            _raise(part.error_code, f"partition {number}")
            return part.records

        records = MemoryRecords(self._patiently(lambda: self._manager.run(ask)) or b"")
        found = []
        while (batch := records.next_batch()) is not None:
            found.append(batch)
        return found

    def _fetch_request(self, number: int, start: int, size: int) -> Any:
        part = _Wanted.FetchPartition(
            partition=number,
            current_leader_epoch=-1,
            fetch_offset=start,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=size,
        )
        return FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=size,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[_Wanted(topic=self.name, partitions=[part])],
            forgotten_topics_data=[],
            rack_id="",
            min_version=4,
            max_version=12,
        )

    # remembering ------------------------------------------------------------------------------------------------------

    def notes(self, group: str) -> dict[int, tuple[int, str]]:
        """Offset and words that a group has for each partition."""
        found = self._patiently(lambda: self._admin.list_group_offsets({group: self._all()}))[group]
        return {at.partition: (note.offset, note.metadata) for at, note in found.items() if note.offset >= 0}

    def keep_notes(self, group: str, notes: Mapping[int, tuple[int, str]]) -> None:
        """Write offset and words for each partition, under the name of a group that nobody reads with."""
        offsets = {
            TopicPartition(self.name, number): OffsetAndMetadata(offset, words, None)
            for number, (offset, words) in notes.items()
        }

        def write() -> None:
            for problem in self._admin.alter_group_offsets(group, offsets).values():
                if problem is not errors.NoError:
                    raise problem(f"group {group!r}")

        self._patiently(write)

    # ------------------------------------------------------------------------------------------------------------------

    def _all(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]

    def _by_leader(self, numbers: Mapping[int, object]) -> dict[int, list[int]]:
        """Partitions by the broker that leads them; those that have none now are left out."""
        led: defaultdict[int, list[int]] = defaultdict(list)
        for number in numbers:
            leader = self._manager.cluster.leader_for_partition(TopicPartition(self.name, number))
            if leader is not None and leader >= 0:
                led[leader].append(number)
        return led

    def _ask(self, request: Any) -> Any:
        """Send a request that any broker can answer."""

        async def ask() -> Any:
            answer = await self._manager.send(request)
            _raise(answer.error_code, request.name)
            return answer

        return self._manager.run(ask)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer, or it has taken too long."""
        deadline = time.monotonic() + self._config["request_timeout_ms"] / 1000
        with explained(self.where):
            while True:
                try:
                    return ask()
                except errors.RetriableError:
                    if time.monotonic() > deadline:
                        raise
                self._manager.run(self._look_around)

    async def _look_around(self) -> None:
        """A moment later, learn who leads what now."""
        await self._manager._net.sleep(PAUSE_S)
        with contextlib.suppress(errors.KafkaError):
            await self._manager.cluster.refresh_metadata()


def _raise(code: int, about: str) -> None:
    kind = errors.for_code(code)
    if kind is not errors.NoError:
        raise kind(about)
