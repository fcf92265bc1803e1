"""The retrieval model: two towers from rows to vectors, whose inner product is the
score.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from streamer.model.batch import Rows
from streamer.model.device import to_device
from streamer.model.kernels.pooling import pooled
from streamer.model.rows.features import FeatureStore
from streamer.model.rows.tables import EmbeddingTable
from streamer.model.settings import ModelSettings, TowerShape


@dataclass(slots=True)
class TouchedTable:
    """Distinct rows of a table that a step uses, and their weights as a leaf of the
    autograd graph.
    """

    table: str
    rows: Tensor  # [T]
    on_host: Rows  # the same, where no device must be waited for
    weight: Tensor  # [T, dim]

    @property
    def gradient(self) -> Tensor:
        """[T, dim]."""
        return gradient_of(self.weight)


def gradient_of(leaf: Tensor) -> Tensor:
    """What a backward pass has left; zeros if it did not reach the leaf."""
    if leaf.grad is None:
        leaf.grad = torch.zeros_like(leaf)
    return leaf.grad


class TouchedRows:
    """Collects the rows that a step touches, so that their gradients can be gathered
    and applied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tables: list[TouchedTable] = []

    def take(self, name: str, table: EmbeddingTable, rows: Rows) -> Tensor:
        """The weights of distinct rows, [T, dim]."""
        at = to_device(rows, self.device)
        weight = table.weight.index_select(0, at).requires_grad_()
        self.tables.append(TouchedTable(name, at, rows, weight))
        return weight


