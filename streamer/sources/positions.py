"""Small rules that the log-like sources share: which partition a record goes to, and
where reading starts.
"""

from __future__ import annotations

import itertools
import logging
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from streamer.errors import SourceError
from streamer.sources.base import Partition

logger = logging.getLogger(__name__)

Record = tuple[bytes | None, bytes, int]
"""Key (or None), value, timestamp in milliseconds since the epoch: what a writer
appends.
"""


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Where partitions begin that have no position.

    Args:
        start: at their beginning, or at their end.
        timestamp_ms: instead of `start`: at the first record with at least this
            timestamp.
        from_beginning: topics that begin at their beginning in any case.
    """

    start: Literal["earliest", "latest"] = "earliest"
    timestamp_ms: int | None = None
    from_beginning: Collection[str] = ()


class Partitioner:
    """Chooses partitions for the records of one topic: by the CRC-32 of the key, never
    to be changed, and round robin for records without one.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._turn = itertools.count()

    def choose(self, key: bytes | None) -> int:
        """Return the partition's number."""
        return (next(self._turn) if key is None else zlib.crc32(key)) % self._partitions


def checked_partitions(
    topic: str, existing: int, wanted: Collection[int] | None
) -> list[Partition]:
    """The partitions of a topic that a reader takes: all of them, or the wanted ones,
    which must exist.
    """
    numbers = range(existing) if wanted is None else sorted(set(wanted))
    missing = [number for number in numbers if not 0 <= number < existing]
    if missing:
        raise SourceError(
            f"topic {topic!r} has partitions 0 to {existing - 1}, not {missing}: choose among those"
        )
    return [Partition(topic, number) for number in numbers]


def checked_position(partition: Partition, position: int, end: int) -> int:
    """The position, which must not be beyond the end of the partition.

    The log would not be the one that the position was taken from; reading on would
    silently lose or double events.
    """
    if position > end:
        raise SourceError(
            f"{partition} ends at offset {end}, but reading should resume at {position}: the log was replaced "
            "since that position was recorded. Bring the old log back, or use another checkpoint directory"
        )
    return position


def warn_of_gap(partition: Partition, position: int, first: int) -> None:
    """Report records that were removed before they were read."""
    logger.warning(
        "%s: offsets %d to %d were removed by retention before they were read; resuming at %d",
        partition,
        position,
        first - 1,
        first,
    )


def as_topics(topics: str | Sequence[str]) -> list[str]:
    """One topic or several, as a list without repetition."""
    return [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))
