"""The model: two towers and a score.

    score(u, j) = <q_u, e_j> + beta log pop(j) + rho[rank of j among u's recent items] + gamma nearness(u, j)

The second term is the popularity prior, the third the repeat bias, the fourth says how often users had j together with
u's recent items (`co_occurrence.py`; gamma is one number for items among u's recent ones and one for all others). All
three are optional. The prior is one more dimension
of the vectors (beta on the query's side, log pop on the item's), so it passes through correction, resampling weights,
loss and retrieval index like any other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from streamer.model.batch import Rows
from streamer.model.co_occurrence import Nearness
from streamer.model.device import to_device
from streamer.model.kernels.pooling import pooled
from streamer.model.plan import Plan
from streamer.model.settings import ModelSettings
from streamer.model.tables import Table
from streamer.model.towers import TouchedRows, Tower

FIRST_GAMMA = 0.5


class TwoTower(nn.Module):
    """Both towers, the pooling of recent items, and the score's further terms.

    Args:
        settings: shape.
        slots: vectors of optimizer state a table row needs.
        device: where it lives.

    Raises:
        ValueError: the settings do not fit together; the message lists every problem.
    """

    def __init__(self, settings: ModelSettings, slots: int, device: torch.device) -> None:
        super().__init__()
        if problems := settings.problems():
            raise ValueError("; ".join(problems))
        self.settings = settings
        std, seed = settings.init_std, settings.seed * 10_007
        history = settings.item_tower.out_dim if settings.recent_items else 0
        self.user = Tower("user", settings.user_tower, slots, std, seed + 1, device, extra=history)
        self.item = Tower("item", settings.item_tower, slots, std, seed + 2, device)
        ranks = torch.arange(settings.recent_items, dtype=torch.float32, device=device)
        self.recency = nn.Parameter(-torch.log1p(ranks)) if settings.recent_items else None  # [L]
        self.scale = nn.Parameter(torch.ones((), device=device)) if settings.recent_items else None
        self.beta = None
        if settings.prior != "off":
            beta = torch.full((), settings.prior_weight, device=device)
            self.beta = nn.Parameter(beta, requires_grad=settings.prior == "learned")
        self.repeat = nn.Parameter(torch.zeros(settings.repeat_ranks, device=device)) if settings.repeat_ranks else None
        self.gamma = nn.Parameter(torch.full((2,), FIRST_GAMMA, device=device)) if settings.co_occurrence else None

    @property
    def tables(self) -> dict[str, Table]:
        """Every embedding table by name."""
        return {**self.user.tables, **self.item.tables}

    def grow(self, users: int, items: int) -> None:
        """Make room for this many users and items."""
        self.user.grow(users)
        self.item.grow(items)

    def items(self, touched: TouchedRows, rows: Rows) -> Tensor:
        """Vectors of distinct items, [T, d]."""
        vectors: Tensor = self.item(touched, rows)
        return vectors

    def queries(self, touched: TouchedRows, users: Rows, place: Tensor, items: Tensor, recent: Tensor | None) -> Tensor:
        """Vectors of B events' users, [B, d].

        Args:
            users: [U] distinct user rows.
            place: [B] where in `users` each event's user is.
            items: [T, d] item vectors.
            recent: int32 [B, L] places of each event's recent items in `items`.
        """
        parts = [part.index_select(0, place) for part in self.user.parts(touched, users)]
        if self.recency is not None:
            assert recent is not None
            parts.append(self._history(items, recent[:, : self.settings.recent_items].contiguous()))
        return self.user.combine(parts)

    def _history(self, items: Tensor, recent: Tensor) -> Tensor:
        assert self.recency is not None
        assert self.scale is not None
        weight = torch.where(recent >= 0, self.recency.exp(), 0.0)  # [B, L]
        weight = weight / weight.sum(1, keepdim=True).clamp(min=1e-12)
        return pooled(items, recent, weight) * self.scale

    def with_prior(self, queries: Tensor, items: Tensor, log_prior: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both sides with the popularity prior as one more dimension."""
        if self.beta is None:
            return queries, items
        assert log_prior is not None
        beta = self.beta.expand(queries.shape[0], 1)
        return torch.cat([queries, beta], dim=1), torch.cat([items, log_prior.unsqueeze(1)], dim=1)

    def repeat_bonus(self, ranks: Tensor) -> Tensor:
        """rho of each recency rank, 0 for rank -1."""
        assert self.repeat is not None
        bonus = self.repeat.index_select(0, ranks.clamp(min=0))
        return torch.where(ranks >= 0, bonus, 0.0)

    def near_bonus(self, nearness: Tensor, is_recent: Tensor) -> Tensor:
        """gamma times nearness; `is_recent` is 1 for items among the user's recent ones, 0 for others."""
        assert self.gamma is not None
        return self.gamma.index_select(0, is_recent) * nearness

    def positive_scores(self, queries: Tensor, items: Tensor, plan: Plan, near: Nearness | None) -> Tensor:
        """Score of each event's own item, [B]."""
        own = items.index_select(0, to_device(plan.positive, items.device))
        score = (queries * own).sum(1)
        if self.repeat is not None:
            score = score + self.repeat_bonus(to_device(plan.positive_rank, items.device))
        if near is not None:
            nearness, is_recent = near.at(plan.positive)
            score = score + self.near_bonus(to_device(nearness, items.device), to_device(is_recent, items.device))
        return score
