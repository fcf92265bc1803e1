"""The checkpoints of one trainer: a directory that only it writes to.

DIR/.lock                            process and generation of the trainer that writes here
DIR/trainer-id                       tells this trainer's commits in Kafka from those of others
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamer.errors import CheckpointError
from streamer.snapshot.chain import ChainLink, Checkpoint
from streamer.snapshot.directory import (
    SnapshotDirectory,
    number_of,
    system_errors,
    whole_file,
)
from streamer.snapshot.frames import Arrays, RowChunk
from streamer.snapshot.snapshot import Link, Packing, SnapshotEnd, SnapshotFile

logger = logging.getLogger(__name__)

TRAINER = "trainer-id"
MAX_DELTAS = 250
"""A new base is due when there are more, however small they are: each is a file to open
at a restart.
"""


class CheckpointStore(SnapshotDirectory):
    """Checkpoints, each a base or a delta, that are safe on disk when they are saved.

    Args:
        directory: created if it is missing.
        keep: how many checkpoints to keep, with the chains that they need; older ones
            are removed after a newer one is read or safe.
        takeover_s: see `Lease`.

    Raises:
        CheckpointError: another process uses the directory, or it cannot be written to.
    """

    def __init__(
        self,
        directory: str | Path,
        keep: int = 3,
        *,
        takeover_s: float | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        super().__init__(directory)
        self.links: list[ChainLink] = []
        """What the next delta is added to, base first; empty if the next checkpoint has
        to be a base.
        """
        self._keep = keep
        self._first: dict[int, int] = {}
        """Of each number, that with which its chain begins; 0 if it is damaged."""
        with system_errors("use", self.directory):
            self._lease = self.take_lease(takeover_s)

    @property
    def generation(self) -> int:
        """Of this start."""
        return self._lease.generation

    # writing --------------------------------------------------------------------------

    @property
    def wants_base(self) -> bool:
        """Whether the next checkpoint is to hold every row: there is no chain, a link of
        it is gone, it is too long, or its deltas outweigh its base.
        """
        sizes = [one.size_bytes for one in self.links]
        numbers = self.numbers()
        is_broken = any(one.link.number not in numbers for one in self.links)
        is_long = not 0 < len(sizes) <= MAX_DELTAS or sum(sizes[1:]) > sizes[0]
        return is_broken or is_long

    def save(
        self,
        chunks: Iterable[RowChunk],
        arrays: Arrays,
        meta: dict[str, Any],
        *,
        base: bool = True,
    ) -> Path:
        """Write a checkpoint; it is safe on disk when this returns.

        Args:
            chunks: every row, or, for a delta, at least those that changed since the
                last state of `links`.
            arrays: what is not rows, by name.
            meta: JSON values, read when all chunks are written; note that JSON turns
                tuples into lists and integer keys into strings.
            base: whether the chunks hold every row.

        Raises:
            CheckpointError: it cannot be written; the checkpoints before are untouched.
            Superseded: a newer start uses the directory.
        """
        lease = self._lease
        links = [] if base else self.links
        assert base or links, "a delta needs something to be added to"
        number = max(self.numbers(), default=0) + 1
        if not (lease.is_locked or self.links):
            number += 1  # whom we have superseded may write the number before
        end = SnapshotEnd(
            generation=lease.generation,
            number=number,
            first=links[0].link.number if links else number,
            previous=links[-1].link if links else None,
            meta=meta,
        )
        _check_finite(arrays, "")
        packing = Packing(compress=not base)
        frames = packing.frames(_finite(chunks), end, arrays)
        path = self.path(number, is_base=base)
        with system_errors("write a checkpoint into", self.directory):
            try:
                self.write(path, frames, lease.check)
            except BaseException:
                lease.check()  # whoever takes our place removes what we write
                raise
        # only now is it added to the chain, and may older ones go
        link = Link(number, packing.checksum)
        self.links = [*links, ChainLink(link, packing.size_bytes)]
        self._first[number] = end.first
        self._prune()
        return path

    def amend(self, found: Checkpoint, changed: dict[str, Any]) -> Path:
        """Write a checkpoint that differs from one of ours in values of its meta only.

        Raises:
            CheckpointError: it cannot be written.
        """
        self.links = [ChainLink(one.end.link, one.size_bytes) for one in found.chain]
        newest = found.chain[-1]
        return self.save([], newest.arrays(), newest.meta | changed, base=False)

    def beat(self) -> None:
        """Show a sign of life, every second or so.

        Raises:
            Superseded: a newer start uses the directory.
        """
        self._lease.beat()

    @property
    def trainer(self) -> str:
        """What tells the trainer of this directory from others: random, and kept in the
        directory from then on.

        Raises:
            CheckpointError: it cannot be written.
        """
        path = self.directory / TRAINER
        with system_errors("use", self.directory):
            if not path.exists():
                with whole_file(path) as file:
                    file.write(uuid.uuid4().hex[:16].encode())
            trainer = path.read_bytes().decode("ascii", "replace").strip()
        if not trainer.isascii() or not trainer.isprintable() or not trainer:
            raise CheckpointError(
                f"{path} does not hold the id of a trainer: restore it, or delete it, "
                "and this trainer becomes another one"
            )
        return trainer

    def close(self) -> None:
        """Let go of the directory. May be called twice."""
        self._lease.close()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # reading --------------------------------------------------------------------------

    def load(self, *, prune: bool = True) -> Checkpoint | None:
        """See `SnapshotDirectory.load`; the next delta is added to what is loaded.

        If something is damaged, the next checkpoint is a base. Unless `prune` is False,
        checkpoints that nothing needs are removed: on a full disk nothing could be
        saved.
        """
        found = super().load()
        if found is not None:
            newer = [number for number in self.numbers() if number > found.number]
            self._first |= dict.fromkeys(newer, 0)
            self._first[found.number] = found.end.first
            self.links = [] if newer else found.links
            if prune:
                self._prune()
        return found

    def load_number(self, number: int) -> Checkpoint:
        """See `SnapshotDirectory.load_number`; the next delta is added to it."""
        found = super().load_number(number)
        self.links = found.links
        return found

    # what is kept ---------------------------------------------------------------------

    def _prune(self) -> None:
        """Remove what the newest `keep` that are whole do not need.

        The newest go first, so that none is ever there without its chain. A failure
        does not make the save that came before it a failure: it is tried again after
        the next.
        """
        numbers = self.numbers()
        whole = [first for path in numbers.values() if (first := self._first_of(path))]
        first = min(whole[-self._keep :], default=0)
        for number in reversed([number for number in numbers if number < first]):
            try:
                self._lease.check()  # or we slept, and it is no longer ours
                numbers[number].unlink()
            except (OSError, CheckpointError) as error:
                logger.warning(
                    "Could not remove the old checkpoint %s: %s", numbers[number], error
                )
                return  # what it needs stays, too

    def _first_of(self, path: Path) -> int:
        """See `_first`."""
        number = number_of(path)
        if number not in self._first:
            try:
                self._first[number] = SnapshotFile(path).end.first
            except CheckpointError:
                self._first[number] = 0
        return self._first[number]


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
