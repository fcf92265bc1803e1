"""The offset ledger: which offset may be committed, and where reading resumes after an
assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from streamer.sources.base import Partition, Position, Positions


@dataclass(slots=True)
class PartitionOffsets:
    """What is known of one partition. Every offset is the next one: all records before
    it are done.
    """

    position: int | None = (
        None  # the next to train; None until the source has said where reading starts
    )
    log: Position = field(default_factory=lambda: Position(0))
    """Any position of the log that ours is of, as far as is known."""
    started: int | None = (
        None  # where the source began to read it since it was assigned last; None until that is known
    )
    checkpointed: int | None = None  # the position in our newest checkpoint
    saved: int | None = None  # the same, until all of it is committed
    committed: int | None = None  # what was committed last
    assigned: bool = False
    releasing: bool = False  # not ours any more, but held back until its position is saved and committed

    @property
    def may_commit(self) -> bool:
        """Whether we read it, or did until now."""
        return (self.assigned or self.releasing) and self.started is not None


class OffsetSnapshot(NamedTuple):
    """What a checkpoint holds of the stream; it belongs to what is trained between two
    batches.
    """

    positions: dict[Partition, Position]
    """How far each partition is trained that is ours, or was ours earlier."""
    releasing: dict[Partition, int]
    """Those that others get as soon as this snapshot is saved and committed."""


class OffsetLedger:
    """The offsets of every partition that is or was ours. Not for several threads at
    once.

    Args:
        positions: those of a checkpoint's snapshot.
    """

    def __init__(self, positions: Positions | None = None) -> None:
        self.moved_back = False
        """Whether reading began before a position that we had: its log became shorter,
        or was recreated.
        """
        self._partitions: dict[Partition, PartitionOffsets] = {}
        for partition, offset in (positions or {}).items():
            self._partitions[partition] = offsets = PartitionOffsets(
                int(offset), checkpointed=int(offset)
            )
            _note_log(offsets, offset)

    def assign(self, partitions: Iterable[Partition]) -> dict[Partition, Position]:
        """Return how far these partitions are trained, which are ours now; where
        nothing is known, the source decides.
        """
        for partition in (new := list(partitions)):
            offsets = self._partitions.setdefault(partition, PartitionOffsets())
            offsets.assigned = True
            offsets.releasing = False
            offsets.started = None
        return {p: at for p, at in self.snapshot().positions.items() if p in new}

    def start(self, positions: Positions) -> None:
        """Note where the source has started to read partitions that were assigned, and
        of which log the positions are.

        Others may have trained beyond our position: then the source has started at
        their committed offset. If it has started where our checkpoint ends, that is to
        be committed: an earlier commit of it may have been refused or lost.
        """
        for partition, offsets in self._known(positions):
            if not offsets.assigned:
                continue
            _note_log(offsets, positions[partition])
            if offsets.started is None:
                self.moved_back |= positions[partition] < (offsets.position or 0)
                offsets.started = offsets.position = int(positions[partition])
                is_saved = offsets.checkpointed == offsets.started
                offsets.saved = offsets.started if is_saved else None

    def train(self, positions: Positions) -> None:
        """Note that everything before these positions is trained."""
        for partition, offsets in self._known(positions):
            if offsets.assigned:
                offsets.position = positions[partition]

    def save(self, positions: Positions) -> None:
        """Note that a checkpoint holds these positions.

        Nothing is to be committed of partitions that are others' now, nor of those that
        others had since, or whose topic was recreated: a checkpoint that is saved late
        is older than what they have committed.
        """
        for partition, offsets in self._known(positions):
            at = positions[partition]
            # "" if the source had not said of which log it was when it was trained
            if getattr(at, "topic_id", "") not in ("", offsets.log.topic_id):
                continue
            offsets.checkpointed = int(at)
            if offsets.may_commit and at >= (offsets.started or 0):
                offsets.saved = int(at)

    def take_commit(
        self, acknowledged: Callable[[Positions], Positions]
    ) -> dict[Partition, int]:
        """Return the offsets to commit now: what is saved, as far as the other trainers
        have acknowledged it.

        They never go back. The rest waits for the next call. Whoever got the partition
        next would resume after what is committed; and if we died before the other
        trainers had heard of the events before it, they never would.
        """
        saved: dict[Partition, int] = {}
        for partition, offsets in self._partitions.items():
            if offsets.may_commit and offsets.saved is not None:
                saved[partition] = offsets.saved
        commit: dict[Partition, int] = {}
        for partition, offset in acknowledged(saved).items() if saved else ():
            offsets = self._partitions[partition]
            if offsets.committed is None or offset > offsets.committed:
                commit[partition] = offsets.committed = offset
            if offset >= saved[partition]:
                offsets.saved = None
        return commit

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """Note that these partitions are ours no longer; those that we read are
        releasing until `release` is called.
        """
        for _, offsets in self._known(partitions):
            if offsets.assigned:
                offsets.assigned = False
                offsets.releasing = offsets.started is not None

    def release(self, partitions: Iterable[Partition]) -> None:
        """Note that these partitions are others' now: nothing more is committed of
        them.
        """
        for _, offsets in self._known(partitions):
            if not offsets.assigned:
                offsets.releasing = False
                offsets.saved = None
                offsets.committed = None

    def _known(
        self, partitions: Iterable[Partition]
    ) -> list[tuple[Partition, PartitionOffsets]]:
        return [(p, self._partitions[p]) for p in partitions if p in self._partitions]

    def snapshot(self) -> OffsetSnapshot:
        """Return the positions as they are now."""
        known = [
            (p, o, o.position)
            for p, o in self._partitions.items()
            if o.position is not None
        ]
        return OffsetSnapshot(
            {p: o.log.at(at) for p, o, at in known},
            self.releasing(),
        )

    def releasing(self) -> dict[Partition, int]:
        """Return the positions of partitions that wait to be released."""
        return {
            p: o.position
            for p, o in self._partitions.items()
            if o.releasing and o.position is not None
        }

    def assigned(self) -> dict[Partition, int | None]:
        """Return our partitions, each with the next offset to train if that is known."""
        return {
            p: None if o.started is None else o.position
            for p, o in self._partitions.items()
            if o.assigned
        }


def _note_log(offsets: PartitionOffsets, position: int) -> None:
    """Note of which log a position is, if it says so."""
    if isinstance(position, Position):
        offsets.log = position
