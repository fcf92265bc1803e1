"""How far each partition is trained: what a checkpoint holds of the stream, and what a rebalance goes by."""

from __future__ import annotations

from collections.abc import Iterable

from streamer.sources.base import AtLeast, Partition, Positions


class Progress:
    """The next offset to train of every partition that is or was ours. Not for several threads at once.

    At the first assignment the checkpoint's positions rule: what was trained after it is forgotten, whatever the group
    has committed. A partition that comes later was others' meanwhile, so it goes on where they or we came furthest.

    Args:
        ours: positions of a checkpoint, of partitions that were ours when it was written.
        left: the same of partitions that were others' by then.
    """

    def __init__(self, ours: Positions | None = None, left: Positions | None = None) -> None:
        self.assigned: set[Partition] = set()
        self.ours: dict[Partition, int] = {}
        """Our partitions, once it is known where they begin."""
        self.left: dict[Partition, int] = dict(left or {})
        """How far we came in partitions that are not ours now."""
        self._checkpoint = dict(ours or {})

    def assign(self, partitions: Iterable[Partition], latest: Positions | None = None) -> dict[Partition, int]:
        """These partitions are ours now; answers where to go on, of some of them at the latest."""
        new = set(partitions)
        for known in (self._checkpoint, self.left):
            known |= {p: min(at, known[p]) for p, at in (latest or {}).items() if p in known}
        ruled = {p: self._checkpoint[p] for p in new if p in self._checkpoint}
        if new:
            self.left |= {p: at for p, at in self._checkpoint.items() if p not in ruled}
            self._checkpoint = {}
        self.assigned |= new
        self.ours |= ruled
        return ruled | {p: AtLeast(self.left[p]) for p in new if p in self.left}

    def positions(self) -> dict[Partition, int]:
        """Of each of our partitions the next offset to train; before any was assigned, those of the checkpoint."""
        return self._checkpoint | self.ours

    def begin(self, positions: Positions) -> None:
        """Reading begins here, or has begun before."""
        for partition, position in positions.items():
            if partition in self.assigned and partition not in self.ours:
                self.ours[partition] = position
                self.left.pop(partition, None)

    def train(self, positions: Positions) -> None:
        """Everything before these positions is trained."""
        self.ours |= {p: position for p, position in positions.items() if p in self.assigned}

    def revoke(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """These partitions are no longer ours; answers how far we came."""
        gone = set(partitions)
        self.assigned -= gone
        came = {p: self.ours.pop(p) for p in gone if p in self.ours}
        self.left |= came
        return came
