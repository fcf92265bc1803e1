"""A group of trainers as one of the trainers that share through a store: rank 0
exchanges, all ranks apply the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from streamer.cache_store.store import CacheStore
from streamer.cache_store.table import Piece
from streamer.errors import SharingError
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Learned, OnlineLearner
from streamer.lockstep.group import Group
from streamer.sharing.sharing import LearnPart, StoreSharing, as_sharing_error
from streamer.snapshot.frames import NO_ROWS, Arrays, RowChunk, pack_chunk, unpack_chunk
from streamer.sources.base import Partition, Positions


class GroupSharing(StoreSharing):
    """One rank's part in what its group shares. All ranks call `start`, `receive`,
    `parts`, `advance` and `before_save` together: these are collectives.

    Args:
        learner: of this rank.
        store: of this rank; only that of rank 0 is ever started.
        group: the ranks.
    """

    def __init__(self, learner: OnlineLearner, store: CacheStore, group: Group) -> None:
        super().__init__(learner, store)
        self._group = group
        self._learned: tuple[list[list[Any]], Learned] | None = None
        self._positions: dict[Partition, int] = {}

    def start(self) -> None:
        self._table.name_rows(self._learner.state.items.used)
        self._from_lead(self._start_lead)
        while self._from_lead(self._shared.take):
            pass

    def _start_lead(self) -> list[Piece]:
        with as_sharing_error():
            self._store.start()
        return self._shared.take()

    def receive(self) -> None:
        self._from_lead(self._shared.take)

    def before_save(self) -> None:
        self._from_lead(lambda: self._shared.take(0))

    def claim(self, starts: Positions) -> Positions:
        """A group resumes where its checkpoint says, which holds its counts too."""
        self._note_names(starts)
        return starts

    def acknowledged(self, positions: Positions) -> Positions:
        """A group that resumes has the counts of its own checkpoint."""
        return positions

    def flush(self) -> None:
        if self._group.rank == 0:
            super().flush()

    def parts(self, batch: MicroBatch) -> list[LearnPart]:
        counted = self._are_counted(batch)
        self._note_duplicates(batch, counted)
        new = ~counted
        of_ranks = self._group.gather_equal(np.array([(~new).sum(), new.sum()]))
        duplicates, others = np.stack(of_ranks).sum(0).tolist()
        if not duplicates:
            return [LearnPart(batch, True)]
        found = [LearnPart(batch.only(np.flatnonzero(~new).tolist()), False)]
        if others:
            found.append(LearnPart(batch.only(np.flatnonzero(new).tolist()), True))
        found[-1].batch.of_catalogue = batch.of_catalogue
        return found

    def contribute(self, part: LearnPart, learned: Learned) -> None:
        if part.counted:
            batch = part.batch
            spans: list[list[Any]] = []
            for partition, start, stop in batch.origins:
                first = batch.offsets[start]
                spans.append([*partition, first, self._name(partition), stop - start])
            self._learned = spans, learned

    def advance(self, batch: MicroBatch) -> None:
        """Ranks tell each other which of the step's events are of which partition, and
        how far these have come.
        """
        self._positions |= batch.positions
        if not batch.step_events:
            return
        spans: list[list[Any]] = []
        if self._learned is not None:
            spans, learned = self._learned
        own = [[self._name(p), int(at)] for p, at in self._positions.items()]
        self._positions = {}
        message = np.frombuffer(msgspec.msgpack.encode([spans, own]), np.uint8)
        all_spans: list[list[Any]] = []
        positions: dict[str, int] = {}
        for said in self._group.gather(message):
            of_rank, places = msgspec.msgpack.decode(said.data)
            all_spans += of_rank
            positions |= dict(places)
        self._shared.owned |= positions.keys()
        if self._learned is not None and len(learned.items):
            start = 0
            for *_, name, events in sorted(all_spans):
                self._add_counted(name, learned.items[start : start + events])
                start += events
            self._add_drawn(learned)
        self._learned = None
        self._record(positions)

    def _from_lead(self, take: Callable[[], list[Piece]]) -> bool:
        """Apply what rank 0 has taken; returns whether there was anything.

        Raises:
            SharingError: on all ranks, if rank 0 could not.
        """
        message = b""
        if self._group.rank == 0:
            try:
                message = self._packed(take())
            except SharingError as error:
                message = pack_chunk("error", NO_ROWS, {}, {"error": str(error)})
        lengths = [
            int(n[0]) for n in self._group.gather_equal(np.array([len(message)]))
        ]
        sent = np.frombuffer(message, np.uint8)
        chunk = unpack_chunk(self._group.gather_sized(sent, lengths)[0].data)
        if chunk.kind == "error":
            raise SharingError(chunk.values["error"])
        pieces = _unpacked(chunk)
        cache = chunk.arrays.get("cache")
        self._apply_all(pieces)
        self._use_cache(cache, chunk.values["live"])
        return bool(pieces)

    def _packed(self, pieces: Sequence[Piece]) -> bytes:
        arrays: Arrays = {}
        heads = []
        for k, piece in enumerate(pieces):
            heads.append(
                [piece.name, *piece.to, piece.is_last, list(piece.ids.items())]
            )
            arrays[f"{k}.rows"] = piece.rows
            arrays[f"{k}.hashes"] = piece.hashes
            arrays[f"{k}.values"] = piece.values
        cache = self._shared.take_cache()
        if cache is not None:
            arrays["cache"] = cache
        values = {"pieces": heads, "live": self._store.is_live}
        return pack_chunk("received", NO_ROWS, arrays, values)


def _unpacked(chunk: RowChunk) -> list[Piece]:
    pieces = []
    for k, (name, major, minor, is_last, ids) in enumerate(chunk.values["pieces"]):
        rows = chunk.arrays[f"{k}.rows"]
        hashes = chunk.arrays[f"{k}.hashes"]
        values = chunk.arrays[f"{k}.values"]
        to = (major, minor)
        pieces.append(Piece(name, to, is_last, rows, hashes, values, dict(ids)))
    return pieces
