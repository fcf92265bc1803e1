"""Ranking against all known items, in blocks: no users x items matrix is ever held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import LogPopularity, Recent, Rows
from model.towers import Tape
from model.trainer import Trainer

BLOCK_CELLS = 1 << 22
CHUNK_ITEMS = 1 << 16


@dataclass(frozen=True, slots=True)
class Items:
    """Vectors of all known items, as they are now; the prior, if there is one, is the last dimension."""

    vectors: Tensor  # [N, d]

    def __len__(self) -> int:
        return len(self.vectors)


class Ranker:
    """Scores users against all items with a trainer's current weights.

    Args:
        trainer: whose model ranks.
        prior: popularity that is part of the score; needed if the model has a prior.
    """

    def __init__(self, trainer: Trainer, prior: LogPopularity | None = None) -> None:
        self.trainer, self.prior = trainer, prior

    @torch.no_grad()
    def items(self, size: int | None = None) -> Items:
        """The vectors of all known items, or of the first `size`."""
        model = self.trainer.model
        size = model.item.size if size is None else size
        chunks = []
        for start in range(0, size, CHUNK_ITEMS):
            rows = np.arange(start, min(start + CHUNK_ITEMS, size))
            chunks.append(self._with_prior(self._item_vectors(rows), rows))
        width = model.settings.item.out_dim + (model.beta is not None)
        return Items(torch.cat(chunks) if chunks else torch.empty(0, width, device=self.trainer.device))

    def _item_vectors(self, rows: Rows) -> Tensor:
        return self.trainer.model.items(Tape(self.trainer.device), rows)

    def _with_prior(self, vectors: Tensor, rows: Rows) -> Tensor:
        if self.trainer.model.beta is None:
            return vectors
        assert self.prior is not None, "the model has a prior: pass the popularity it is learned with"
        log_prior = Tape(self.trainer.device).tensor(self.prior.log_pop(rows))
        return torch.cat([vectors, log_prior.unsqueeze(1)], dim=1)

    @torch.no_grad()
    def queries(self, users: Rows, recent: Recent | None) -> Tensor:
        """Vectors of users [B, d], to be multiplied with those of `items`.

        Args:
            users: [B] user rows; one that the tables do not have yet is served by its recent items alone.
            recent: [B, L] recent items of each.
        """
        model, tape = self.trainer.model, Tape(self.trainer.device)
        model.user.grow(int(users.max(initial=-1)) + 1)
        distinct, place = np.unique(users, return_inverse=True)
        if recent is not None and model.recency is not None:
            used, at = np.unique(recent[:, : model.settings.recent_items], return_inverse=True)
            offset = int(len(used) > 0 and used[0] == -1)
            vectors = self._item_vectors(used[offset:].astype(np.int64))
            at = (at.reshape(len(users), -1) - offset).astype(np.int32)
            queries = model.queries(tape, distinct, tape.tensor(place), vectors, tape.tensor(at))
        else:
            queries = model.queries(tape, distinct, tape.tensor(place), torch.empty(0), None)
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
        out = np.full(len(users), len(items) + 1, np.int64)
        size = max(1, BLOCK_CELLS // max(len(items), 1))
        for start in range(0, len(users), size):
            part = slice(start, start + size)
            known = np.flatnonzero(targets[part] < len(items))
            if not len(known):
                continue
            scores = self._scores(items, users[part], recent[part] if recent is not None else None)
            if excluded is not None:
                _mask(scores, excluded[part])
            own = scores.gather(1, _at(np.where(targets[part] < len(items), targets[part], 0), scores).unsqueeze(1))
            found = (scores >= own).sum(1).cpu().numpy()
            out[start + known] = np.maximum(found[known], 1)
        return out

    @torch.no_grad()
    def top(
        self, items: Items, users: Rows, count: int, recent: Recent | None = None, excluded: list[Rows] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The best items of each user and their scores, [B, min(count, N)]; what is excluded has the score -inf."""
        count = min(count, len(items))
        rows, values = np.empty((len(users), count), np.int64), np.empty((len(users), count), np.float32)
        size = max(1, BLOCK_CELLS // max(len(items), 1))
        for start in range(0, len(users), size):
            part = slice(start, start + size)
            scores = self._scores(items, users[part], recent[part] if recent is not None else None)
            if excluded is not None:
                _mask(scores, excluded[part])
            best = scores.topk(count, dim=1)
            rows[part], values[part] = best.indices.cpu().numpy(), best.values.cpu().numpy()
        return rows, values

    def _scores(self, items: Items, users: Rows, recent: Recent | None) -> Tensor:
        scores = self.queries(users, recent) @ items.vectors.T  # [R, N]
        bonus = self.bonus(recent)
        if bonus is not None:
            assert recent is not None
            inside = (recent >= 0) & (recent < len(items))
            at, place = np.nonzero(inside)
            cells = torch.from_numpy(at * len(items) + recent[at, place].astype(np.int64))
            scores.view(-1).index_add_(0, cells.to(scores.device), torch.from_numpy(bonus[at, place]).to(scores.device))
        return scores


def _at(rows: Rows, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(like.device)


def _mask(scores: Tensor, excluded: list[Rows]) -> None:
    for row, items in zip(scores, excluded, strict=True):
        row[_at(items[items < len(row)], scores)] = -torch.inf
