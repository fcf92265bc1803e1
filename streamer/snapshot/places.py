"""Where published snapshots are written to and read from; here, a directory on a disk or
a volume that trainer and servers share. `topic` has the other: a topic of Kafka.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from streamer.errors import CorruptCheckpoint, SourceUnavailable
from streamer.snapshot.chain import MAX_DELTAS, PARTS, Checkpoint
from streamer.snapshot.directory import (
    TEMPORARY,
    Checked,
    SnapshotDirectory,
    number_of,
)
from streamer.snapshot.lease import Lease
from streamer.snapshot.snapshot import Snapshot, SnapshotEnd, SnapshotFile, SnapshotId

LOOK_S = 0.02
"""How often a reader looks for the next delta."""
LOOK_AROUND_S = 0.5
"""How often it looks whether there is a newer state that the next delta does not lead
to.
"""


class Place(Protocol):
    """Where snapshots are published. All methods may raise `SourceUnavailable`, and are
    then tried again.
    """

    def begin(self) -> tuple[int, int]:
        """Start a generation; its number, and the number of the last snapshot before."""
        ...

    def write(self, ident: SnapshotId, frames: Iterable[bytes]) -> None:
        """Write a snapshot whole, or not at all as far as readers can see; twice does no
        harm. May be called on two threads, of bases and of deltas.
        """
        ...

    def prune(self, base: SnapshotId) -> None:
        """Remove what no reader needs any more: everything before the base before this
        one.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class SnapshotReader(Protocol):
    """Where a server finds the states of its trainer."""

    def poll(self, served: SnapshotEnd | None, timeout_s: float) -> Found:
        """What leads to a newer state than the one that is served: the next delta, or a
        whole state if that does not lead there; None if there is nothing in time.

        What comes may be damaged, or not follow: the caller looks.

        Raises:
            CorruptCheckpoint: something is damaged; it does not come again.
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


class DirectoryPlace:
    """Publishes into a directory, which is created if it is missing."""

    def __init__(self, directory: Path) -> None:
        self._snapshots = SnapshotDirectory(directory)
        self._lease: Lease | None = None
        self._base_before: int | None = None

    def begin(self) -> tuple[int, int]:
        """See `Place.begin`."""
        directory = self._snapshots.directory
        with _unavailable(directory):
            directory.mkdir(parents=True, exist_ok=True)
            # whoever has published here until now is replaced at once
            self._lease = self._lease or Lease(directory, takeover_s=0.0)
            last = max(self._snapshots.numbers(), default=0)
            for left_by_a_crash in directory.glob(f"{TEMPORARY}*"):
                left_by_a_crash.unlink(missing_ok=True)
        # whom we replace may be about to write the next number
        return self._lease.generation, last if self._lease.is_locked else last + 1

    def write(self, ident: SnapshotId, frames: Iterable[bytes]) -> None:
        """See `Place.write`. Nothing is synced: a restart begins with a new base."""
        assert self._lease is not None, "a generation was begun"
        path = self._snapshots.path(ident.number, is_base=ident.is_base)
        with _unavailable(path.parent):
            self._snapshots.write(path, frames, self._lease.check, sync=False)

    def prune(self, base: SnapshotId) -> None:
        """See `Place.prune`."""
        keep = self._base_before
        self._base_before = base.number
        if keep is None:
            return
        with _unavailable(self._snapshots.directory):
            for path in self._snapshots.paths():
                number = number_of(path)
                if number < keep or (number == keep and path.suffix == ".delta"):
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """See `Place.close`."""
        if self._lease is not None:
            self._lease.close()


class DirectoryReader:
    """Follows the snapshots of a directory: one that a trainer publishes to, or one of
    its checkpoints.
    """

    def __init__(self, directory: Path) -> None:
        self._snapshots = SnapshotDirectory(directory)
        self._came: Path | None = None
        self._came_whole = False
        self._refused: set[Path] = set()  # do not follow what was served
        self._damaged: set[Path] = set()  # or cannot be used for another reason
        self._looked_around = 0.0

    def poll(self, served: SnapshotEnd | None, timeout_s: float) -> Found:
        """See `SnapshotReader.poll`."""
        deadline = time.monotonic() + timeout_s
        directory = self._snapshots.directory
        with _unavailable(directory):
            while True:
                found = self._next_delta(served) or self._newer_state(served)
                if found is not None:
                    return found
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    # a volume that is away is not the same as a trainer that is silent
                    directory.stat()
                    return None
                time.sleep(min(LOOK_S, left_s))

    def _next_delta(self, served: SnapshotEnd | None) -> Snapshot | None:
        # a state that consists of several parts is read as a whole
        if served is None or served.meta.get(PARTS):
            return None
        path = self._snapshots.path(served.number + 1, is_base=False)
        if path in self._refused or not path.exists():
            return None
        self._came = path
        self._came_whole = False
        try:
            return SnapshotFile(path)
        except CorruptCheckpoint:
            self.refuse()
            raise

    def _newer_state(self, served: SnapshotEnd | None) -> Found:
        """What leads to the newest whole state, if it is newer than what is served."""
        self._came_whole = False
        now = time.monotonic()
        if served is not None and now - self._looked_around < LOOK_AROUND_S:
            return None
        self._looked_around = now
        checked: Checked = {}
        at = served.number if served is not None else 0
        for number in reversed(self._snapshots.numbers()):
            if number <= at:
                return None
            try:
                found = self._leading_to(number, served, checked)
            except CorruptCheckpoint:  # the state before it may be whole
                for path, result in checked.items():
                    if isinstance(result, CorruptCheckpoint):
                        self._damaged.add(path)
                continue
            if found is not None:
                return found
        return None

    def _leading_to(
        self, number: int, served: SnapshotEnd | None, checked: Checked
    ) -> Found:
        """The next delta to a state, or the whole state, or what is needed first of it;
        None if it was refused.
        """
        chain = self._snapshots.read_chain(number, {}, whole=False)
        paths = [one.path for one in chain]
        states = [one.end.link for one in chain]
        has_parts = served is not None and served.meta.get(PARTS)
        if served is not None and served.link in states and not has_parts:
            self._came = paths[states.index(served.link) + 1]
            if self._came not in self._refused:
                return SnapshotFile(self._came)
        if not self._damaged.isdisjoint(paths):
            return None
        self._came_whole = True
        # not more files at once than a chain of checkpoints has
        last = chain[: MAX_DELTAS + 1][-1].end.number
        self._came = self._snapshots.path(last, is_base=last == chain[0].end.number)
        return self._snapshots.with_parts(self._snapshots.read_chain(last, checked))

    def refuse(self) -> None:
        """See `SnapshotReader.refuse`."""
        if self._came is not None:
            refused = self._damaged if self._came_whole else self._refused
            refused.add(self._came)

    def close(self) -> None:
        """See `SnapshotReader.close`."""


@contextlib.contextmanager
def _unavailable(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceUnavailable(
            f"cannot use {directory}: {error.strerror or error}. Check its mount, "
            "permissions and free space"
        ) from error
