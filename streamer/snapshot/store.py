"""The checkpoints of one trainer: a directory that only it writes to.

DIR/.lock                            process and generation of the trainer that writes here
DIR/trainer-id                       tells this trainer's commits in Kafka from those of others
DIR/ckpt-00000000000000000042.pin    keeps a checkpoint, with its chain, however old it is
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamer.errors import CheckpointError
from streamer.snapshot.chain import Chain, Checkpoint
from streamer.snapshot.directory import (
    TEMPORARY,
    SnapshotDirectory,
    checkpoint_errors,
    sync_to_disk,
)
from streamer.snapshot.frames import Arrays, RowChunk
from streamer.snapshot.lease import Lease, alone_in
from streamer.snapshot.snapshot import Link, Packing, SnapshotEnd, SnapshotFile

logger = logging.getLogger(__name__)

TRAINER = "trainer-id"
PIN = ".pin"


class CheckpointStore(SnapshotDirectory):
    """Checkpoints, each a base or a delta, that are safe on disk when they are saved.

    Args:
        directory: created if it is missing.
        keep: how many checkpoints to keep, with the chains that they need; older ones
            are removed after a newer one is read or safe, unless they are pinned.
        readonly: only read, pin and copy, beside a trainer that goes on writing; no
            lease is taken, nothing created.
        takeover_s: see `Lease`.

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
        super().__init__(directory)
        self.chain = Chain()
        self._keep = keep
        self._corrupt: set[int] = set()
        self._previous: dict[int, int | None] = {}  # by number; None of a base
        self._lease: Lease | None = None
        if not readonly:
            with checkpoint_errors("use", self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
                self._lease = Lease(self.directory, takeover_s)
                for left_by_a_crash in self.directory.glob(f"{TEMPORARY}*"):
                    left_by_a_crash.unlink(missing_ok=True)

    @property
    def generation(self) -> int:
        """Of this start; 0 if it is read-only."""
        return self._lease.generation if self._lease is not None else 0

    # writing --------------------------------------------------------------------------

    @property
    def wants_base(self) -> bool:
        """Whether the next checkpoint is to hold every row."""
        if self.chain.wants_base:
            return True
        numbers = self.numbers()
        return any(one.link.number not in numbers for one in self.chain.links)

    def save(
        self,
        chunks: Iterable[RowChunk],
        arrays: Arrays,
        meta: Mapping[str, Any],
        *,
        base: bool = True,
    ) -> Path:
        """Write a checkpoint; it is safe on disk when this returns.

        Args:
            chunks: every row, or, for a delta, at least those that changed since the
                last state of `chain`.
            arrays: what is not rows, by name.
            meta: JSON values, read when all chunks are written; note that JSON turns
                tuples into lists and integer keys into strings.
            base: whether the chunks hold every row.

        Raises:
            CheckpointError: it cannot be written; the checkpoints before are untouched.
            Superseded: a newer start uses the directory.
        """
        lease = self._lease
        assert lease is not None, "the store is read-only or closed"
        previous = None if base else self.chain.last
        assert base or previous is not None, "a delta needs something to be added to"
        number = max(self.numbers(), default=0) + 1
        if not (lease.is_locked or self.chain.links):
            number += 1  # whom we have superseded may write the number before

        def end() -> tuple[SnapshotEnd, Arrays]:
            _check_finite(arrays, "")
            about = SnapshotEnd(
                generation=lease.generation,
                number=number,
                is_base=base,
                previous=previous,
                meta=dict(meta),
            )
            return about, arrays

        packing = Packing(compress=not base)
        path = self.path(number, is_base=base)
        with checkpoint_errors("write a checkpoint into", self.directory):
            try:
                self.write(path, packing.frames(_finite(chunks), end), lease.check)
            except BaseException:
                lease.check()  # whoever takes our place removes what we write
                raise
        # only now is it added to the chain, and may older ones go
        add = self.chain.add_base if base else self.chain.add_delta
        add(Link(number, packing.checksum), packing.size_bytes)
        self._previous[number] = previous.number if previous else None
        self._corrupt.discard(number)
        self._prune()
        return path

    def beat(self) -> None:
        """Show a sign of life, every second or so.

        Raises:
            Superseded: a newer start uses the directory.
        """
        if self._lease is not None:
            self._lease.beat()

    @property
    def trainer(self) -> str:
        """What tells the trainer of this directory from others: random, and kept in the
        directory from then on.

        Raises:
            CheckpointError: it cannot be written.
        """
        path = self.directory / TRAINER
        with checkpoint_errors("use", self.directory):
            if not path.exists():
                temporary = self.directory / f"{TEMPORARY}{TRAINER}"
                temporary.write_text(uuid.uuid4().hex[:16])
                sync_to_disk(temporary)
                temporary.rename(path)
                sync_to_disk(self.directory)
            return path.read_text().strip()

    def close(self) -> None:
        """Let go of the directory. May be called twice."""
        if self._lease is not None:
            self._lease.close()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # reading --------------------------------------------------------------------------

    def load(self, *, prune: bool = True) -> Checkpoint | None:
        """See `SnapshotDirectory.load`; the next delta is added to what is loaded.

        If something is damaged, the next checkpoint is a base. Unless the store is
        read-only or `prune` is False, checkpoints that nothing needs are removed: on a
        full disk nothing could be saved.
        """
        found = super().load()
        if found is not None and self._lease is not None:
            newer = {number for number in self.numbers() if number > found.number}
            self._corrupt |= newer
            self._corrupt.discard(found.number)
            self.chain.links = [] if newer else found.links
            if prune:
                self._prune()
        return found

    def load_number(self, number: int) -> Checkpoint:
        """See `SnapshotDirectory.load_number`; the next delta is added to it."""
        found = super().load_number(number)
        self.chain.links = found.links
        return found

    # what is kept ---------------------------------------------------------------------

    def pin(self, number: int) -> None:
        """Keep a checkpoint and its chain until it is unpinned; may be called beside a
        trainer.

        Raises:
            CorruptCheckpoint: it is not there, or not whole.
        """
        with (
            checkpoint_errors("pin a checkpoint in", self.directory),
            alone_in(self.directory),
        ):
            self.read_chain(number, {})
            self._pin_path(number).touch()
            sync_to_disk(self.directory)

    def unpin(self, number: int) -> None:
        """Let a checkpoint go when it is old; may be called beside a trainer."""
        with checkpoint_errors("unpin a checkpoint in", self.directory):
            self._pin_path(number).unlink(missing_ok=True)

    def pinned(self) -> set[int]:
        """The numbers of the checkpoints that are pinned."""
        names = (path.stem for path in self.directory.glob(f"ckpt-*{PIN}"))
        numbers = (name.removeprefix("ckpt-") for name in names)
        return {int(number) for number in numbers if number.isdigit()}

    def _pin_path(self, number: int) -> Path:
        return self.directory / f"ckpt-{number:020d}{PIN}"

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
        with (
            CheckpointStore(directory) as target,
            checkpoint_errors("copy a checkpoint into", target.directory),
        ):
            if target.paths():
                raise CheckpointError(
                    f"{directory} has checkpoints already: choose a new or an empty directory"
                )
            copies = []
            for snapshot in found.chain:
                assert isinstance(snapshot, SnapshotFile)
                copies.append(target.directory / f"{TEMPORARY}{snapshot.path.name}")
                snapshot.copy_to(copies[-1])
            # base first: a crash in between leaves a whole, shorter chain
            for path in copies:
                path.rename(path.with_name(path.name.removeprefix(TEMPORARY)))
            sync_to_disk(target.directory)
        return found

    def _prune(self) -> None:
        """Remove what nothing needs: neither the newest `keep` that are whole, nor a
        pinned one.

        The newest go first, so that none is ever there without its chain. A failure
        does not make the save that came before it a failure: it is tried again after
        the next. So it is if somebody else removes or pins files now, who may be a
        process that sleeps.
        """
        assert self._lease is not None
        with (
            contextlib.suppress(BlockingIOError),
            alone_in(self.directory, fcntl.LOCK_NB),
        ):
            numbers = self.numbers()
            kept, needed = self._needed(numbers)
            for number in reversed(numbers):
                if number >= min(kept) or number in needed:
                    continue
                try:
                    self._lease.check()  # or we slept, and it is no longer ours
                    numbers[number].unlink()
                except (OSError, CheckpointError) as error:
                    logger.warning(
                        "Could not remove the old checkpoint %s: %s",
                        numbers[number], error,
                    )  # fmt: skip
                    return  # what it needs stays, too
                self._corrupt.discard(number)
                self._previous.pop(number, None)

    def _needed(self, numbers: dict[int, Path]) -> tuple[list[int], set[int]]:
        """The newest `keep` that are whole, and all that they and pinned ones need."""
        kept: list[int] = []
        needed: set[int] = set()
        for number in reversed(numbers):
            if number in self._corrupt or len(kept) == self._keep:
                continue
            chain = self._chain_of(number, numbers)
            if chain is not None:
                kept.append(number)
                needed |= chain
        for number in self.pinned():
            needed |= self._chain_of(number, numbers) or set()
        return kept, needed

    def _chain_of(self, number: int, numbers: dict[int, Path]) -> set[int] | None:
        """The numbers that one needs, and its own; None if that cannot be read."""
        found: set[int] = set()
        wanted: int | None = number
        while wanted is not None:
            found.add(wanted)
            if wanted not in self._previous:
                try:
                    previous = SnapshotFile(numbers[wanted]).end.previous
                except (KeyError, CheckpointError):
                    return None
                self._previous[wanted] = previous.number if previous else None
            wanted = self._previous[wanted]
        return found


def _finite(chunks: Iterable[RowChunk]) -> Iterator[RowChunk]:
    for chunk in chunks:
        _check_finite(chunk.arrays, f"{chunk.kind}/")
        yield chunk


def _check_finite(arrays: Arrays, prefix: str) -> None:
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum()):
                continue
        if count := int((~np.isfinite(array)).sum()):
            raise CheckpointError(
                f"{count:,} of {array.size:,} numbers in {prefix}{name} are not finite: "
                "nothing is saved. Start the run again: it resumes from the checkpoint "
                "before"
            )
