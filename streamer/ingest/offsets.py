"""The offset ledger: which offset may be committed, and where reading resumes after an assignment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from streamer.sources.base import Partition, PositionOrCommitted, Positions


@dataclass(slots=True)
class PartitionOffsets:
    """What is known of one partition. Every offset is the next one: all records before it are done."""

    position: int | None = None  # the next to train; None until the source has said where reading starts
    saved: int | None = None  # the position in a checkpoint, until all of it is committed
    committed: int | None = None  # what was committed last
    assigned: bool = False
    released: bool = False  # others may have trained beyond our position since
    releasing: bool = False  # released, but held back until its position is saved and committed


class OffsetSnapshot(NamedTuple):
    """What a checkpoint holds of the stream; it belongs to what is trained between two batches."""

    positions: dict[Partition, int]
    """The next offset to train of each of our partitions."""
    released: dict[Partition, int]
    """The same of partitions that were ours earlier."""
    releasing: dict[Partition, int]
    """Those of `released` that others get as soon as this snapshot is saved and committed."""


class OffsetLedger:
    """The offsets of every partition that is or was ours. Not for several threads at once.

    At the first assignment the checkpoint's positions rule over what the group has committed: what was trained after
    the checkpoint is lost. A partition that is assigned later was others' meanwhile, so reading resumes at our position
    or at the committed offset, whichever is later.

    Args:
        positions: those of a checkpoint's snapshot.
        released: the same.
    """

    def __init__(self, positions: Positions | None = None, released: Positions | None = None) -> None:
        self._partitions = {p: PartitionOffsets(offset, released=True) for p, offset in (released or {}).items()}
        self._partitions |= {p: PartitionOffsets(offset) for p, offset in (positions or {}).items()}

    def assign(self, partitions: Iterable[Partition], at_most: Positions | None = None) -> dict[Partition, int]:
        """Return where to resume these partitions, which are ours now; where nothing is known, the source decides.

        `at_most` are offsets beyond which reading must not resume.
        """
        new = {p: self._partitions.setdefault(p, PartitionOffsets()) for p in partitions}
        resume: dict[Partition, int] = {}
        for partition, offsets in new.items():
            offsets.assigned, offsets.releasing = True, False
            if offsets.position is not None:
                offsets.position = min(offsets.position, (at_most or {}).get(partition, offsets.position))
                resume[partition] = PositionOrCommitted(offsets.position) if offsets.released else offsets.position
        for offsets in self._partitions.values() if new else ():
            offsets.released |= not offsets.assigned  # the checkpoint's others are not ours any more
        return resume

    def start(self, positions: Positions) -> None:
        """Note where the source has started to read partitions that were assigned."""
        for partition, offsets in self._known(positions):
            if offsets.assigned and (offsets.position is None or offsets.released):
                offsets.position, offsets.released = positions[partition], False

    def train(self, positions: Positions) -> None:
        """Note that everything before these positions is trained."""
        for partition, offsets in self._known(positions):
            if offsets.assigned:
                offsets.position = positions[partition]

    def save(self, positions: Positions) -> None:
        """Note that a checkpoint holds these positions; of partitions that are others' now nothing is noted."""
        for partition, offsets in self._known(positions):
            if offsets.assigned or offsets.releasing:
                offsets.saved = positions[partition]

    def take_commit(self, acknowledged: Callable[[Positions], Positions]) -> dict[Partition, int]:
        """Return the offsets to commit now: what is saved, as far as the other trainers have acknowledged it.

        The rest waits for the next call. Whoever got the partition next would resume after what is committed; and if we
        died before the other trainers had heard of the events before it, they never would.
        """
        ours = [(p, offsets) for p, offsets in self._partitions.items() if offsets.assigned or offsets.releasing]
        saved = {p: offsets.saved for p, offsets in ours if offsets.saved is not None}
        commit: dict[Partition, int] = {}
        for partition, offset in acknowledged(saved).items() if saved else ():
            offsets = self._partitions[partition]
            if offset != offsets.committed:
                commit[partition] = offsets.committed = offset
            if offset >= saved[partition]:
                offsets.saved = None
        return commit

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """Note that these partitions are ours no longer; those that we read are releasing until `release` is called."""
        for _, offsets in self._known(partitions):
            if offsets.assigned:
                offsets.releasing = offsets.position is not None and not offsets.released
                offsets.assigned, offsets.released = False, True

    def release(self, partitions: Iterable[Partition]) -> None:
        """Note that these partitions are others' now: nothing more is committed of them."""
        for _, offsets in self._known(partitions):
            if not offsets.assigned:
                offsets.releasing, offsets.saved, offsets.committed = False, None, None

    def _known(self, partitions: Iterable[Partition]) -> list[tuple[Partition, PartitionOffsets]]:
        return [(p, self._partitions[p]) for p in partitions if p in self._partitions]

    def snapshot(self) -> OffsetSnapshot:
        """Return the positions as they are now; before the first assignment, the checkpoint's."""
        known = [(p, o, o.position) for p, o in self._partitions.items() if o.position is not None]
        positions = {p: position for p, offsets, position in known if not offsets.released}
        released = {p: position for p, offsets, position in known if offsets.released}
        return OffsetSnapshot(positions, released, self.releasing())

    def releasing(self) -> dict[Partition, int]:
        """Return the positions of partitions that wait to be released."""
        return {p: o.position for p, o in self._partitions.items() if o.releasing and o.position is not None}

    def assigned(self) -> dict[Partition, int | None]:
        """Return our partitions, each with the next offset to train if that is known."""
        return {p: None if o.released else o.position for p, o in self._partitions.items() if o.assigned}
