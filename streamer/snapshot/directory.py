"""A directory of snapshots: names, whole files, and the chains that they form.

DIR/ckpt-00000000000000000042.base    every row
DIR/ckpt-00000000000000000043.delta   the rows that changed since 42
DIR/.tmp-...                          being written
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from streamer.errors import (
    CheckpointError,
    CorruptCheckpoint,
    StreamerError,
    file_advice,
)
from streamer.snapshot.chain import PARTS, Checkpoint
from streamer.snapshot.lease import Lease
from streamer.snapshot.snapshot import Link, SnapshotFile

logger = logging.getLogger(__name__)

NAME = re.compile(r"ckpt-(\d{20})\.(base|delta)")
TEMPORARY = ".tmp-"
SYNC_EVERY_BYTES = 64 << 20
"""A large file goes to the disk piece by piece, not all at its end."""

COPIED_BYTES = 1 << 24
"""Of a file that is copied, at a time."""


class BrokenChain(CorruptCheckpoint):
    """A chain that cannot be read back beyond the snapshot of a number."""

    def __init__(self, problem: str, number: int) -> None:
        super().__init__(problem)
        self.number = number


Checked = dict[Path, SnapshotFile | CorruptCheckpoint]
"""Files that were read and checked, or what is wrong with them."""


class SnapshotDirectory:
    """The snapshots of a directory; reading needs no lease, and may happen beside the
    trainer that writes.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    # files ----------------------------------------------------------------------------

    def path(self, number: int, *, is_base: bool) -> Path:
        """Where a snapshot is, or would be."""
        suffix = ".base" if is_base else ".delta"
        return self.directory / f"ckpt-{number:020d}{suffix}"

    def find(self, number: int) -> Path | None:
        """The snapshot of a number; None if there is none."""
        for is_base in (True, False):
            path = self.path(number, is_base=is_base)
            if path.exists():
                return path
        return None

    def paths(self) -> list[Path]:
        """All snapshots, oldest first, without looking into them."""
        if not self.directory.is_dir():
            return []
        return sorted(
            one for one in self.directory.iterdir() if NAME.fullmatch(one.name)
        )

    def numbers(self) -> dict[int, Path]:
        """The snapshots by their numbers, ascending."""
        return {number_of(path): path for path in self.paths()}

    def write(
        self,
        path: Path,
        frames: Iterable[bytes],
        check: Callable[[], None],
        *,
        sync: bool = True,
    ) -> None:
        """Write a snapshot; it is there whole, or not at all.

        Args:
            path: from `path`.
            frames: of which it consists.
            check: called before it becomes visible; may raise.
            sync: whether it is to be safe on disk when this returns.
        """
        with whole_file(path, sync=sync) as file:
            _write_frames(file.fileno(), frames, sync=sync)
            check()

    def take_lease(self, takeover_s: float | None) -> Lease:
        """Become the one that writes here, in a directory that is made if it is missing;
        see `Lease`.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        lease = Lease(self.directory, takeover_s)
        for left_by_a_crash in self.directory.glob(f"{TEMPORARY}*"):
            left_by_a_crash.unlink(missing_ok=True)
        return lease

    # chains ---------------------------------------------------------------------------

    def load(self) -> Checkpoint | None:
        """The newest snapshot whose chain is whole; None if there is no snapshot at all.

        Damaged files are named in a warning, with the reason.

        Raises:
            CorruptCheckpoint: there are snapshots, but none is whole.
            IncompatibleCheckpoint: the newest was written by another version of
                Streamer.
        """
        while numbers := self.numbers():
            checked: Checked = {}
            problems: dict[str, list[int]] = {}
            for number in reversed(numbers):
                try:
                    found = self.with_parts(self.read_chain(number, checked))
                except CorruptCheckpoint as error:
                    # a trainer beside us may have removed it: then there are newer ones
                    if numbers[number].exists():
                        problems.setdefault(str(error), []).append(number)
                    continue
                for problem, skipped in problems.items():
                    logger.warning(
                        "Skipped %d unusable checkpoint%s, trying the one before: %s",
                        len(skipped), "s" if len(skipped) > 1 else "", problem,
                    )  # fmt: skip
                return found
            if sum(map(len, problems.values())) == len(numbers):
                raise CorruptCheckpoint(
                    f"every checkpoint in {self.directory} is corrupt: "
                    f"{'; '.join(problems)}. Restore one from a backup, or begin with "
                    "another checkpoint directory"
                )
            # a trainer removed what we found: look again
        return None

    def load_number(self, number: int) -> Checkpoint:
        """The state at one snapshot.

        Raises:
            CorruptCheckpoint: a file of its chain is damaged or missing.
        """
        return self.with_parts(self.read_chain(number, {}))

    def verify(self) -> dict[Path, str | None]:
        """Check every snapshot with its chain: what is wrong with it, None if nothing
        is.
        """
        checked: Checked = {}
        found: dict[Path, str | None] = {}
        for number, path in self.numbers().items():
            try:
                self.read_chain(number, checked)
                found[path] = None
            except CorruptCheckpoint as error:
                found[path] = str(error)
        return found

    def copy(self, directory: str | Path, number: int | None = None) -> Checkpoint:
        """Copy a checkpoint (None: the newest) and its chain into another directory,
        also beside a trainer.

        What a trainer removes meanwhile is copied nevertheless: it was opened before.

        Raises:
            CheckpointError: there is none, the directory has checkpoints of its own, or
                it cannot be written to.
        """
        found = self.load() if number is None else self.load_number(number)
        if found is None:
            raise CheckpointError(f"there is no checkpoint in {self.directory}")
        target = SnapshotDirectory(directory)
        with (
            system_errors("copy a checkpoint into", target.directory),
            contextlib.closing(target.take_lease(None)),
        ):
            if target.paths():
                raise CheckpointError(
                    f"{directory} has checkpoints already: choose a new or an empty directory"
                )
            # base first: a crash in between leaves a whole, shorter chain
            for snapshot in found.files():
                path = target.directory / snapshot.path.relative_to(self.directory)
                path.parent.mkdir(exist_ok=True)
                _copy_file(snapshot, path)
        return found

    def with_parts(self, chain: Sequence[SnapshotFile]) -> Checkpoint:
        """The state at the end of a chain, with the parts of it that are in further
        directories.

        Raises:
            CorruptCheckpoint: a part is damaged or missing.
        """
        parts = []
        for name, *link in chain[-1].meta.get(PARTS, []):
            part = SnapshotDirectory(self.directory / name).read_chain(link[0], {})
            if part[-1].end.link != Link(*link):
                raise CorruptCheckpoint(
                    f"{part[-1].path} is not the one that {chain[-1].path} needs"
                )
            parts.append(part)
        return Checkpoint(chain, parts)

    def read_chain(
        self, number: int, checked: Checked | None = None
    ) -> list[SnapshotFile]:
        """A snapshot and all that it needs, base first.

        Args:
            number: of the snapshot.
            checked: remembers which files were checked; None: only their ends are read,
                and the files are closed again.

        Raises:
            BrokenChain: one of them is damaged or missing.
        """
        at = number
        try:
            snapshot = self._open(number, checked)
            chain = [snapshot]
            first = snapshot.end.first
            if not first:
                raise CorruptCheckpoint(f"{snapshot.path}: more rows are still to come")
            while snapshot.end.number > first:
                wanted = snapshot.end.previous
                if wanted is None:
                    raise CorruptCheckpoint(
                        f"{snapshot.path} does not name what it changes"
                    )
                at = wanted.number
                snapshot = self._open(at, checked)
                if snapshot.end.link != wanted:
                    raise CorruptCheckpoint(
                        f"a later delta does not continue {snapshot.path}: "
                        "their checksums differ"
                    )
                chain.append(snapshot)
        except CorruptCheckpoint as error:
            raise BrokenChain(str(error), at) from error
        return chain[::-1]

    def _open(self, number: int, checked: Checked | None) -> SnapshotFile:
        """The snapshot of a number."""
        path = self.find(number)
        if path is None:
            name = self.path(number, is_base=True).stem
            raise CorruptCheckpoint(
                f"{self.directory}/{name}, which later ones need, is missing"
            )
        if checked is None:
            found = SnapshotFile(path)
            found.close()
            return found
        if path not in checked:
            try:
                found = SnapshotFile(path)
                found.check()
                checked[path] = found
            except CorruptCheckpoint as error:
                checked[path] = error
        known = checked[path]
        if isinstance(known, CorruptCheckpoint):
            raise known
        return known


def number_of(path: Path) -> int:
    """The number of a snapshot.

    Raises:
        CheckpointError: it is none.
    """
    match = NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(
            f"there is no checkpoint {path}: give the path of a .base or .delta file"
        )
    return int(match[1])


@contextlib.contextmanager
def whole_file(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A file to write that takes the place of another when it is whole, and on disk.

    Args:
        path: of the file.
        sync: whether it is to be safe on disk when the block has ended.
    """
    # 1. everything goes into a file under another name, which is synced
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        # 2. the rename makes it visible, at once and whole
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    # 3. the directory's sync makes that last
    if sync:
        sync_to_disk(path.parent)


