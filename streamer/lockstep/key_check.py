"""Whether a topic is keyed by user: a user's state is where the user's partition is, so
there should be one.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)

ONE_IN = 64
"""Users that are looked at: those whose checksum is a multiple of this."""
MOST = 100_000
"""Users of the sample that are remembered."""

NewUser = tuple[int, int]
"""The checksum of a user of the sample, and the partition where the user is new."""


def sample_new_users(users: Sequence[str], partitions: Sequence[int]) -> list[NewUser]:
    """Those of some users, each new in a partition, that belong to the sample."""
    found = []
    for user, partition in zip(users, partitions, strict=True):
        checksum = zlib.crc32(user.encode("utf-8", "surrogatepass"))
        if checksum % ONE_IN == 0:
            found.append((checksum, partition))
    return found


class KeyCheck:
    """Counts users of a sample that are in more than one partition, and warns of them."""

    def __init__(self) -> None:
        self.spread = 0
        """Users of the sample that were met in a second partition."""
        self._partition: dict[int, int] = {}
        self._warn_at = 1

    def observe(self, new_users: Iterable[NewUser]) -> None:
        """Take in what all ranks have met."""
        for checksum, partition in new_users:
            known = self._partition.get(checksum, partition)
            self.spread += known != partition
            if len(self._partition) < MOST:
                self._partition[checksum] = partition
        if self.spread >= self._warn_at:
            self._warn_at = 10 * self.spread
            logger.warning(
                "About %s users have events in several partitions, and each partition has its own part of their "
                "history. Let the producer use the user's id as the key of its records",
                f"{self.spread * ONE_IN:,}",
            )
