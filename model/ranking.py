"""Ranking against all known items, in blocks: no users x items matrix is ever held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer.model.batch import Floats, LogPopularity, Recent, Rows
from streamer.model.co_occurrence import CoOccurrence
from streamer.model.device import to_device
from streamer.model.jit import compiled
from streamer.model.sparse_scores import SparseTerm
from streamer.model.towers import TouchedRows
from streamer.model.trainer import Trainer

BLOCK_CELLS = 1 << 22
CHUNK_ITEMS = 1 << 12


@dataclass(frozen=True, slots=True)
class Items:
    """Vectors of all known items, as they are now; the prior, if there is one, is the last dimension."""

    vectors: Tensor  # [N, d]

    def __len__(self) -> int:
        return len(self.vectors)


class Excluded(NamedTuple):
    """Items left out of each user's ranking, side by side.

    Args:
        first: [B + 1] user b's items are `items[first[b]:first[b + 1]]`.
        items: item rows, each once a user.
    """

    first: Rows
    items: NDArray[np.integer[Any]]

    @classmethod
    def of(cls, excluded: Sequence[Rows]) -> Excluded:
        """The items of each user, given one by one."""
        first = np.cumsum([0, *map(len, excluded)])
        return cls(first, np.concatenate([*excluded, np.empty(0, np.int64)]))

    def only(self, users: Rows) -> Excluded:
        """The items of some users alone."""
        rows, items = self.of_users(users)
        return Excluded(np.searchsorted(rows, np.arange(len(users) + 1)), items)

    def of_users(self, users: Rows) -> tuple[Rows, NDArray[np.integer[Any]]]:
        """The items of some users, and for each the place of its user among those."""
        sizes = self.first[users + 1] - self.first[users]
        rows = np.repeat(np.arange(len(users)), sizes)
        before = np.cumsum(sizes) - sizes
        return rows, self.items[np.arange(len(rows)) - before[rows] + self.first[users][rows]]


class Ranker:
    """Scores users against all items with a trainer's current weights.

    Args:
        trainer: whose model ranks.
        prior: popularity that is part of the score; needed if the model has a prior.
        co_occurrence: neighbours of each item; needed if the model uses them.
    """

    def __init__(
        self, trainer: Trainer, prior: LogPopularity | None = None, co_occurrence: CoOccurrence | None = None
    ) -> None:
        self.trainer, self.prior, self.co_occurrence = trainer, prior, co_occurrence
        self._scratch: Tensor | None = None

    @torch.no_grad()
    def items(self, size: int | None = None, into: Tensor | None = None) -> Items:
        """The vectors of all known items, or of the first `size`.

        Args:
            size: how many items.
            into: memory for them, from `room`; whoever ranks again and again saves the time that new memory takes.
        """
        size = self.trainer.model.item.size if size is None else size
        vectors = self.room(size) if into is None else into[:size]
        for start in range(0, size, CHUNK_ITEMS):
            rows = np.arange(start, min(start + CHUNK_ITEMS, size))
            self._write(vectors[start : start + len(rows)], rows)
        return Items(vectors)

    def room(self, size: int) -> Tensor:
        """Memory for the vectors of this many items."""
        model = self.trainer.model
        width = model.settings.item_tower.out_dim + (model.beta is not None)
        return torch.empty(size, width, device=self.trainer.device)

    def _write(self, vectors: Tensor, rows: Rows) -> None:
        found = self._item_vectors(rows)
        vectors[:, : found.shape[1]] = found
        if self.trainer.model.beta is not None:
            assert self.prior is not None, "the model has a prior: pass the popularity it is learned with"
            vectors[:, -1] = self._to_device(self.prior.log_pop(rows))

    def _item_vectors(self, rows: Rows) -> Tensor:
        return self.trainer.model.items(TouchedRows(self.trainer.device), rows)

    def _to_device(self, value: NDArray[Any]) -> Tensor:
        return to_device(value, self.trainer.device)

    @torch.no_grad()
    def queries(self, users: Rows, recent: Recent | None) -> Tensor:
        """Vectors of users [B, d], to be multiplied with those of `items`.

        Args:
            users: [B] user rows; one that the tables do not have yet is served by its recent items alone.
            recent: [B, L] recent items of each.
        """
        model, touched = self.trainer.model, TouchedRows(self.trainer.device)
        model.user.grow(int(users.max(initial=-1)) + 1)
        distinct, place = np.unique(users, return_inverse=True)
        if recent is not None and model.recency is not None:
            used, at = np.unique(recent[:, : model.settings.recent_items], return_inverse=True)
            offset = int(len(used) > 0 and used[0] == -1)
            vectors = self._item_vectors(used[offset:].astype(np.int64))
            at = (at.reshape(len(users), -1) - offset).astype(np.int32)
            queries = model.queries(touched, distinct, self._to_device(place), vectors, self._to_device(at))
        else:
            queries = model.queries(touched, distinct, self._to_device(place), torch.empty(0), None)
        if model.beta is None:
            return queries
        return torch.cat([queries, model.beta.expand(len(users), 1)], dim=1)

    def bonus(self, recent: Recent | None) -> NDArray[np.float32] | None:
        """[B, L] what the repeat bias adds to each recent item's score."""
        repeat = self.trainer.model.repeat
        if repeat is None or recent is None:
            return None
        ranks = min(len(repeat), recent.shape[1])
        row = np.zeros(recent.shape[1], np.float32)
        row[:ranks] = repeat.detach().cpu().numpy()[:ranks]
        return np.where(recent >= 0, row, np.float32(0))

    @torch.no_grad()
    def near(self, recent: Recent | None, items: int) -> SparseTerm | None:
        """What the neighbours of each user's recent items add to the scores of the first `items`."""
        model = self.trainer.model
        if model.gamma is None or recent is None:
            return None
        assert self.co_occurrence is not None, "the model has a co-occurrence term: pass what it is learned with"
        found = self.co_occurrence.nearness(recent, np.arange(items))
        values = model.near_bonus(self._to_device(found.values), self._to_device(found.is_recent))
        return SparseTerm(found.rows, found.columns, values)

    @torch.no_grad()
    def ranks(
        self,
        items: Items,
        users: Rows,
        targets: Rows,
        recent: Recent | None = None,
        excluded: list[Rows] | None = None,
    ) -> NDArray[np.int64]:
        """The rank of each user's target among all known items, from 1; ties count against it.

        Args:
            items: from `items()`.
            users: [B] user rows.
            targets: [B] item rows; one that is not known yet gets the rank N + 1.
            recent: [B, L] recent items of each user.
            excluded: items left out of each user's ranking (not the target).
        """
        left_out = None if excluded is None else Excluded.of(excluded)
        return self.ranks_with_and_without(items, users, targets, recent, left_out)[excluded is not None]

    @torch.no_grad()
    def ranks_with_and_without(
        self,
        items: Items,
        users: Rows,
        targets: Rows,
        recent: Recent | None = None,
        left_out: Excluded | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ranks among all known items, and among them without some, from the same scores.

        The second is the first less the items left out that stand before the target: nothing is scored twice.

        Args:
            items: see `ranks`; so are `users`, `targets` and `recent`.
            left_out: items left out of each user's second ranking (not the target).
        """
        with_all = np.full(len(users), len(items) + 1, np.int64)
        without = with_all.copy()
        known = np.flatnonzero(targets < len(items))
        for part, scores in self._blocks(items, users[known], recent[known] if recent is not None else None):
            rows = known[part]
            own = scores.gather(1, _at(targets[rows], scores).unsqueeze(1))  # [R, 1]
            found = _not_below(scores, own)
            with_all[rows] = np.maximum(found, 1)
            if left_out is not None:
                found = found - _not_below_among(scores, own, left_out, rows)
            without[rows] = np.maximum(found, 1)
        return with_all, without

    @torch.no_grad()
    def top(
        self, items: Items, users: Rows, count: int, recent: Recent | None = None, excluded: list[Rows] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The best items of each user and their scores, [B, min(count, N)]; what is excluded has the score -inf."""
        count = min(count, len(items))
        rows, values = np.empty((len(users), count), np.int64), np.empty((len(users), count), np.float32)
        left_out = None if excluded is None else Excluded.of(excluded)
        for part, scores in self._blocks(items, users, recent):
            if left_out is not None:
                scores.view(-1)[_cells(scores, *left_out.of_users(np.arange(len(users))[part]))] = -torch.inf
            best = scores.topk(count, dim=1)
            rows[part], values[part] = best.indices.cpu().numpy(), best.values.cpu().numpy()
        return rows, values

    def _blocks(self, items: Items, users: Rows, recent: Recent | None) -> Iterator[tuple[slice, Tensor]]:
        """Scores of some users at a time, [R, N]; a block is overwritten by the next."""
        if not len(users):
            return
        queries, bonus, near = self.queries(users, recent), self.bonus(recent), self.near(recent, len(items))
        size = max(1, BLOCK_CELLS // max(len(items), 1))
        block = self._memory(queries, min(size, len(users)) * len(items)).view(-1, len(items))
        for start in range(0, len(users), size):
            part = slice(start, min(start + size, len(users)))
            scores = torch.mm(queries[part], items.vectors.T, out=block[: part.stop - start])
            if bonus is not None:
                assert recent is not None
                _add_bonus(scores, recent[part], bonus[part])
            if near is not None:
                _add_near(scores, near, part)
            yield part, scores

    def _memory(self, like: Tensor, cells: int) -> Tensor:
        """Memory for a block, the same each time."""
        if self._scratch is None or len(self._scratch) < cells:
            self._scratch = like.new_empty(max(cells, BLOCK_CELLS))
        return self._scratch[:cells]


def _add_bonus(scores: Tensor, recent: Recent, bonus: NDArray[np.float32]) -> None:
    at, place = np.nonzero((recent >= 0) & (recent < scores.shape[1]))
    cells = _cells(scores, at, recent[at, place])
    scores.view(-1).index_add_(0, cells, torch.from_numpy(bonus[at, place]).to(scores.device))


def _add_near(scores: Tensor, near: SparseTerm, part: slice) -> None:
    here = slice(*np.searchsorted(near.rows, [part.start, part.stop]))
    cells = _cells(scores, near.rows[here] - part.start, near.columns[here])
    scores.view(-1).index_add_(0, cells, near.values[here])


def _at(rows: Rows, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(like.device)


def _cells(scores: Tensor, rows: Rows, items: NDArray[np.integer[Any]]) -> Tensor:
    """Places in the flat block; items that are not known have none."""
    known = items < scores.shape[1]
    return _at(rows[known] * scores.shape[1] + items[known], scores)


def _not_below(scores: Tensor, own: Tensor) -> NDArray[np.int64]:
    """[R] how many items of each row score at least as much as its own."""
    if scores.device.type != "cpu":
        return (scores >= own).sum(1).cpu().numpy()
    found = np.empty(len(scores), np.int64)
    _count_not_below(scores.numpy(), own.numpy()[:, 0], found)
    return found


def _not_below_among(scores: Tensor, own: Tensor, left_out: Excluded, users: Rows) -> NDArray[np.int64]:
    """[R] the same of what is left out."""
    if scores.device.type != "cpu":
        cells = _cells(scores, *left_out.of_users(users))
        rows = cells // scores.shape[1]
        before = scores.view(-1)[cells] >= own.view(-1)[rows]
        return torch.bincount(rows[before], minlength=len(scores)).cpu().numpy()
    found = np.empty(len(scores), np.int64)
    _count_not_below_among(scores.numpy(), own.numpy()[:, 0], left_out.first, left_out.items, users, found)
    return found


@compiled
def _count_not_below(scores: Floats, own: Floats, found: NDArray[np.int64]) -> None:
    for row in range(len(scores)):
        count = 0
        for score in scores[row]:
            count += score >= own[row]
        found[row] = count


@compiled
def _count_not_below_among(
    scores: Floats, own: Floats, first: Rows, items: NDArray[Any], users: Rows, found: NDArray[np.int64]
) -> None:
    known = scores.shape[1]
    for row in range(len(scores)):
        count = 0
        for place in range(first[users[row]], first[users[row] + 1]):
            item = items[place]
            count += item < known and scores[row, item] >= own[row]
        found[row] = count
