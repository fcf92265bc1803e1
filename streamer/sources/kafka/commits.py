"""What a committed offset says: who trained a partition, from where to where, and which
log it is of.
"""

from __future__ import annotations

from typing import NamedTuple

from kafka import OffsetAndMetadata

FORMAT = "streamer-1"


class Commit(NamedTuple):
    """A committed offset; its metadata in Kafka is the text of the other fields.

    A checkpoint rules over the commits of its own trainer only: what that trainer has
    trained after the checkpoint is lost, what others have trained is not.
    """

    offset: int
    trainer: str = ""
    """Who committed it; "" if it was not a trainer."""
    topic_id: str = ""
    since: int = 0
    """Where this trainer began: it has trained from there to `offset`, and others what
    is before.
    """
    partitions: int = 0
    """How many partitions the topic had when the group began to read it: those that
    have come since begin at 0.
    """
    no_record_before: int = 0
    """Between `offset` and this there are marks of transactions and aborted records
    only; 0 if nobody knows.
    """

    @classmethod
    def of(cls, committed: OffsetAndMetadata) -> Commit:
        """Return what was committed, by whomever."""
        words = (committed.metadata or "").split()
        if len(words) not in (5, 6) or words[0] != FORMAT:
            return cls(committed.offset)
        _, trainer, topic_id, *numbers = words
        return cls(committed.offset, trainer, topic_id.strip("-"), *map(int, numbers))

    def reaches(self, end: int) -> bool:
        """Whether no record is left before an offset."""
        return max(self.offset, self.no_record_before) >= end

    def for_kafka(self) -> OffsetAndMetadata:
        """Return it as the client commits it; without a trainer it says nothing but the
        offset.
        """
        words: tuple[object, ...] = (
            FORMAT,
            self.trainer,
            self.topic_id or "-",
            self.since,
            self.partitions,
        )
        if self.no_record_before > self.offset:
            words += (self.no_record_before,)
        return OffsetAndMetadata(
            self.offset, " ".join(map(str, words)) if self.trainer else "", -1
        )
