"""Events to a topic of Kafka, each exactly once, also if the writer is killed and goes on.

Where a replay stands is told by the topic itself: the brokers number the records of a producer id in each partition
(`kafka_topic` explains it), so the last batch in a partition says how many of the replay's events the partition
holds. What has to be remembered is kept beside it, as the offset and the words that the group
`streamer-replay-<name>` has for each partition:

    offset   the position after some event of the replay; all that follow it are found behind
    words    {"producer": 4711, "epoch": 0, "events": 81920, "records": 20411, "partitions": 4}: of the first `events`
             events of the stream, `records` belong to this partition, and all of them are there

They are written before the first event, then every few seconds, and at the end. A replay that goes on reads them,
looks for the last batch behind each offset, and writes what is not there. Brokers forget them seven days after the
last time (`offsets.retention.minutes`); the replay then begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from streamer.errors import SettingsError, SourceError
from streamer.replay.events import Record
from streamer.replay.kafka.batches import CODECS, SEQUENCES, Batch, KeyPartitioner, cut
from streamer.replay.kafka.topic import KafkaTopic, Producer
from streamer.sources.kafka.settings import KafkaSettings

GROUP = "streamer-replay-"
NOTE_EVERY_S = 5.0
MOST_BATCH_BYTES = 1 << 19

Parts = list[Sequence[Record]]
"""Records by partition."""


class Note(msgspec.Struct):
    """What is remembered of a partition; see above."""

    producer: int
    epoch: int
    events: int
    records: int
    partitions: int


class KafkaSink:
    """A topic of a Kafka cluster. One write is on its way while the next one is made ready.

    The record's own time is that of writing: by the event's, a broker would remove old logs at once.

    Args:
        settings: of a source; cluster and client settings are the same.
        topic: the topic.
        clock: seconds since the epoch.

    Raises:
        SourceUnavailable: no broker answers.
        SourceError: there is no such topic, or we may not write to it.
    """

    def __init__(self, settings: KafkaSettings, topic: str, clock: Callable[[], float] = time.time) -> None:
        self._codec = _codec(settings.client.get("compression_type"))
        self._topic, self._clock = KafkaTopic(settings, topic), clock
        self._choose = KeyPartitioner(self._topic.partitions)
        self._most_bytes = min(MOST_BATCH_BYTES, self._topic.max_request_bytes // 2)
        self._group: str | None = None
        self._producer: Producer | None = None
        self._begin()
        self._sender = ThreadPoolExecutor(1, "kafka-sink")
        self._sending: Future[None] | None = None
        self._noted_s = time.monotonic()

    # where the replay stands ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """At the first event, with nothing in the topic."""
        partitions = self._topic.partitions
        self._event = 0  # that the next write begins with
        self._next = [0] * partitions  # number of the next event of each partition among the replay's
        self._there = [0] * partitions  # how many of them the partition held when we began
        self._known = [0] * partitions  # events of the stream that need not be looked at, as they are there
        self._offsets = [0] * partitions  # what the next note says, of what the brokers have
        self._safe = (0, [0] * partitions)

    def resume(self, replay: str, restart: bool = False) -> int:
        """See `EventSink.resume`."""
        self._begin()
        self._group = GROUP + replay
        found = {} if restart else self._topic.notes(self._group)
        if found:
            return self._go_on({n: (offset, self._understood(words)) for n, (offset, words) in found.items()})
        self._producer = self._topic.new_producer()
        self._offsets = self._topic.ends()
        self._take_notes()
        return 0

    def _understood(self, words: str) -> Note:
        try:
            note = msgspec.json.decode(words, type=Note)
        except msgspec.MsgspecError as error:
            raise SourceError(f"{self._topic.where}: what group {self._group!r} says is not ours: {error}") from error
        if note.partitions != self._topic.partitions:
            raise self._lost(f"it had {note.partitions} partitions then, and has {self._topic.partitions} now")
        return note

    def _go_on(self, notes: dict[int, tuple[int, Note]]) -> int:
        """1. what was remembered; 2. what is there; 3. what is missing."""
        # 1.
        if len(notes) != self._topic.partitions or len({note.producer for _, note in notes.values()}) != 1:
            raise self._lost(f"group {self._group!r} does not tell of all partitions")
        ordered = [notes[number] for number in range(self._topic.partitions)]
        self._offsets = [offset for offset, _ in ordered]
        self._producer = Producer(ordered[0][1].producer, ordered[0][1].epoch)
        # 2.
        ends, beginnings = self._topic.ends(), self._topic.beginnings()
        starts = list(map(max, self._offsets, beginnings))
        last = self._topic.last_sequences(self._producer, starts, ends)
        # 3.
        for number, (offset, note) in enumerate(ordered):
            if offset > ends[number]:
                raise self._lost(f"partition {number} ends at offset {ends[number]}, but events went up to {offset}")
            if offset < beginnings[number] and last[number] is None:
                raise self._lost(f"partition {number} has lost its records before offset {beginnings[number]}")
            self._known[number], self._next[number] = note.events, note.records
            self._there[number] = _counted(last[number], note.records)
            if self._there[number] > note.records + SEQUENCES // 2:
                raise self._lost(f"partition {number} has lost some of its last records")
        self._event = min(self._known)
        self._safe = (self._event, list(self._next))
        return self._event

    def _lost(self, why: str) -> SourceError:
        return SourceError(f"cannot go on with this replay in {self._topic.where}: {why}. --restart begins anew")

    def _take_notes(self) -> None:
        """Remember where we stand, for one who goes on."""
        if self._group is None or self._producer is None:
            return
        events, counts = self._safe
        notes = {
            number: (offset, Note(*self._producer, max(events, known), records, self._topic.partitions))
            for number, (offset, known, records) in enumerate(zip(self._offsets, self._known, counts, strict=True))
        }
        encode = msgspec.json.encode
        self._topic.keep_notes(self._group, {n: (at, encode(note).decode()) for n, (at, note) in notes.items()})
        self._noted_s = time.monotonic()

    # writing ----------------------------------------------------------------------------------------------------------

    def write(self, events: Sequence[Record]) -> int:
        """Hand records on, but those that the topic has; waits until the write before is safe."""
        if self._producer is None:
            self._producer = self._topic.new_producer()
        batches, new = {}, 0
        for number, part in enumerate(self._missing(events)):
            batches[number] = self._batches(number, part)
            self._next[number] += len(part)
            new += len(part)
        self._event += len(events)
        self._wait()
        self._sending = self._sender.submit(self._deliver, batches, self._event, list(self._next))
        return new

    def _missing(self, events: Sequence[Record]) -> Parts:
        """Those that the topic does not have yet."""
        parts: list[list[Record]] = [[] for _ in self._next]
        chosen = self._choose([key or b"" for key, _, _ in events])
        if self._event >= max(self._known):
            for record, number in zip(events, chosen, strict=True):
                parts[number].append(record)
        else:
            for event, record, number in zip(
                range(self._event, self._event + len(events)), events, chosen, strict=True
            ):
                if event >= self._known[number]:
                    parts[number].append(record)
        return [self._without_present(number, part) for number, part in enumerate(parts)]

    def _without_present(self, number: int, part: Sequence[Record]) -> Sequence[Record]:
        present = min(max(self._there[number] - self._next[number], 0), len(part))
        self._next[number] += present
        return part[present:]

    def _batches(self, number: int, part: Sequence[Record]) -> list[Batch]:
        assert self._producer is not None
        time_ms, sequence, batches = round(self._clock() * 1000), self._next[number], []
        for piece in cut(part, self._most_bytes):
            batches.append(Batch(piece, time_ms, self._producer, sequence, self._codec))
            sequence += len(piece)
        return batches

    def _deliver(self, batches: dict[int, list[Batch]], events: int, counts: list[int]) -> None:
        """In the sender's thread."""
        for number, end in self._topic.write(batches).items():
            self._offsets[number] = end
        self._safe = (events, counts)
        if time.monotonic() - self._noted_s > NOTE_EVERY_S:
            self._take_notes()

    def _wait(self) -> None:
        """Until the last write is safe.

        Raises:
            StreamerError: it is not.
        """
        if self._sending is not None:
            sending = self._sending
            try:
                sending.result()
            finally:
                if sending.done():
                    self._sending = None

    def close(self) -> None:
        """See `EventSink.close`."""
        try:
            if self._sending is not None:
                self._wait()
                self._take_notes()
        finally:
            self._sender.shutdown()
            self._topic.close()


def _codec(compression: str | None) -> int:
    if compression not in CODECS:
        known = ", ".join(filter(None, CODECS))
        raise SettingsError([f"Kafka client setting compression_type: must be {known}, not {compression!r}"])
    return CODECS[compression]


def _counted(last_sequence: int | None, at_least: int) -> int:
    """How many records a partition holds; sequence numbers begin again and again, and the count is none lower."""
    if last_sequence is None:
        return at_least
    return at_least + (last_sequence + 1 - at_least) % SEQUENCES