class Tower(nn.Module):
    """id embedding, feature embeddings, numeric features and an optional MLP.

    Args:
        name: prefix of its tables' names.
        settings: shape.
        table: makes one of a size, from a seed.
        seed: determines all initial weights.
        extra: size of a further input that the caller passes to `combine`; 0 for none.
    """

    def __init__(
        self,
        name: str,
        settings: TowerShape,
        table: Callable[[int, int], EmbeddingTable],
        seed: int,
        device: torch.device,
        extra: int = 0,
    ) -> None:
        super().__init__()
        self.name = name
        self.settings = settings
        self.features = FeatureStore(settings.categorical, settings.numeric)
        self.tables: dict[str, EmbeddingTable] = {}
        if settings.ids:
            self.tables[f"{name}.id"] = table(settings.dim, seed)
        for k, feature in enumerate(settings.categorical):
            self.tables[f"{name}.{feature}"] = table(settings.dim, seed + 101 + k)

        generator = torch.Generator().manual_seed(seed + 7)
        parts = len(self.tables)
        self.numeric: nn.Linear | None = None
        if settings.numeric:
            parts += 1
            self.numeric = _linear(
                len(settings.numeric), settings.dim, generator, device
            )
        widths = (settings.dim * parts + extra, *settings.layers)
        self.layers = nn.ModuleList(
            _linear(inputs, outputs, generator, device)
            for inputs, outputs in itertools.pairwise(widths)
        )

    @property
    def size(self) -> int:
        """Known rows."""
        if self.settings.ids:
            return self.tables[f"{self.name}.id"].size
        return self.features.size

    def grow(self, size: int) -> None:
        """Make room for rows 0 .. size - 1."""
        self.features.grow(size)
        if self.settings.ids:
            self.tables[f"{self.name}.id"].grow(size)

    def categories(self, touched: TouchedRows, codes: Rows) -> dict[str, TouchedTable]:
        """The rows of each table of categories that some [n, C] need."""
        found = {}
        for k, feature in enumerate(self.settings.categorical):
            name = f"{self.name}.{feature}"
            rows = np.unique(codes[:, k])
            self.tables[name].grow(int(rows.max(initial=-1)) + 1)
            touched.take(name, self.tables[name], rows)
            found[name] = touched.tables[-1]
        return found

    def parts(
        self,
        touched: TouchedRows,
        rows: Rows,
        categories: dict[str, TouchedTable] | None = None,
    ) -> list[Tensor]:
        """The embeddings of distinct rows, one [T, dim] tensor for each source.

        Args:
            touched: takes note of them.
            rows: [T] distinct.
            categories: what `categories` returned of these rows and maybe others, if
                they are taken already.
        """
        found = []
        if self.settings.ids:
            name = f"{self.name}.id"
            found.append(touched.take(name, self.tables[name], rows))
        codes = self.features.codes(rows)
        if categories is None:
            categories = self.categories(touched, codes)
        for table, of_rows in zip(categories.values(), codes.T, strict=True):
            place = np.searchsorted(table.on_host, of_rows)
            at = to_device(place, touched.device)
            found.append(table.weight.index_select(0, at))
        if self.numeric is not None:
            numbers = to_device(self.features.numbers(rows), touched.device)
            found.append(self.numeric(numbers))
        return found

    def combine(self, parts: list[Tensor]) -> Tensor:
        """From embeddings to vectors, [T, out_dim]."""
        if not self.layers:
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            return total
        x = torch.cat(parts, dim=1)
        for k, layer in enumerate(self.layers):
            x = layer(x if k == 0 else torch.relu(x))
        return x

    def forward(self, touched: TouchedRows, rows: Rows) -> Tensor:
        """Vectors of distinct rows, [T, out_dim]."""
        return self.combine(self.parts(touched, rows))


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
        length = settings.recent_items
        history = settings.item_tower.out_dim if length else 0
        seed = settings.seed * 10_007
        std = settings.init_std

        def table(dim: int, seed: int) -> EmbeddingTable:
            return EmbeddingTable(dim, slots, std, seed, device, numbers)

        shape = settings.user_tower
        self.user = Tower("user", shape, table, seed + 1, device, history)
        self.item = Tower("item", settings.item_tower, table, seed + 2, device)
        self.recency: nn.Parameter | None = None
        self.scale: nn.Parameter | None = None
        if length:
            ranks = torch.arange(length, dtype=torch.float32, device=device)
            self.recency = nn.Parameter(-torch.log1p(ranks))  # [L]
            self.scale = nn.Parameter(torch.ones((), device=device))

    @property
    def tables(self) -> dict[str, EmbeddingTable]:
        """Every embedding table by name."""
        return {**self.user.tables, **self.item.tables}

    def grow(self, users: int, items: int) -> None:
        """Make room for this many users and items."""
        self.user.grow(users)
        self.item.grow(items)

    def items(self, touched: TouchedRows, rows: Rows) -> Tensor:
        """Vectors of distinct items, [T, d]."""
        vectors: Tensor = self.item(touched, rows)
        return self._scaled(vectors)

    def queries(
        self,
        touched: TouchedRows,
        users: Rows,
        place: Tensor,
        items: Tensor,
        recent: Tensor | None,
        categories: dict[str, TouchedTable] | None = None,
    ) -> Tensor:
        """Vectors of B events' users, [B, d].

        Args:
            users: [U] distinct user rows.
            place: [B] where in `users` each event's user is.
            items: [T, d] item vectors.
            recent: int32 [B, L] places of each event's recent items in `items`.
            categories: see `Tower.parts`.
        """
        embeddings = self.user.parts(touched, users, categories)
        parts = [part.index_select(0, place) for part in embeddings]
        if self.recency is not None:
            assert recent is not None
            read = recent[:, : self.settings.recent_items].contiguous()
            parts.append(self._history(items, read))
        return self._scaled(self.user.combine(parts))

    def _scaled(self, vectors: Tensor) -> Tensor:
        """Vectors whose inner product is the score: as they are, or of the length that
        makes it their cosine over the temperature.
        """
        temperature = self.settings.temperature
        if not temperature:
            return vectors
        directions = nn.functional.normalize(vectors, dim=1, eps=1e-6)
        return directions / math.sqrt(temperature)

    def _history(self, items: Tensor, recent: Tensor) -> Tensor:
        assert self.recency is not None
        assert self.scale is not None
        weight = torch.where(recent >= 0, self.recency.exp(), 0.0)  # [B, L]
        weight = weight / weight.sum(1, keepdim=True).clamp(min=1e-12)
        return pooled(items, recent, weight) * self.scale


def _linear(
    inputs: int, outputs: int, generator: torch.Generator, device: torch.device
) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, device=device)
    weight = nn.init.xavier_uniform_(torch.empty(outputs, inputs), generator=generator)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.zero_()
    return layer
