"""A directory of checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors

from streamer.checkpoint.files import Tensors, read_files, sync, write_files
from streamer.errors import CheckpointError, CorruptCheckpoint

logger = logging.getLogger(__name__)

LOCK = ".lock"
TRAINER = "trainer-id"
TEMPORARY = ".tmp-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory. Arrays come back as arrays, tensors as tensors (on the CPU), all writable."""

    path: Path
    sequence: int
    tensors: dict[str, Any]
    meta: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one trainer, in a directory that only it writes to.

    Args:
        directory: created if it is missing.
        keep: how many checkpoints to keep; older ones are removed after a newer one is read or safe.
        readonly: only `load` and `list`, beside a trainer that goes on writing; no lock is taken, nothing created.

    Raises:
        CheckpointError: another process uses the directory, or it cannot be written to.
    """

    def __init__(self, directory: str | Path, keep: int = 3, *, readonly: bool = False) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.directory = Path(directory)
        self._keep = keep
        self._corrupt: set[int] = set()
        self._lock: int | None = None
        if not readonly:
            with _translated_errors("use", self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
                self._lock = _take_lock(self.directory)
                for left_by_a_crash in self.directory.glob(f"{TEMPORARY}*"):
                    shutil.rmtree(left_by_a_crash, ignore_errors=True)

    def save(self, tensors: Tensors, meta: Mapping[str, Any]) -> Path:
        """Write a checkpoint; it is safe on disk when this returns.

        Needs no copy of the tensors, unless they are not contiguous, not on the CPU, or share memory.

        Args:
            tensors: by name. They must not change meanwhile.
            meta: JSON values; note that JSON turns tuples into lists and integer keys into strings.

        Raises:
            CheckpointError: it cannot be written; the checkpoints before are untouched.
        """
        assert self._lock is not None, "the store is read-only or closed"
        with _translated_errors("write a checkpoint into", self.directory):
            sequence = max(self._sequences(), default=0) + 1
            path = self._path(sequence)
            # 1. Everything goes into a directory under another name, each file synced.
            temporary = self.directory / f"{TEMPORARY}{path.name}"
            shutil.rmtree(temporary, ignore_errors=True)  # of an earlier error, if it could not be removed then
            try:
                write_files(temporary, tensors, meta)
                sync(temporary)
                # 2. The rename makes it a checkpoint, at once and whole; the parent's sync makes that last.
                temporary.rename(path)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync(self.directory)
        # 3. Only now may older ones go.
        self._prune()
        return path

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is valid; None if there is none at all.

        A corrupt one is skipped with a warning that names it and the reason. Unless the store is read-only, older ones
        beyond `keep` are removed now: on a full disk nothing could be saved before.

        Raises:
            CorruptCheckpoint: there are checkpoints, but each one is corrupt.
            IncompatibleCheckpoint: the newest was written by a newer version of Streamer.
        """
        while sequences := self._sequences():
            problems: list[str] = []
            for sequence in reversed(sequences):
                try:
                    found = Checkpoint(self._path(sequence), sequence, *read_files(self._path(sequence)))
                    self._corrupt.discard(sequence)
                    if self._lock is not None:
                        self._prune()
                    return found
                except CorruptCheckpoint as error:
                    if self._path(sequence).exists():  # or a trainer beside us removed it, so there are newer ones
                        self._corrupt.add(sequence)
                        problems.append(str(error))
                        logger.warning("skipped a checkpoint that cannot be used, trying the one before: %s", error)
            if len(problems) == len(sequences):
                raise CorruptCheckpoint(
                    f"every checkpoint in {self.directory} is corrupt: {'; '.join(problems)}. "
                    "Restore one from a backup, or begin with another checkpoint directory"
                )
        return None

    def list(self) -> list[Path]:
        """The checkpoints, oldest first, without looking into them."""
        return [self._path(sequence) for sequence in self._sequences()]

    @property
    def trainer(self) -> str:
        """What tells the trainer of this directory from others: random, and kept in the directory from then on.

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

    def close(self) -> None:
        """Let go of the directory. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _path(self, sequence: int) -> Path:
        return self.directory / f"ckpt-{sequence:020d}"

    def _sequences(self) -> Sequence[int]:
        """The numbers of the checkpoints that are there, ascending."""
        if not self.directory.is_dir():
            return []
        matches = (re.fullmatch(r"ckpt-(\d{20})", entry.name) for entry in self.directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def _prune(self) -> None:
        """Remove what is older than the newest `keep`; those known to be corrupt do not count."""
        sequences = self._sequences()
        sound = [sequence for sequence in sequences if sequence not in self._corrupt]
        oldest = sound[-self._keep :][0]
        for sequence in sequences:
            if sequence < oldest:
                _remove(self._path(sequence))


def _remove(path: Path) -> None:
    """Rename first, so that a crash in the middle does not leave what looks like a corrupt checkpoint.

    A failure does not make the save that came before it a failure: it is tried again after the next.
    """
    temporary = path.with_name(f"{TEMPORARY}removed-{path.name}")
    try:
        path.rename(temporary)
        shutil.rmtree(temporary)
    except OSError as error:
        logger.warning("the old checkpoint %s cannot be removed: %s", path, error)


def _take_lock(directory: Path) -> int:
    """Lock the directory until the descriptor is closed or the process ends, however it ends."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        raise CheckpointError(
            f"another process (pid {holder or 'unknown'}) uses {directory}. "
            "Stop it, or choose another checkpoint directory"
        ) from error
    except OSError:
        os.close(descriptor)
        raise
    with contextlib.suppress(OSError):  # on a full disk: only whoever waits for the lock would read it
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    return descriptor


@contextlib.contextmanager
def _translated_errors(what: str, directory: Path) -> Iterator[None]:
    """Errors of the system as ours, with what was tried and where."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"cannot {what} {directory}: {error}. Check free space and permissions; "
            "a start with a smaller --keep-checkpoints removes older ones first"
        ) from error
