"""A directory of checkpoints: points, and the chains that they form."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.errors import CheckpointError, CorruptCheckpoint, Superseded
from streamer.snapshot.frames import Arrays, Chunk
from streamer.snapshot.points import Link, Point, sync, write_point

logger = logging.getLogger(__name__)

LOCK = ".lock"
TRAINER = "trainer-id"
TEMPORARY = ".tmp-"
PIN = ".pin"
POINT = re.compile(r"ckpt-(\d{20})\.(base|delta)")
MAX_DELTAS = 250
"""A new base is due when there are more, however small they are: each is a file to open
at a restart.
"""


RANKS = "ranks"
"""In the meta of a group's checkpoint: number and CRC-32 of the point of each rank but
0.
"""


def rank_directory(directory: Path, rank: int) -> Path:
    """Where a rank of a group writes its points."""
    return directory / f"rank-{rank}" if rank else directory


class Checkpoint:
    """The state at one point: the base, and the deltas up to it, in their order. All
    were checked.

    That of a group has the chains of its ranks, too: rows of users are numbered on from
    rank to rank.
    """

    def __init__(
        self, chain: Sequence[Point], ranks: Sequence[Sequence[Point]] = ()
    ) -> None:
        self.chain = list(chain)
        self.path = chain[-1].path
        self.number = chain[-1].link.number
        self.meta = chain[-1].meta
        self._chains = [chain, *ranks]
        self._first = [0]
        for points in self._chains:
            self._first.append(self._first[-1] + _users(points[-1].arrays()))
        self.users = self._first[-1]
        """How many rows of users `arrays` are for."""

    def chunks(self, kind: str | None = None) -> Iterator[Chunk]:
        """Rows and what they hold, or those of one kind; what comes later takes the
        place of what came before.
        """
        for first, points in zip(self._first, self._chains, strict=False):
            for point in points:
                for chunk in point.chunks():
                    if kind in (None, chunk.kind):
                        yield (
                            chunk._replace(rows=chunk.rows + first)
                            if chunk.kind == "users"
                            else chunk
                        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is not rows."""
        arrays = self.chain[-1].arrays()
        return (
            arrays if self.users == self._first[1] else with_users(arrays, self.users)
        )

    @property
    def links(self) -> list[ChainLink]:
        """What a delta can be added to; nothing after a group, whose users have other
        rows in one process.
        """
        return (
            []
            if len(self._chains) > 1
            else [ChainLink(p.path, p.link, p.size_bytes) for p in self.chain]
        )

    @property
    def size_bytes(self) -> int:
        """Of all files that are needed to restore it."""
        return sum(point.size_bytes for points in self._chains for point in points)


def with_users(arrays: Arrays, users: int) -> Arrays:
    """What belongs to no row, of a learner that has this many rows of users."""
    return arrays | {
        name: np.array(users) for name in arrays if _is_size_of_users(name)
    }


def _is_size_of_users(name: str) -> bool:
    return name.startswith("users.") and name.endswith(".size")


def _users(arrays: Arrays) -> int:
    return max(
        [int(array) for name, array in arrays.items() if _is_size_of_users(name)],
        default=0,
    )


class ChainLink(NamedTuple):
    """A point of the chain that the next delta is added to."""

    path: Path
    link: Link
    size_bytes: int


