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

from streamer.errors import CheckpointError, CorruptCheckpoint, StreamerError
from streamer.snapshot.chain import PARTS, Checkpoint
from streamer.snapshot.snapshot import Link, SnapshotFile

logger = logging.getLogger(__name__)

NAME = re.compile(r"ckpt-(\d{20})\.(base|delta)")
TEMPORARY = ".tmp-"
SYNC_EVERY_BYTES = 64 << 20
"""A large file goes to the disk piece by piece, not all at its end."""

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
        # 1. everything goes into a file under another name, which is synced
        temporary = path.with_name(f"{TEMPORARY}{path.name}")
        temporary.unlink(missing_ok=True)  # an earlier error may have left it
        try:
            with temporary.open("xb", buffering=0) as file:
                _write_frames(file.fileno(), frames, sync=sync)
            # 2. the rename makes it visible, at once and whole
            check()
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        # 3. the directory's sync makes that last
        if sync:
            sync_to_disk(self.directory)

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
            CorruptCheckpoint: one of them is damaged or missing.
        """
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
            snapshot = self._open(wanted.number, checked)
            if snapshot.end.link != wanted:
                raise CorruptCheckpoint(
                    f"a later delta does not continue {snapshot.path}: their checksums differ"
                )
            chain.append(snapshot)
        return chain[::-1]

    def _open(self, number: int, checked: Checked | None) -> SnapshotFile:
        """The snapshot of a number."""
        path = self.path(number, is_base=True)
        if not path.exists():
            path = self.path(number, is_base=False)
        if not path.exists():
            raise CorruptCheckpoint(
                f"{self.directory}/{path.stem}, which later ones need, is missing"
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
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of another when it is whole and on disk.

    Raises:
        StreamerError: the system does not let us write.
    """
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StreamerError(
            f"cannot write {path}: {error.strerror or error}. Check its directory, "
            "permissions and free space"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


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
    if sync:
        os.fsync(descriptor)


@contextlib.contextmanager
def checkpoint_errors(what: str, directory: Path) -> Iterator[None]:
    """Errors of the system as ours, with what was tried and where."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot {what} {directory}: {error}. Check free space and permissions; "
            "a start with a smaller --keep-checkpoints removes older ones first"
        ) from error
