"""Retrieval by the towers alone: scores against all known items in blocks, so that no
users x items matrix is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer.model.batch import Floats, Ints, Recent, Rows
from streamer.model.device import to_device
from streamer.model.jit import inlined, njit_allocating, njit_borrowing
from streamer.model.rows.growing import capacity_for
from streamer.model.towers import TouchedRows
from streamer.model.trainer import Trainer

BLOCK_CELLS = 1 << 22
CHUNK_ITEMS = 1 << 12
LARGEST_PRODUCT = np.float32(50)
"""An inner product beyond this is cut to it, and one that is not a number is zero:
neither ruins a ranker.
"""
COSINE = np.float32(4)
"""What a cosine of 1 is as a feature: the size of an inner product of trained vectors."""
RUN = 64
MAX_INSERTED = 256
"""Of this many scores in a row the best is looked at first; up to this many are kept in
order by insertion.
"""


class Similarity(IntEnum):
    """Columns of what `compare` writes of a user and an item, in the order of the
    ranker's features of the towers.
    """

    PRODUCT = 0
    COSINE = 1
    MOST_RECENT_COSINE = 2  # the largest with one of the user's recent items


@dataclass(frozen=True, slots=True)
class Items:
    """Vectors of all known items, as they are now."""

    vectors: Tensor  # [N, d]
    unused: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows that have no item."""
    allowed: NDArray[np.bool_] | None = None
    """[N] which items may be found; None: all."""

    def __len__(self) -> int:
        return len(self.vectors)