class CheckpointStore:
    """The checkpoints of one trainer, in a directory that only it writes to.

    Args:
        directory: created if it is missing.
        keep: how many points to keep, with the chains that they need; older ones are
            removed after a newer one is read or safe, unless they are pinned.
        readonly: only `load` and `list`, beside a trainer that goes on writing; no lock
            is taken, nothing created.
        takeover_s: a process that uses the directory without a sign of life for this
            long is superseded; None: never.

    Every start to write is a generation with a higher number; an older one can neither
    save nor commit any more.

    Raises:
        CheckpointError: another process uses the directory, or it cannot be written to.
    """

    def __init__(
        self,
        directory: str | Path,
        keep: int = 3,
        *,
        readonly: bool = False,
        takeover_s: float | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.directory = Path(directory)
        self.chain: list[ChainLink] = []
        """What the next delta is added to, base first; empty if the next point has to
        be a base.
        """
        self._keep = keep
        self._corrupt: set[int] = set()
        self._previous: dict[
            int, int | None
        ] = {}  # of points that were read or written
        self._lock: int | None = None
        self._is_locked = False
        self.generation = 0
        """Of this start; 0 if it is read-only."""
        if not readonly:
            with _translated_errors("use", self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
                self._lock, self._is_locked = _open_lock(self.directory, takeover_s)
                self.generation = generation_of(self.directory) + 1
                _write_lock(self._lock, self.generation)
                for left_by_a_crash in self.directory.glob(f"{TEMPORARY}*"):
                    left_by_a_crash.unlink(missing_ok=True)

    # writing ---------------------------------------------------------------------------------------------------------

    @property
    def wants_base(self) -> bool:
        """Whether the next point is to hold every row: no chain is whole, or its deltas
        outweigh its base.
        """
        if (
            not self.chain
            or len(self.chain) > MAX_DELTAS
            or not all(one.path.exists() for one in self.chain)
        ):
            return True
        base, *deltas = (one.size_bytes for one in self.chain)
        return sum(deltas) > base

    def save(
        self,
        chunks: Iterable[Chunk],
        arrays: Arrays,
        meta: Mapping[str, Any],
        *,
        base: bool = True,
    ) -> Path:
        """Write a point; it is safe on disk when this returns.

        Args:
            chunks: every row, or, for a delta, at least those that changed since the
                last point of `chain`.
            arrays: what is not rows, by name.
            meta: JSON values; note that JSON turns tuples into lists and integer keys
                into strings.
            base: whether the chunks hold every row.

        Raises:
            CheckpointError: it cannot be written; the points before are untouched.
        """
        assert self._lock is not None, "the store is read-only or closed"
        assert base or self.chain, "there is nothing that a delta could be added to"
        with _translated_errors("write a checkpoint into", self.directory):
            number = max(self.points(), default=0) + 1
            if not self._is_locked and not self.chain:
                number += (
                    1  # whom we have superseded may be about to write the number before
                )
            path = self.directory / f"ckpt-{number:020d}{'.base' if base else '.delta'}"
            # 1. Everything goes into a file under another name, which is synced.
            temporary = self.directory / f"{TEMPORARY}{path.name}"
            temporary.unlink(
                missing_ok=True
            )  # of an earlier error, if it could not be removed then
            previous = None if base else self.chain[-1].link
            try:
                crc32 = write_point(temporary, chunks, arrays, meta, previous)
                # 2. The rename makes it a point, at once and whole; the directory's
                # sync makes that last.
                check_generation(self.directory, self.generation)
                size_bytes = temporary.stat().st_size
                temporary.rename(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                check_generation(
                    self.directory, self.generation
                )  # whoever takes our place removes what we write
                raise
            sync(self.directory)
            added = ChainLink(path, Link(number, crc32), size_bytes)
        # 3. The next delta is added to it; only now may older ones go.
        self.chain = [added] if base else [*self.chain, added]
        self._previous[number] = previous.number if previous else None
        self._corrupt.discard(number)
        self._prune()
        return path

    # reading ---------------------------------------------------------------------------------------------------------

    def load(self, *, prune: bool = True) -> Checkpoint | None:
        """The newest point whose chain is whole; None if there is no point at all.

        Damaged files are named in a warning, with the reason. The next point has to be
        a base then. Unless the store is read-only or `prune` is False, points that
        nothing needs are removed: on a full disk nothing could be saved.

        Raises:
            CorruptCheckpoint: there are points, but none is whole.
            IncompatibleCheckpoint: the newest was written by another version of
                Streamer.
        """
        while points := self.points():
            checked: dict[int, Point | CorruptCheckpoint] = {}
            problems: dict[str, int] = {}  # and how many points cannot be used for each
            for number in reversed(points):
                try:
                    found = self._checkpoint(self._read_chain(number, checked))
                    break
                except CorruptCheckpoint as error:
                    if (
                        points[number].exists()
                    ):  # or a trainer beside us removed it, so there are newer ones
                        self._corrupt.add(number)
                        problems[str(error)] = problems.get(str(error), 0) + 1
            else:
                if sum(problems.values()) < len(points):
                    continue  # a trainer removed what we found: look again
                raise CorruptCheckpoint(
                    f"every checkpoint in {self.directory} is corrupt: {'; '.join(problems)}. "
                    "Restore one from a backup, or begin with another checkpoint directory"
                )
            for problem, count in problems.items():
                logger.warning(
                    "skipped %d checkpoint%s that cannot be used, trying the one before: %s",
                    count, "s" if count > 1 else "", problem,
                )  # fmt: skip
            if self._lock is not None:
                self.chain = [] if problems else found.links
                if prune:
                    self._prune()
            return found
        return None

    def load_point(self, number: int) -> Checkpoint:
        """The state at one point; the next delta is added to it.

        Raises:
            CorruptCheckpoint: a file of its chain is damaged or missing.
        """
        found = self._checkpoint(self._read_chain(number, {}))
        self.chain = found.links
        return found

    def _checkpoint(self, chain: Sequence[Point]) -> Checkpoint:
        """The state at the end of a chain, with the chains of the other ranks if a
        group wrote it.
        """
        ranks = []
        for rank, link in enumerate(chain[-1].meta.get(RANKS, []), start=1):
            store = CheckpointStore(rank_directory(self.directory, rank), readonly=True)
            points = store._read_chain(link[0], {})
            if points[-1].link != Link(*link):
                raise CorruptCheckpoint(
                    f"{points[-1].path} is not the one that {chain[-1].path} needs"
                )
            ranks.append(points)
        return Checkpoint(chain, ranks)

    def verify(self) -> dict[Path, str | None]:
        """Check every point with its chain: what is wrong with it, None if nothing is."""
        checked: dict[int, Point | CorruptCheckpoint] = {}
        found: dict[Path, str | None] = {}
        for number, path in self.points().items():
            try:
                self._read_chain(number, checked)
                found[path] = None
            except CorruptCheckpoint as error:
                found[path] = str(error)
        return found

    def points(self) -> dict[int, Path]:
        """The points that are there by their numbers, ascending, without looking into
        them.
        """
        if not self.directory.is_dir():
            return {}
        matches = (
            (POINT.fullmatch(entry.name), entry) for entry in self.directory.iterdir()
        )
        return dict(sorted((int(match[1]), entry) for match, entry in matches if match))

    def list(self) -> list[Path]:
        """The points, oldest first, without looking into them."""
        return list(self.points().values())

    def _read_chain(
        self, number: int, checked: dict[int, Point | CorruptCheckpoint]
    ) -> Sequence[Point]:
        """A point and all that it needs, base first; `checked` remembers what was
        checked before.
        """
        chain: list[Point] = []
        wanted: Link | None = Link(number, 0)
        while wanted is not None:
            point = self._check(wanted.number, checked)
            if chain and point.link != wanted:
                raise CorruptCheckpoint(
                    f"{chain[-1].path} does not continue {point.path}: their checksums differ"
                )
            self._previous[wanted.number] = (
                point.previous.number if point.previous else None
            )
            chain.append(point)
            wanted = point.previous
        self._corrupt.discard(number)
        return chain[::-1]

    def _check(
        self, number: int, checked: dict[int, Point | CorruptCheckpoint]
    ) -> Point:
        if number not in checked:
            try:
                path = self.points().get(number)
                if path is None:
                    raise CorruptCheckpoint(
                        f"{self.directory}/ckpt-{number:020d}, which later ones need, is missing"
                    )
                point = Point(path, number)
                point.check()
                checked[number] = point
            except CorruptCheckpoint as error:
                checked[number] = error
        found = checked[number]
        if isinstance(found, CorruptCheckpoint):
            raise found
        return found

    @property
    def trainer(self) -> str:
        """What tells the trainer of this directory from others: random, and kept in the
        directory from then on.

        Raises:
            CheckpointError: it cannot be written.
        """
        path = self.directory / TRAINER
        with _translated_errors("use", self.directory):
            if not path.exists():
                temporary = self.directory / f"{TEMPORARY}{TRAINER}"
                temporary.write_text(uuid.uuid4().hex[:16])
                sync(temporary)
                temporary.rename(path)
                sync(self.directory)
            return path.read_text().strip()

    def beat(self) -> None:
        """Show a sign of life, every second or so.

        Raises:
            Superseded: a newer start uses the directory.
        """
        check_generation(self.directory, self.generation)
        if self._lock is not None:
            self._is_locked = self._is_locked or _flock(self._lock)
            with contextlib.suppress(OSError):
                os.utime(self._lock)

    def close(self) -> None:
        """Let go of the directory. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # what is kept ----------------------------------------------------------------------------------------------------

    def pin(self, number: int) -> None:
        """Keep a point and its chain until it is unpinned; may be called beside a
        trainer.

        Raises:
            CorruptCheckpoint: it is not there, or not whole.
        """
        with (
            _translated_errors("pin a checkpoint in", self.directory),
            _removals(self.directory),
        ):
            self._read_chain(number, {})
            (self.directory / f"ckpt-{number:020d}{PIN}").touch()
            sync(self.directory)

    def unpin(self, number: int) -> None:
        """Let a point go when it is old; may be called beside a trainer."""
        with _translated_errors("unpin a checkpoint in", self.directory):
            (self.directory / f"ckpt-{number:020d}{PIN}").unlink(missing_ok=True)

    def pinned(self) -> set[int]:
        """The numbers of the points that are pinned."""
        found = self.directory.glob(f"ckpt-*{PIN}")
        return {
            int(path.stem.removeprefix("ckpt-"))
            for path in found
            if path.stem.removeprefix("ckpt-").isdigit()
        }

    def copy(self, directory: str | Path, number: int | None = None) -> Checkpoint:
        """Copy a point (None: the newest) and its chain into another directory, also
        beside a trainer.

        What a trainer removes meanwhile is copied nevertheless: it was opened before.

        Raises:
            CheckpointError: there is none, the directory has checkpoints of its own, or
                it cannot be written to.
        """
        found = (
            self.load()
            if number is None
            else self._checkpoint(self._read_chain(number, {}))
        )
        if found is None:
            raise CheckpointError(f"there is no checkpoint in {self.directory}")
        with (
            CheckpointStore(directory) as target,
            _translated_errors("copy a checkpoint into", target.directory),
        ):
            if target.points():
                raise CheckpointError(
                    f"{directory} has checkpoints already: choose a new or an empty directory"
                )
            temporary = [
                target.directory / f"{TEMPORARY}{point.path.name}"
                for point in found.chain
            ]
            for point, path in zip(found.chain, temporary, strict=True):
                point.copy_to(path)
            for path in (
                temporary
            ):  # base first: a crash in between leaves a whole, shorter chain
                path.rename(path.with_name(path.name.removeprefix(TEMPORARY)))
            sync(target.directory)
        return found

    def _prune(self) -> None:
        """Remove the points that nothing needs: neither the newest `keep` that are
        whole, nor a pinned one.

        The newest go first, so that no point is ever there without its chain. A failure
        does not make the save that came before it a failure: it is tried again after
        the next. So it is if somebody else removes or pins points now, who may be a
        process that sleeps.
        """
        with (
            contextlib.suppress(BlockingIOError),
            _removals(self.directory, fcntl.LOCK_NB),
        ):
            points = self.points()
            needed = set[int]()
            kept = list[int]()
            for number in reversed(points):
                chain = (
                    self._chain_of(number, points)
                    if number not in self._corrupt
                    else None
                )
                if chain is not None and len(kept) < self._keep:
                    kept.append(number)
                    needed |= chain
            for number in self.pinned():
                needed |= self._chain_of(number, points) or set()
            oldest = min(kept)
            for number in reversed(points):
                if generation_of(self.directory) > self.generation:
                    return  # we slept: it is no longer ours
                if number < oldest and number not in needed:
                    try:
                        points[number].unlink()
                        self._corrupt.discard(number)
                        self._previous.pop(number, None)
                    except OSError as error:
                        logger.warning(
                            "the old checkpoint %s cannot be removed: %s",
                            points[number],
                            error,
                        )
                        return  # what it needs stays, too

    def _chain_of(self, number: int, points: Mapping[int, Path]) -> set[int] | None:
        """The numbers of the points that one needs, and its own; None if that cannot be
        read.
        """
        found: set[int] = set()
        wanted: int | None = number
        while wanted is not None:
            found.add(wanted)
            if wanted not in self._previous:
                try:
                    previous = Point(points[wanted], wanted).previous
                except (KeyError, CheckpointError):
                    return None
                self._previous[wanted] = previous.number if previous else None
            wanted = self._previous[wanted]
        return found


@contextlib.contextmanager
def _removals(directory: Path, how: int = 0) -> Iterator[None]:
    """Nobody else removes or pins points of the directory meanwhile."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)


def find_point(path: Path) -> tuple[Path, int]:
    """Directory and number of a point that is given by its path.

    Raises:
        CheckpointError: there is no such file, or it is no point.
    """
    match = POINT.fullmatch(path.name)
    if match is None or not path.is_file():
        raise CheckpointError(
            f"there is no checkpoint {path}: give the path of a .base or .delta file"
        )
    return path.parent, int(match[1])


def generation_of(directory: Path) -> int:
    """The number of the latest start that writes to a directory; 0 if none is known."""
    try:
        said = (directory / LOCK).read_bytes().split()
        return int(said[1]) if len(said) > 1 else 0
    except (OSError, ValueError):
        return 0


def check_generation(directory: Path, generation: int) -> None:
    """See that no newer start uses a directory.

    Raises:
        Superseded: one does.
    """
    if (newest := generation_of(directory)) > generation:
        raise Superseded(
            f"a newer start (generation {newest}) uses {directory}: this one (generation {generation}) showed no sign "
            "of life for too long. It stops, and has saved and committed nothing since"
        )


def _open_lock(directory: Path, takeover_s: float | None) -> tuple[int, bool]:
    """The lock file, and whether we have the lock, which goes when the process ends,
    however it ends.

    We have not if whoever has it showed no sign of life for `takeover_s`.
    """
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        is_locked = _flock(descriptor) or (
            takeover_s is not None and _flock_when_released(descriptor, takeover_s)
        )
        if not is_locked:
            holder = (
                os.pread(descriptor, 64, 0).decode(errors="replace").split()
                or ["unknown"]
            )[0]
            if takeover_s is None or is_locked is None:
                raise CheckpointError(
                    f"another process (pid {holder}) uses {directory}. Stop it, or choose another checkpoint directory"
                )
            logger.warning(
                "process %s uses %s and showed no sign of life for %.0f s: this start takes its place",
                holder, directory, takeover_s,
            )  # fmt: skip
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, bool(is_locked)


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _flock_when_released(descriptor: int, seconds: float) -> bool | None:
    """True when we have the lock, None as soon as whoever has it shows a sign of life,
    False after some seconds.
    """
    seen = os.fstat(descriptor).st_mtime_ns
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
        if _flock(descriptor):
            return True
        if os.fstat(descriptor).st_mtime_ns != seen:
            return None
    return False


def _write_lock(descriptor: int, generation: int) -> None:
    """Process and generation, in one write: whoever reads sees either these or those
    before.
    """
    with contextlib.suppress(OSError):  # on a full disk older checkpoints must go first
        os.pwrite(descriptor, f"{os.getpid():<10} {generation:<20}\n".encode(), 0)
        os.fsync(descriptor)


@contextlib.contextmanager
def _translated_errors(what: str, directory: Path) -> Iterator[None]:
    """Errors of the system as ours, with what was tried and where."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot {what} {directory}: {error}. Check free space and permissions; "
            "a start with a smaller --keep-checkpoints removes older ones first"
        ) from error