def _copy_file(snapshot: SnapshotFile, path: Path) -> None:
    """Make a file of the same content, safe on disk: the same file, if the disk is the
    same.
    """
    try:
        os.link(snapshot.path, path)
        sync_to_disk(path.parent)
    except OSError:  # another disk, or the file was removed meanwhile
        with whole_file(path) as file:
            for at in range(0, snapshot.size_bytes, COPIED_BYTES):
                file.write(snapshot.read_at(at, COPIED_BYTES))


def sync_to_disk(path: Path) -> None:
    """Sync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_frames(descriptor: int, frames: Iterable[bytes], *, sync: bool) -> None:
    unsynced = 0
    for frame in frames:
        left = memoryview(frame)
        while left:
            left = left[os.write(descriptor, left) :]
        unsynced += len(frame)
        if sync and unsynced >= SYNC_EVERY_BYTES:
            os.fdatasync(descriptor)
            unsynced = 0


@contextlib.contextmanager
def system_errors(
    what: str, path: Path, kind: type[StreamerError] = CheckpointError
) -> Iterator[None]:
    """Errors of the system as ours, with what was tried and where."""
    try:
        yield
    except OSError as error:
        advice = file_advice(error, "choose another directory")
        raise kind(
            f"cannot {what} {path}: {error.strerror or error}; {advice}"
        ) from error