class Retriever:
    """Scores users against items with a trainer's current weights.

    Args:
        trainer: whose model it is.
        unused: returns the rows that have no item.
    """

    def __init__(
        self,
        trainer: Trainer,
        unused: Callable[[], Rows] | None = None,
    ) -> None:
        self.trainer = trainer
        self._unused = unused
        self._scratch: Tensor | None = None
        self._vectors: Tensor | None = None

    @torch.no_grad()
    def items(self, size: int | None = None) -> Items:
        """The vectors of all known items, or of the first `size`; the memory is used
        again by the next call.
        """
        if size is None:
            size = self.trainer.model.item.size
        if self._vectors is None or len(self._vectors) < size:
            dim = self.trainer.settings.item_tower.out_dim
            shape = (capacity_for(size, 0), dim)
            self._vectors = torch.empty(shape, device=self.trainer.device)
        for start in range(0, size, CHUNK_ITEMS):
            stop = min(start + CHUNK_ITEMS, size)
            rows = np.arange(start, stop)
            self._vectors[start:stop] = self._item_vectors(rows)
        return Items(self._vectors[:size], self._rows_without_item(size))

    def _rows_without_item(self, size: int) -> Rows:
        if self._unused is None:
            return np.empty(0, np.int64)
        unused = self._unused()
        return unused[unused < size]

    def _item_vectors(self, rows: Rows) -> Tensor:
        return self.trainer.model.items(TouchedRows(self.trainer.device), rows)

    def _to_device(self, value: NDArray[Any]) -> Tensor:
        return to_device(value, self.trainer.device)

    @torch.no_grad()
    def queries(self, users: Rows, recent: Recent | None) -> Tensor:
        """Vectors of users [B, d], to be multiplied with those of `items`.

        Args:
            users: [B] user rows; one that the tables do not have yet is served by its
                recent items alone.
            recent: [B, L] recent items of each.
        """
        model = self.trainer.model
        touched = TouchedRows(self.trainer.device)
        model.user.grow(int(users.max(initial=-1)) + 1)
        distinct, at_user = np.unique(users, return_inverse=True)
        vectors = torch.empty(0)
        places = None
        if recent is not None and model.recency is not None:
            latest = recent[:, : model.settings.recent_items]
            vectors, at = self._vectors_at(latest)
            places = self._to_device(at.astype(np.int32))
        return model.queries(
            touched,
            distinct,
            self._to_device(at_user),
            vectors,
            places,
        )

    def _vectors_at(self, items: Ints) -> tuple[Tensor, Rows]:
        """The vectors of distinct items, and the place of each item among them; -1
        stays -1.
        """
        distinct, at = np.unique(items, return_inverse=True)
        none = int(len(distinct) > 0 and distinct[0] == -1)
        vectors = self._item_vectors(distinct[none:].astype(np.int64))
        return vectors, at.reshape(items.shape) - none

    @torch.no_grad()
    def nearest_among(
        self,
        items: Rows,
        users: Rows,
        recent: Recent | None,
        count: int,
    ) -> Rows:
        """[B, min(count, N)] those of some items that are nearest to each user, nearest
        first.
        """
        queries = self.queries(users, recent)
        scores = torch.mm(queries, self._item_vectors(items).T)
        best = scores.topk(min(count, len(items)), dim=1)
        nearest: Rows = items[best.indices.cpu().numpy()]
        return nearest

    @torch.no_grad()
    def similarities(
        self,
        users: Rows,
        recent: Recent | None,
        first: Rows,
        items: Ints,
    ) -> Floats:
        """[c, 3] of each user and the items from `first[k]` to `first[k + 1]`: see
        `compare`.
        """
        queries = self.queries(users, recent).cpu().numpy()
        if recent is None:
            recent = np.empty((len(users), 0), np.int32)
        found_vectors, at = self._vectors_at(np.append(items, recent))
        vectors = found_vectors.cpu().numpy()
        of_items, of_recent = np.split(at, [len(items)])
        found = np.empty((len(items), len(Similarity)), np.float32)
        compare(
            queries,
            vectors,
            lengths_of(vectors),
            of_recent.reshape(recent.shape),
            first,
            of_items,
            found,
        )
        return found

    @torch.no_grad()
    def ranks_with_and_without(
        self,
        items: Items,
        users: Rows,
        targets: Rows,
        recent: Recent | None = None,
        left_out: Sequence[Ints] | None = None,
    ) -> tuple[Rows, Rows]:
        """The ranks among all known items, and among them without some, from the same
        scores.

        The second is the first less the items left out that stand before the target:
        nothing is scored twice.

        Ranks count from 1, and ties count against the target.

        Args:
            items: from `items()`.
            users: [B] user rows.
            targets: [B] item rows; one that is not known yet gets the rank N + 1.
            recent: [B, L] recent items of each user.
            left_out: items left out of each user's second ranking (not the target).
        """
        with_all = np.full(len(users), len(items) + 1, np.int64)
        without = with_all.copy()
        known = np.flatnonzero(targets < len(items))
        if recent is not None:
            recent = recent[known]
        for part, scores in self._blocks(items, users[known], recent):
            rows = known[part]
            columns = _at(targets[rows], scores)
            own = scores.gather(1, columns.unsqueeze(1))  # [R, 1]
            # a score that is not a number ranks behind all others
            found = len(items) - (scores < own).sum(1).cpu().numpy()
            with_all[rows] = found
            if left_out is not None:
                others = [left_out[row] for row in rows.tolist()]
                found -= _not_below_among(scores, own, others)
            without[rows] = found
        return with_all, without

    @torch.no_grad()
    def top(
        self,
        items: Items,
        users: Rows,
        count: int,
        recent: Recent | None = None,
        *,
        exact: bool = False,
    ) -> tuple[Rows, Floats]:
        """The best items of each user and their scores, [B, min(count, N)]; rows that
        have no item score -inf. Here they are always exact.
        """
        count = min(count, len(items))
        rows = np.empty((len(users), count), np.int64)
        values = np.empty((len(users), count), np.float32)
        most_inserted = min(len(items) // RUN, MAX_INSERTED)
        for part, scores in self._blocks(items, users, recent):
            if scores.device.type == "cpu" and count <= most_inserted:
                _top(scores.numpy(), rows[part], values[part])
                continue
            best = scores.topk(count, dim=1)
            rows[part] = best.indices.cpu().numpy()
            values[part] = best.values.cpu().numpy()
        return rows, values

    def _blocks(
        self,
        items: Items,
        users: Rows,
        recent: Recent | None,
    ) -> Iterator[tuple[slice, Tensor]]:
        """Scores of some users at a time, [R, N]; a block is overwritten by the next."""
        if not len(users):
            return
        queries = self.queries(users, recent)
        size = max(1, BLOCK_CELLS // max(len(items), 1))
        cells = min(size, len(users)) * len(items)
        block = self._memory(queries, cells).view(-1, len(items))
        for start in range(0, len(users), size):
            part = slice(start, min(start + size, len(users)))
            scores = torch.mm(
                queries[part],
                items.vectors.T,
                out=block[: part.stop - start],
            )
            if len(items.unused):
                scores[:, _at(items.unused, scores)] = -torch.inf
            if items.allowed is not None:
                left_out = np.flatnonzero(~items.allowed)
                scores[:, _at(left_out, scores)] = -torch.inf
            yield part, scores

    def _memory(self, like: Tensor, cells: int) -> Tensor:
        """Memory for a block, the same each time."""
        if self._scratch is None or len(self._scratch) < cells:
            self._scratch = like.new_empty(max(cells, BLOCK_CELLS))
        return self._scratch[:cells]


def _at(rows: Rows, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(like.device)


def _not_below_among(scores: Tensor, own: Tensor, others: Sequence[Ints]) -> Rows:
    """[R] how many of some known items of each row score at least as much as its own."""
    lengths = [len(of_row) for of_row in others]
    rows = np.repeat(np.arange(len(others)), lengths)
    items = np.concatenate([*others, np.empty(0, np.int64)])
    known = items < scores.shape[1]
    at = _at(rows[known], scores)
    columns = _at(items[known], scores)
    below = scores[at, columns] < own[at, 0]
    found = torch.bincount(at[~below], minlength=len(scores))
    return found.cpu().numpy()


@njit_allocating
def _top(scores: Floats, rows: Rows, values: Floats) -> None:
    """As `topk`: the n-th best of the runs' best scores is a bound that at least n
    scores reach, and few others.
    """
    most = rows.shape[1]
    best = np.empty(-(-scores.shape[1] // RUN), np.float32)
    for b in range(len(scores)):
        for run in range(len(best)):
            best[run] = -np.inf
            for item in range(run * RUN, min((run + 1) * RUN, scores.shape[1])):
                best[run] = max(best[run], scores[b, item])
        bound = np.partition(best, len(best) - most)[len(best) - most]
        found = 0
        for run in range(len(best)):
            if best[run] < bound:
                continue
            for item in range(run * RUN, min((run + 1) * RUN, scores.shape[1])):
                score = scores[b, item]
                if score < bound or (found == most and score <= values[b, most - 1]):
                    continue
                found = min(found + 1, most)
                at = found - 1
                while at > 0 and score > values[b, at - 1]:
                    rows[b, at] = rows[b, at - 1]
                    values[b, at] = values[b, at - 1]
                    at -= 1
                rows[b, at] = item
                values[b, at] = score


@njit_allocating
def lengths_of(vectors: Floats) -> Floats:
    """[T] of vectors, as `compare` divides by them."""
    lengths = np.empty(len(vectors), np.float32)
    for v in range(len(vectors)):
        lengths[v] = _length(vectors[v])
    return lengths


@njit_borrowing
def compare(
    queries: Floats,
    vectors: Floats,
    lengths: Floats,
    recent: NDArray[np.integer[Any]],
    first: Rows,
    at: NDArray[np.integer[Any]],
    found: Floats,
) -> None:
    """Write of each query q and each vector at `at[first[q]:first[q + 1]]`: inner
    product, cosine, and largest cosine with a vector of the user's recent items,
    `recent[q]` (-1 after the last); 0 without any."""
    for q in range(len(queries)):
        length = _length(queries[q])
        for c in range(first[q], first[q + 1]):
            vector = vectors[at[c]]
            product = _dot(queries[q], vector)
            most = np.float32(0)
            for r in recent[q]:
                if r < 0:
                    break
                most = max(most, _dot(vectors[r], vector) / lengths[r])
            cosine = product / (length * lengths[at[c]])
            found[c, Similarity.PRODUCT] = _bounded(product)
            found[c, Similarity.COSINE] = _bounded(COSINE * cosine)
            most /= lengths[at[c]]
            found[c, Similarity.MOST_RECENT_COSINE] = _bounded(COSINE * most)


@inlined
def _dot(a: Floats, b: Floats) -> np.float32:
    total = np.float32(0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@inlined
def _length(a: Floats) -> np.float32:
    return max(np.sqrt(_dot(a, a)), np.float32(1e-6))


@inlined
def _bounded(x: np.float32) -> np.float32:
    if x != x:
        return np.float32(0)
    return min(max(x, -LARGEST_PRODUCT), LARGEST_PRODUCT)
