"""Where published snapshots are written to and read from; here, a directory on a disk or
a volume that trainer and servers share. `topic` has the other: a topic of Kafka.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from streamer.errors import CorruptCheckpoint, SourceUnavailable
from streamer.snapshot.chain import PARTS, Checkpoint
from streamer.snapshot.directory import (
    BrokenChain,
    SnapshotDirectory,
    number_of,
    system_errors,
)
from streamer.snapshot.lease import Lease
from streamer.snapshot.snapshot import Snapshot, SnapshotEnd, SnapshotFile

LOOK_S = 0.02
"""How often a reader looks for the next delta."""
LOOK_AROUND_S = 0.5
"""How often it looks whether there is a newer state that the next delta does not lead
to.
"""


WANTED = "base-wanted"
"""A file that a server leaves where it cannot go on without a new base."""


class Place(Protocol):
    """Where snapshots are published. All methods may raise `SourceUnavailable`, and are
    then tried again.
    """

    def begin(self) -> tuple[int, int]:
        """Start a generation; its number, and the number of the last snapshot before."""
        ...

    def write(self, end: SnapshotEnd, frames: Iterable[bytes]) -> None:
        """Write a snapshot whole, or not at all as far as readers can see; twice does no
        harm.
        """
        ...

    def prune(self, number: int) -> None:
        """Remove everything before the snapshot of this number."""
        ...

    def base_wanted(self) -> bool:
        """Whether a server has asked for a base since this was called last."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class SnapshotReader(Protocol):
    """Where a server finds the states of its trainer."""

    def poll(self, served: SnapshotEnd | None, timeout_s: float) -> Found:
        """What leads to a newer state than the one that is served: the next delta, or a
        whole state if that does not lead there; None if there is nothing in time.

        Rows of what comes may be damaged: the caller looks.

        Raises:
            CorruptCheckpoint: something is damaged, or missing; it does not come again.
            SourceUnavailable: it cannot be read now; try again.
        """
        ...

    def refuse(self) -> None:
        """What came last could not be used: it does not come again, and a whole state
        comes in its place.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


Found = Snapshot | Checkpoint | None


def check_follows(end: SnapshotEnd, served: SnapshotEnd | None) -> None:
    """See that a newer snapshot continues what is served, or is a newer start's.

    Raises:
        CorruptCheckpoint: neither.
    """
    is_same_start = served is not None and end.generation == served.generation
    if served is not None and is_same_start and end.previous != served.link:
        raise CorruptCheckpoint(f"{end} does not follow {served}")


class DirectoryPlace:
    """Publishes into a directory, which is created if it is missing."""

    def __init__(self, directory: Path) -> None:
        self._snapshots = SnapshotDirectory(directory)
        self._lease: Lease | None = None

    def begin(self) -> tuple[int, int]:
        """See `Place.begin`."""
        directory = self._snapshots.directory
        with system_errors("use", directory, SourceUnavailable):
            # whoever has published here until now is replaced at once
            self._lease = self._lease or self._snapshots.take_lease(takeover_s=0.0)
            last = max(self._snapshots.numbers(), default=0)
        # whom we replace may be about to write the next number
        return self._lease.generation, last if self._lease.is_locked else last + 1

    def write(self, end: SnapshotEnd, frames: Iterable[bytes]) -> None:
        """See `Place.write`. Nothing is synced: a restart begins with a new base."""
        assert self._lease is not None, "a generation was begun"
        path = self._snapshots.path(end.number, is_base=end.is_base)
        with system_errors("use", path.parent, SourceUnavailable):
            self._snapshots.write(path, frames, self._lease.check, sync=False)

    def prune(self, number: int) -> None:
        """See `Place.prune`."""
        with system_errors("use", self._snapshots.directory, SourceUnavailable):
            for at, path in self._snapshots.numbers().items():
                if at < number:
                    path.unlink(missing_ok=True)

    def base_wanted(self) -> bool:
        """See `Place.base_wanted`."""
        path = self._snapshots.directory / WANTED
        with system_errors("use", path.parent, SourceUnavailable):
            is_wanted = path.exists()
            path.unlink(missing_ok=True)
        return is_wanted

    def close(self) -> None:
        """See `Place.close`."""
        if self._lease is not None:
            self._lease.close()


class DirectoryReader:
    """Follows the snapshots of a directory: one that a trainer publishes to, or one of
    its checkpoints.

    Args:
        directory: where they are.
        asks: whether the trainer is asked for a base where one is needed; a directory
            that cannot be written to is followed all the same.
    """

    def __init__(self, directory: Path, *, asks: bool = False) -> None:
        self._snapshots = SnapshotDirectory(directory)
        self._asks = asks
        self._came: Path | None = None
        self._refused: set[Path] = set()
        self._looked_around = 0.0

    def poll(self, served: SnapshotEnd | None, timeout_s: float) -> Found:
        """See `SnapshotReader.poll`."""
        deadline = time.monotonic() + timeout_s
        directory = self._snapshots.directory
        with system_errors("use", directory, SourceUnavailable):
            while True:
                found = self._next_delta(served) or self._newer_state(served)
                if found is not None:
                    return found
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    # a volume that is away is not the same as a trainer that is silent
                    if served is not None:
                        directory.stat()
                    return None
                time.sleep(min(LOOK_S, left_s))

    def _next_delta(self, served: SnapshotEnd | None) -> Snapshot | None:
        # a state that consists of several parts is read as a whole
        if served is None or served.meta.get(PARTS):
            return None
        path = self._snapshots.find(served.number + 1)
        if path is None or path in self._refused:
            return None
        self._came = path
        try:
            found = SnapshotFile(path)
            if found.end.previous is not None:  # or it is a checkpoint of all rows
                check_follows(found.end, served)
        except CorruptCheckpoint:
            self.refuse()
            raise
        return found if found.end.previous == served.link else None

    def _newer_state(self, served: SnapshotEnd | None) -> Found:
        """What leads to the newest whole state, if it is newer than what is served."""
        now = time.monotonic()
        if served is not None and now - self._looked_around < LOOK_AROUND_S:
            return None
        self._looked_around = now
        numbers = self._snapshots.numbers()
        number = max(numbers, default=0)
        while number > (served.number if served is not None else 0):
            try:
                chain = self._snapshots.read_chain(number)
            except BrokenChain as error:
                # the chains of those after it lead over it, too
                number = _before(numbers, min(number, error.number))
                continue
            refused = self._refused.intersection(one.path for one in chain)
            if not refused:
                return self._leading_to(chain, served)
            number = _before(numbers, min(map(number_of, refused)))
        self._check_none_lost(served, numbers)
        return None

    def _check_none_lost(
        self, served: SnapshotEnd | None, numbers: Mapping[int, Path]
    ) -> None:
        """See that the delta after what is served is there, if later ones of the same
        start are; says so once.
        """
        if served is None:
            self._ask_for_base()
            return
        if served.number + 1 in numbers:
            return
        lost = self._snapshots.path(served.number + 1, is_base=False)
        newest = max(numbers, default=0)
        if newest <= served.number or lost in self._refused:
            return
        self._came = lost
        found = SnapshotFile(numbers[newest])
        found.close()
        check_follows(found.end, served)

    def _leading_to(
        self, chain: list[SnapshotFile], served: SnapshotEnd | None
    ) -> Found:
        """The next delta to a state, or the whole state."""
        if served is not None and not served.meta.get(PARTS):
            for one in chain:
                if one.end.previous == served.link:
                    self._came = one.path
                    return one
        for one in chain:
            self._came = one.path
            try:
                one.check()
            except CorruptCheckpoint:
                self.refuse()
                raise
            one.close()
        return self._snapshots.with_parts(chain)

    def refuse(self) -> None:
        """See `SnapshotReader.refuse`."""
        if self._came is not None:
            self._refused.add(self._came)
        self._ask_for_base()

    def _ask_for_base(self) -> None:
        if self._asks:
            with contextlib.suppress(OSError):
                (self._snapshots.directory / WANTED).touch()

    def close(self) -> None:
        """See `SnapshotReader.close`."""


def _before(numbers: Mapping[int, Path], number: int) -> int:
    """The largest of the numbers below one; 0 if there is none."""
    return max((one for one in numbers if one < number), default=0)
