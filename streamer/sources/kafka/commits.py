"""What a committed offset says: who trained a partition, from where to where, and which log it is of."""

from __future__ import annotations

from typing import NamedTuple

from kafka import OffsetAndMetadata

FORMAT = "streamer-1"


class Commit(NamedTuple):
    """A committed offset; its metadata in Kafka is the text of the other fields.

    A checkpoint rules over the commits of its own trainer only: what that trainer has trained after the checkpoint is
    lost, what others have trained is not.
    """

    offset: int
    trainer: str = ""
    """Who committed it; "" if it was not a trainer."""
    topic_id: str = ""
    since: int = 0
    """Where this trainer began: it has trained from there to `offset`, and others what is before."""
    partitions: int = 0
    """How many partitions the topic had when the group began to read it: those that have come since begin at 0."""

    @classmethod
    def of(cls, committed: OffsetAndMetadata) -> Commit:
        """Return what was committed, by whomever."""
        words = (committed.metadata or "").split()
        if len(words) != 5 or words[0] != FORMAT:
            return cls(committed.offset)
        _, trainer, topic_id, since, partitions = words
        return cls(committed.offset, trainer, topic_id.strip("-"), int(since), int(partitions))

    def for_kafka(self) -> OffsetAndMetadata:
        """Return it as the client commits it; without a trainer it says nothing but the offset."""
        words = (FORMAT, self.trainer, self.topic_id or "-", self.since, self.partitions)
        return OffsetAndMetadata(self.offset, " ".join(map(str, words)) if self.trainer else "", -1)
