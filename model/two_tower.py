"""The retrieval model: two towers, and their inner product as the score."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from streamer.model.batch import Rows
from streamer.model.kernels.pooling import pooled
from streamer.model.rows.tables import Table
from streamer.model.settings import ModelSettings
from streamer.model.towers import TouchedRows, Tower


class TwoTower(nn.Module):
    """Both towers, and the pooling of recent items.

    Args:
        settings: shape.
        slots: vectors of optimizer state a table row needs.
        device: where it lives.
        numbers: single numbers of optimizer state a table row needs.

    Raises:
        ValueError: the settings do not fit together; the message lists every problem.
    """

    def __init__(
        self,
        settings: ModelSettings,
        slots: int,
        device: torch.device,
        numbers: int = 0,
    ) -> None:
        super().__init__()
        if problems := settings.problems():
            raise ValueError("; ".join(problems))
        self.settings = settings
        std = settings.init_std
        seed = settings.seed * 10_007
        history = settings.item_tower.out_dim if settings.recent_items else 0
        self.user = Tower(
            "user", settings.user_tower, slots, std, seed + 1, device, history, numbers
        )
        self.item = Tower(
            "item", settings.item_tower, slots, std, seed + 2, device, 0, numbers
        )
        ranks = torch.arange(settings.recent_items, dtype=torch.float32, device=device)
        self.recency = (
            nn.Parameter(-torch.log1p(ranks)) if settings.recent_items else None
        )  # [L]
        self.scale = (
            nn.Parameter(torch.ones((), device=device))
            if settings.recent_items
            else None
        )

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

    def queries(
        self,
        touched: TouchedRows,
        users: Rows,
        place: Tensor,
        items: Tensor,
        recent: Tensor | None,
        categories: dict[str, tuple[Rows, Tensor]] | None = None,
    ) -> Tensor:
        """Vectors of B events' users, [B, d].

        Args:
            users: [U] distinct user rows.
            place: [B] where in `users` each event's user is.
            items: [T, d] item vectors.
            recent: int32 [B, L] places of each event's recent items in `items`.
            categories: see `Tower.parts`.
        """
        parts = [
            part.index_select(0, place)
            for part in self.user.parts(touched, users, categories)
        ]
        if self.recency is not None:
            assert recent is not None
            parts.append(
                self._history(
                    items, recent[:, : self.settings.recent_items].contiguous()
                )
            )
        return self.user.combine(parts)

    def _history(self, items: Tensor, recent: Tensor) -> Tensor:
        assert self.recency is not None
        assert self.scale is not None
        weight = torch.where(recent >= 0, self.recency.exp(), 0.0)  # [B, L]
        weight = weight / weight.sum(1, keepdim=True).clamp(min=1e-12)
        return pooled(items, recent, weight) * self.scale
