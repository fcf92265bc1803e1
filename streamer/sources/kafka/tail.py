"""All partitions of topics, read without a group: for readers beside the trainers, who
take nothing away from them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from kafka import KafkaConsumer, TopicPartition, errors

from streamer.errors import SourceError, UnknownTopic
from streamer.sources.base import Chunk, Partition, Positions, RebalanceListener
from streamer.sources.kafka.client import (
    connect,
    explained,
    is_transient,
    to_streamer_error,
)
from streamer.sources.kafka.records import columns, use_rows
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.starts import LOOKUP_TIMEOUT_MS

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often we look whether the brokers respond, and whether topics have new
partitions.
"""


class KafkaTail:
    """Reads all partitions from the listener's positions on. See `Source` for what its
    methods promise.

    Where the listener has no position, and where a position is gone,
    `auto_offset_reset` decides.
    """

    at_end = False
    all_assigned = True

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._where = f"Kafka at {', '.join(settings.bootstrap_servers)}"
        self._reset = "latest" if settings.auto_offset_reset == "latest" else "earliest"
        self._consumer: Any = None
        self._listener: RebalanceListener | None = None
        self._positions: dict[Partition, int] = {}
        self._look_at = 0.0
        self.problem: str | None = None

    def open(self, listener: RebalanceListener) -> None:
        """See `Source.open`."""
        config = self._settings.consumer_config() | {
            "group_id": None,
            "auto_offset_reset": self._reset,
        }
        config.pop("group_instance_id", None)
        self._listener = listener
        self._consumer = connect(KafkaConsumer, config)
        try:
            if self._settings.fast_records:
                use_rows(self._consumer)
            with explained(self._where):
                self._assign(self._partitions())
        except BaseException:
            self.close()
            raise

    def _partitions(self) -> list[TopicPartition]:
        existing = self._consumer.topics()
        if missing := [
            topic for topic in self._settings.topics if topic not in existing
        ]:
            raise UnknownTopic(
                f"{self._where} has no topic {', '.join(map(repr, missing))}: create it, or wait for it"
            )
        numbers = {
            topic: self._consumer.partitions_for_topic(topic) or ()
            for topic in self._settings.topics
        }
        return [
            TopicPartition(topic, number)
            for topic, found in numbers.items()
            for number in sorted(found)
        ]

    def _assign(self, partitions: list[TopicPartition]) -> None:
        """Read these from now on; those that are new, from the listener's positions."""
        assert self._listener is not None
        new = [
            Partition(*tp) for tp in partitions if Partition(*tp) not in self._positions
        ]
        if not new:
            return
        given = self._listener.on_assigned(new)
        places = [TopicPartition(*partition) for partition in new]
        look_up = (
            self._consumer.end_offsets
            if self._reset == "latest"
            else self._consumer.beginning_offsets
        )
        starts = look_up(places, timeout_ms=LOOKUP_TIMEOUT_MS)
        self._consumer.assign(partitions)
        self._positions |= {
            Partition(*tp): int(given.get(Partition(*tp), at))
            for tp, at in starts.items()
        }
        for partition, position in self._positions.items():
            self._consumer.seek(TopicPartition(*partition), position)

    def poll(self, max_records: int, timeout_s: float) -> list[Chunk]:
        """See `Source.poll`."""
        if self._consumer is None:
            raise SourceError(f"{self._where}: the source is not open")
        if max_records == 0:
            return []
        try:
            self._look()
            found = self._consumer.poll(round(timeout_s * 1000), max_records)
        except errors.KafkaError as error:
            if not is_transient(error):
                raise to_streamer_error(
                    error, f"{self._where}, reading {', '.join(self._settings.topics)}"
                ) from error
            self.problem = f"{self._where} does not respond: {error}"
            return []
        chunks = []
        for tp, rows in found.items():
            offsets, timestamps_ms, keys, values = columns(rows)
            chunks.append(
                Chunk(
                    Partition(*tp),
                    offsets,
                    timestamps_ms,
                    keys,
                    [value or b"" for value in values],
                )
            )
            self._positions[Partition(*tp)] = offsets[-1] + 1
        if chunks:
            self.problem = None
        return chunks

    def _look(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        self._assign(self._partitions())
        self.end_offsets()
        self.problem = None

    def positions(self) -> Positions:
        """See `Source.positions`."""
        return dict(self._positions)

    def commit(self, positions: Positions) -> None:
        """Nobody waits for us."""

    def end_offsets(self) -> Positions:
        """See `Source.end_offsets`.

        Raises:
            KafkaError: no broker responds.
        """
        places = [TopicPartition(*partition) for partition in self._positions]
        ends = self._consumer.end_offsets(places, timeout_ms=LOOKUP_TIMEOUT_MS)
        return {Partition(*tp): end for tp, end in ends.items()}

    def close(self) -> None:
        """See `Source.close`."""
        consumer = self._consumer
        self._consumer = None
        if consumer is not None:
            with contextlib.suppress(errors.KafkaError):
                consumer.close(
                    autocommit=False,
                    timeout_ms=round(self._settings.close_timeout_s * 1000),
                )
