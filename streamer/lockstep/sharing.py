"""A group of trainers as one of the trainers that share through a store: rank 0
exchanges, all ranks apply the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from streamer.cache_store.codec import StoreDelta
from streamer.cache_store.contribution import Contribution, Increments, OffsetSpan
from streamer.cache_store.errors import StoreError
from streamer.cache_store.state import Corrected, Received, StoreStatus, Totals
from streamer.cache_store.store import CacheStore
from streamer.errors import SharingError
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Learned, Learner
from streamer.lockstep.group import Group
from streamer.sharing.sharing import FLUSH_S, LearnPart, StoreSharing
from streamer.snapshot.frames import NO_ROWS, Arrays, RowChunk, pack_chunk, unpack_chunk
from streamer.sources.base import Partition, Positions

PLAIN = ("retired", "retired_rows", "ids", "live", "row_version")
"""Fields of what is received that are no arrays."""


class NoStore:
    """What ranks other than 0 have in place of a store."""

    def map_rows(self, *_: object) -> None:
        """See `CacheStore.map_rows`."""

    def contribute(self, *_: object) -> None:
        """See `CacheStore.contribute`."""

    def retire(self, *_: object, force: bool) -> None:
        """See `CacheStore.retire`."""

    def restore(self, *_: object) -> None:
        """See `CacheStore.restore`."""

    def begin_with(self, *_: object) -> None:
        """See `CacheStore.begin_with`."""

    def flush(self, *_: object) -> bool:
        """See `CacheStore.flush`."""
        return True

    def status(self) -> StoreStatus:
        """See `CacheStore.status`."""
        return StoreStatus()

    def close(self, *_: object) -> None:
        """See `CacheStore.close`."""


class GroupSharing(StoreSharing):
    """One rank's part in what its group shares. All ranks call `start`, `receive`,
    `parts`, `contribute` and `before_save` together: these are collectives.

    Args:
        learner: of this rank.
        store: of rank 0; the others have `NoStore`.
        group: the ranks.
        partitions: those of all ranks.
        patience_s: how long the others wait while rank 0 claims partitions.
    """

    def __init__(
        self,
        learner: Learner,
        store: CacheStore | NoStore,
        group: Group,
        partitions: Callable[[], Sequence[Partition]],
        patience_s: float = FLUSH_S,
    ) -> None:
        super().__init__(learner, store)  # type: ignore[arg-type]
        self._group = group
        self._partitions = partitions
        self._patience_s = patience_s
        self._claimed: set[Partition] = set()
        self._counted: Mapping[
            str, int
        ] = {}  # up to which offset the store has counted each partition
        self._saved: tuple[Arrays, dict[str, Any]] = {}, {}

    def start(self) -> None:
        self._apply(self._from_lead(self._start))

    def receive(self) -> None:
        self._apply(self._from_lead(self._receive))

    def before_save(self) -> None:
        self._apply(self._from_lead(self._save))

    def save(self) -> tuple[Arrays, dict[str, Any]]:
        arrays, values = self._saved
        return (
            (arrays | self._numbering(), values) if self._group.rank == 0 else ({}, {})
        )

    def parts(
        self, batch: MicroBatch, ends: Callable[[], Positions]
    ) -> list[LearnPart]:
        new = np.ones(len(batch), np.bool_)
        for partition, start, stop in batch.origins:
            new[start:stop] = np.array(batch.offsets[start:stop]) >= self._counted.get(
                str(partition), 0
            )
            self._note_duplicates([str(partition)] * int((~new[start:stop]).sum()))
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
        if not part.counted:
            return
        batch = part.batch
        own = [(*o.partition, batch.offsets[o.start : o.stop]) for o in batch.origins]
        messages = self._group.gather(
            np.frombuffer(msgspec.msgpack.encode(own), np.uint8)
        )
        found = sorted(
            span
            for message in messages
            for span in msgspec.msgpack.decode(message.data)
        )
        if found:
            spans = tuple(
                OffsetSpan(str(Partition(t, p)), offsets[0], offsets[-1] + 1)
                for t, p, offsets in found
            )
            sources = np.repeat(
                np.arange(len(found), dtype=np.int32),
                [len(offsets) for *_, offsets in found],
            )
            self._contribute(
                spans, sources, [at for *_, offsets in found for at in offsets], learned
            )

    def _counted_until(self, partition: str) -> int:
        return self._counted.get(partition, 0)

    def _give_back_numbers(self) -> None:
        """Numbers stay: the others do not know which of them the store refers to."""

    # on rank 0 --------------------------------------------------------------------------------------------------------

    def _start(self) -> Received:
        self._store.start()
        return self._store.receive()

    def _receive(self) -> Received:
        if new := set(self._partitions()) - self._claimed:
            self._claimed |= new
            self._store.claim(
                dict.fromkeys(str(p) for p in sorted(new)), self._patience_s
            )
        return self._store.receive()

    def _save(self) -> Received:
        arrays, values, received = self._store.save()
        self._saved = arrays, values
        return received

    # to all ranks -----------------------------------------------------------------------------------------------------

    def _from_lead(self, receive: Callable[[], Received]) -> Received:
        """What rank 0 has received.

        Raises:
            SharingError: on all ranks, if rank 0 could not.
        """
        message = b""
        if self._group.rank == 0:
            try:
                received = receive()
                counted = {
                    str(p): self._store.counted_until(str(p)) for p in self._claimed
                }
                message = pack_chunk("received", NO_ROWS, *_packed(received, counted))
            except StoreError as error:
                message = pack_chunk("error", NO_ROWS, {}, {"error": str(error)})
        lengths = [
            int(n[0]) for n in self._group.gather_equal(np.array([len(message)]))
        ]
        chunk = unpack_chunk(
            self._group.gather_sized(np.frombuffer(message, np.uint8), lengths)[0].data
        )
        if chunk.kind == "error":
            raise SharingError(chunk.values["error"])
        self._counted = chunk.values["counted"]
        return _unpacked(chunk)


def _packed(
    received: Received, counted: Mapping[str, int]
) -> tuple[Arrays, dict[str, Any]]:
    arrays: Arrays = {}
    for k, delta in enumerate(received.deltas):
        for name, part in (("items", delta.items), ("drawn", delta.drawn)):
            arrays |= {
                f"delta.{k}.{name}.rows": part.rows,
                f"delta.{k}.{name}.counts": part.counts,
            }
    pending: tuple[Contribution, ...] = ()
    if received.reset is not None:
        arrays |= {
            "reset.counts": received.reset.counts,
            "reset.drawn": received.reset.drawn,
        }
        pending = received.reset.pending
    for k, contribution in enumerate(pending):
        arrays |= {
            f"pending.{k}.{name}": array
            for name, array in contribution.arrays().items()
        }
    if received.corrected is not None:
        arrays |= {
            f"corrected.{name}": array
            for name, array in received.corrected._asdict().items()
        }
    if received.cache is not None:
        arrays["cache"] = received.cache
    values = {name: getattr(received, name) for name in PLAIN} | {"counted": counted}
    spans = [[list(span) for span in contribution.spans] for contribution in pending]
    return arrays, values | {"deltas": len(received.deltas), "pending": spans}


def _unpacked(chunk: RowChunk) -> Received:
    arrays = chunk.arrays
    values = chunk.values
    deltas = []
    for k in range(values["deltas"]):
        items, drawn = (
            Increments(
                arrays[f"delta.{k}.{name}.rows"], arrays[f"delta.{k}.{name}.counts"]
            )
            for name in ("items", "drawn")
        )
        deltas.append(StoreDelta("", 0, 0, (), items, drawn))
    pending = []
    for k, spans in enumerate(values["pending"]):
        prefix = f"pending.{k}."
        own = {
            name.removeprefix(prefix): array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        pending.append(Contribution.from_arrays(spans, own))
    reset = None
    if "reset.counts" in arrays:
        reset = Totals(arrays["reset.counts"], arrays["reset.drawn"], tuple(pending))
    corrected = None
    if "corrected.items" in arrays:
        corrected = Corrected(
            *(arrays[f"corrected.{name}"] for name in Corrected._fields)
        )
    plain: dict[str, Any] = {name: values[name] for name in PLAIN}
    return Received(
        reset=reset,
        deltas=deltas,
        corrected=corrected,
        cache=arrays.get("cache"),
        **plain,
    )
