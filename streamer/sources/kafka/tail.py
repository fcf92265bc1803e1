"""Partitions of topics that no group decides on: for readers beside the trainers, who
take nothing away from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from streamer.errors import SourceUnavailable
from streamer.sources.base import Chunk, Partition, Positions
from streamer.sources.kafka.consumer import Consumer
from streamer.sources.kafka.reader import SLICE_S, KafkaReader
from streamer.sources.kafka.settings import KafkaSettings


class KafkaTail(KafkaReader):
    """Reads given partitions from the listener's positions on.

    Where the listener has no position, `auto_offset_reset` decides; but a partition
    that is added later is read from its beginning.

    Args:
        settings: how to reach Kafka.
        assigned: which partitions are ours now, there may be more from poll to poll;
            None for all of the topics.
    """

    all_assigned = True

    def __init__(
        self,
        settings: KafkaSettings,
        assigned: Callable[[], Iterable[Partition]] | None = None,
    ) -> None:
        super().__init__(replace(settings, trainer=None))
        self._assigned = assigned
        self._group_id = None

    def _ask_for_partitions(self, consumer: Consumer) -> None:
        consumer.check_topics(self._settings.open_timeout_s)
        self._take_over(consumer)

    def _wait_for_partitions(self, consumer: Consumer) -> None:
        began = time.monotonic()
        while not self._is_settled():
            self._step(0, SLICE_S)
            if time.monotonic() - began > self._settings.join_timeout_s:
                raise SourceUnavailable(
                    f"{self._where} did not say where its partitions begin and end"
                )

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`."""
        self._take_over(self._consumer)
        if not self._table:
            time.sleep(timeout_s)
            return []
        return super().poll(max_records, timeout_s)

    def _take_over(self, consumer: Consumer) -> None:
        """Begin with partitions that are ours now."""
        ours = consumer.all_partitions() if self._assigned is None else self._assigned()
        new = [partition for partition in ours if partition not in self._table]
        if not new:
            return
        known = [*self._table.reading(), *self._table.unsettled()]
        consumer.assign([*known, *new])
        self.on_assigned(new)
        trained = self._table.unsettled()
        if known or any(trained[p] is not None for p in new):
            self._starts.from_beginning.update(new)

    def commit(self, positions: Positions) -> None:
        """Nobody waits for us."""
