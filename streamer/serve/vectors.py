"""The item vectors of a server: kept between requests, and renewed where a delta
changed them.

Up to `EXACT_ITEMS` items the nearest are found by scoring all of them, as a trainer
does. Above, an inverted file of faiss (`IVFFlat`) finds most of them in a fraction of
the time; what changed since it was built is scored beside it.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer import DISTRIBUTION
from streamer.model.batch import Floats, Recent, Rows
from streamer.model.retrieval import (
    CHUNK_ITEMS,
    Items,
    Retriever,
    Similarity,
    compare,
    lengths_of,
)
from streamer.model.rows.growing import capacity_for, grown
from streamer.model.towers import TouchedRows
from streamer.model.trainer import Trainer

logger = logging.getLogger(__name__)

EXACT_ITEMS = 200_000
"""Up to this many items all are scored."""
PROBES = 32
"""Lists of the inverted file that are looked through."""
POINTS_A_LIST = 40
"""Vectors that the middle of a list is found from."""
MAX_SEARCHED = 2048
"""Who wants more of the nearest gets them by scoring all."""
REBUILD_SHARE = 0.02
"""The index is built again when this share of the items has changed since."""


class KeptVectors(Retriever):
    """Retrieves like `Retriever`, with vectors that are computed once. Only the
    building of an index has a thread.

    Args:
        trainer: whose model it is.
        unused: returns the rows that have no item.
        exact_items: up to this many items, no index is built.
    """

    def __init__(
        self,
        trainer: Trainer,
        unused: Callable[[], Rows] | None = None,
        exact_items: int = EXACT_ITEMS,
    ) -> None:
        super().__init__(trainer, unused)
        self._exact_items = exact_items
        tower = trainer.settings.item_tower
        has_features = tower.layers or tower.numeric or tower.categorical
        self._by_row = not has_features  # a vector depends on its own row alone
        self._kept = torch.empty(0, tower.out_dim)
        self._size = 0
        self._without_item = np.empty(0, np.int64)
        self._lengths = np.empty(0, np.float32)  # of the kept vectors
        self._latest_queries: tuple[Rows, Recent | None, Tensor] | None = None
        self._index: Any = None
        self._changed = _ChangedRows()  # since the index was built
        self._next: _IndexBuild | None = None

    @torch.no_grad()
    def renew(self, rows: Rows, size: int) -> None:
        """Compute the vectors of items that have changed; of all, where they depend on
        more than the item's own row.

        Args:
            rows: the items.
            size: how many items there are now.
        """
        self._make_room(size)
        # Rows beyond `size` belong to no item yet.
        rows = rows[rows < size]
        if not self._by_row:
            rows = np.arange(size)
        for start in range(0, len(rows), CHUNK_ITEMS):
            part = rows[start : start + CHUNK_ITEMS]
            vectors = super()._item_vectors(part)
            self._kept[torch.from_numpy(part)] = vectors
            self._lengths[part] = lengths_of(vectors.numpy())
        self._size = size
        self._without_item = self._rows_without_item(size)
        self._latest_queries = None
        self._refresh_index(rows)

    def _make_room(self, size: int) -> None:
        if size <= len(self._kept):
            return
        capacity = capacity_for(size, len(self._kept))
        larger = torch.empty(capacity, self._kept.shape[1])
        larger[: self._size] = self._kept[: self._size]
        self._kept = larger
        self._lengths = grown(self._lengths, capacity)

    def _item_vectors(self, rows: Rows) -> Tensor:
        return self._kept.index_select(0, torch.from_numpy(rows))

    @torch.no_grad()
    def queries(self, users: Rows, recent: Recent | None) -> Tensor:
        """See `Retriever.queries`; a request asks for the same ones twice."""
        if self._latest_queries is not None:
            latest_users, latest_recent, vectors = self._latest_queries
            if latest_users is users and latest_recent is recent:
                return vectors
        model = self.trainer.model
        size = int(users.max(initial=-1)) + 1
        model.user.grow(size)
        recent_items = None
        if recent is not None:
            recent_items = torch.from_numpy(recent)
        vectors = model.queries(
            TouchedRows(self.trainer.device),
            users,
            torch.arange(len(users)),
            self._kept,
            recent_items,
        )
        self._latest_queries = (users, recent, vectors)
        return vectors

    def similarities(
        self, users: Rows, recent: Recent | None, first: Rows, items: NDArray[np.int32]
    ) -> Floats:
        """See `Retriever.similarities`."""
        queries = self.queries(users, recent).numpy()
        if recent is None:
            recent = np.empty((len(users), 0), np.int32)
        kept = self._kept.numpy()
        found = np.empty((len(items), len(Similarity)), np.float32)
        compare(queries, kept, self._lengths, recent, first, items, found)
        return found

    def items(self, size: int | None = None) -> Items:
        """The vectors of all known items, or of the first `size`; a view."""
        if size is None or size > self._size:
            size = self._size
        without_item = self._without_item
        return Items(self._kept[:size], without_item[without_item < size])

    @torch.no_grad()
    def top(
        self,
        items: Items,
        users: Rows,
        count: int,
        recent: Recent | None = None,
        *,
        exact: bool = False,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See `Retriever.top`; approximately, if there is an index and they need
        not be exact.
        """
        self._take_over_index()
        if self._index is None or exact or count > MAX_SEARCHED:
            return super().top(items, users, count, recent)
        queries = self.queries(users, recent)
        selected = _selecting(items.allowed)
        # [B, count]
        scores, rows = self._index.search(queries.numpy(), count, params=selected)
        is_left_out = (rows < 0) | self._changed.marks(rows)
        scores[is_left_out] = -np.inf
        fresh, vectors = self._changed.rows(self._kept)
        if len(fresh):
            fresh_rows = np.tile(fresh, (len(users), 1))
            rows = np.concatenate([rows, fresh_rows], axis=1)
            fresh_scores = torch.mm(queries, vectors.T).numpy()
            scores = np.concatenate([scores, fresh_scores], axis=1)
        scores[np.isin(rows, self._without_item)] = -np.inf
        if items.allowed is not None:
            scores[~items.allowed[rows]] = -np.inf
            enough = np.isfinite(scores).sum(axis=1) >= count
            if not enough.all():
                return super().top(items, users, count, recent)
        order = np.argsort(-scores, axis=1, kind="stable")
        best = order[:, :count]
        rows = np.take_along_axis(rows, best, 1)
        scores = np.take_along_axis(scores, best, 1)
        return np.where(np.isfinite(scores), rows, -1), scores

    # the index --------------------------------------------------------------------------------------------------------

    def _refresh_index(self, rows: Rows) -> None:
        """Note what has changed, and begin to build another index if it is time."""
        self._changed.add(rows, self._size)
        if self._next is not None:
            self._next.changed.add(rows, self._size)
        self._take_over_index()
        is_old = self._changed.count > REBUILD_SHARE * self._size
        if self._size <= self._exact_items or self._next is not None:
            return
        if (self._index is None or is_old) and has_faiss():
            vectors = self._kept[: self._size].clone()
            self._next = _IndexBuild(vectors.numpy())

    def _take_over_index(self) -> None:
        if self._next is None or self._next.thread.is_alive():
            return
        if self._next.index is not None:
            self._index = self._next.index
            self._changed = self._next.changed
        self._next = None

    @property
    def indexed_items(self) -> int:
        """Items that are found by an index; 0 if all are scored."""
        return self._index.ntotal if self._index is not None else 0


