"""The events that a rank has read and no step has taken yet, by partition."""

from __future__ import annotations

from collections.abc import Collection

from streamer.event.decoded import Decoded
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.sources.base import Partition


class Queues(Batcher):
    """Events that wait to be trained, in one queue for each partition."""

    def __init__(self, batch_size: int, max_queued_events: int) -> None:
        super().__init__(batch_size)
        self._max_events = max(2 * batch_size, max_queued_events // 4)
        self.of: dict[Partition, Batcher] = {}

    @property
    def queued_events(self) -> int:
        return sum(queue.queued_events for queue in self.of.values())

    def wants(self, partition: Partition) -> bool:
        """Whether to read on in a partition."""
        queue = self.of.get(partition)
        return queue is None or queue.has_room(self._max_events)

    def has_room(self, max_events: int) -> bool:
        return not self.of or any(self.wants(partition) for partition in self.of)

    def expect(self, partition: Partition) -> Batcher:
        """The queue of a partition: one from which nothing has come has room, however
        full the others are.
        """
        if partition not in self.of:
            self.of[partition] = Batcher(self.batch_size, clock=self._clock)
        return self.of[partition]

    def add(self, decoded: Decoded, lost: int = 0) -> None:
        self.expect(decoded.partition).add(decoded, lost)

    def drop(self, partitions: Collection[Partition]) -> int:
        dropped = 0
        for partition in partitions:
            queue = self.of.pop(partition, None)
            if queue is not None:
                dropped += queue.drop([partition])
        return dropped

    @property
    def oldest_s(self) -> float | None:
        arrivals = []
        for queue in self.of.values():
            if queue.oldest_s is not None:
                arrivals.append(queue.oldest_s)
        return min(arrivals, default=None)

    def take_events(self, events: dict[Partition, int]) -> MicroBatch | None:
        """This many events of each partition, in the order of partitions, and records
        without events before and after.

        A record is never split: with a record of several events there may be more. None
        if nothing is taken.
        """
        batch = MicroBatch.opened()
        for partition in sorted(self.of):
            wanted = events.get(partition, 0)
            self.of[partition].move_into(batch, wanted)
        if not batch.positions:
            return None
        return batch.closed()