def _selecting(allowed: NDArray[np.bool_] | None) -> Any:
    """What makes a search pass over items that are not allowed."""
    if allowed is None:
        return None
    import faiss

    make_selector: Any = faiss.IDSelectorBitmap
    make_parameters: Any = faiss.SearchParametersIVF
    bits = np.packbits(allowed, bitorder="little")
    return make_parameters(sel=make_selector(bits), nprobe=PROBES)


class _ChangedRows:
    """Rows that have changed, and their vectors side by side."""

    def __init__(self, size: int = 0) -> None:
        self._flags = np.zeros(size, np.bool_)
        self._rows: Rows | None = None
        self._vectors = torch.empty(0, 0)

    @property
    def count(self) -> int:
        return int(self._flags.sum())

    def add(self, rows: Rows, size: int) -> None:
        self._flags = grown(self._flags, size)
        self._flags[rows] = True
        self._rows = None

    def marks(self, rows: Rows) -> NDArray[np.bool_]:
        return self._flags[rows]

    def rows(self, vectors: Tensor) -> tuple[Rows, Tensor]:
        if self._rows is None:
            self._rows = np.flatnonzero(self._flags)
            self._vectors = vectors[torch.from_numpy(self._rows)]
        return self._rows, self._vectors


class _IndexBuild:
    """An index that is being built of vectors as they were, on a thread of its own."""

    def __init__(self, vectors: Floats) -> None:
        self.index: Any = None
        self.changed = _ChangedRows(len(vectors))
        self.thread = threading.Thread(
            target=self._build, args=(vectors,), name="index", daemon=True
        )
        self.thread.start()

    def _build(self, vectors: Floats) -> None:
        import faiss

        began = time.monotonic()
        faiss.omp_set_num_threads(1)  # of this thread: requests go on beside it
        count, dim = vectors.shape
        lists = int(4 * count**0.5)
        quantizer = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFFlat(quantizer, dim, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.max_points_per_centroid = POINTS_A_LIST
        index.cp.min_points_per_centroid = 1
        index.cp.niter = 8
        index.train(vectors)
        index.add(vectors)
        index.nprobe = PROBES
        self.index = index
        logger.info(
            "indexed %s items in %.1f s", f"{count:,}", time.monotonic() - began
        )


@functools.cache
def has_faiss() -> bool:
    """Whether faiss is installed."""
    if importlib.util.find_spec("faiss") is not None:
        return True
    logger.warning(
        "faiss is missing, so that all items are scored at every request: pip install '%s[serve]'",
        DISTRIBUTION,
    )
    return False
