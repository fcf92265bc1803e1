"""A tower: from rows to vectors."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from streamer.model.batch import Rows
from streamer.model.device import to_device
from streamer.model.rows.features import FeatureStore
from streamer.model.rows.tables import Table
from streamer.model.settings import TowerShape


@dataclass(slots=True)
class TouchedTable:
    """Distinct rows of a table that a step uses, and their weights as a leaf of the
    autograd graph.
    """

    name: str
    rows: Tensor  # [T]
    on_host: Rows  # the same
    weight: Tensor  # [T, dim]


class TouchedRows:
    """Collects the rows that a step touches, so that their gradients can be gathered
    and applied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tables: list[TouchedTable] = []

    def take(self, name: str, table: Table, rows: Rows) -> Tensor:
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
        slots: vectors of optimizer state a table row needs.
        std: standard deviation of new embeddings.
        seed: determines all initial weights.
        device: where the tables live.
        extra: size of a further input that the caller passes to `combine`; 0 for none.
        numbers: single numbers of optimizer state a table row needs.
    """

    def __init__(
        self,
        name: str,
        settings: TowerShape,
        slots: int,
        std: float,
        seed: int,
        device: torch.device,
        extra: int = 0,
        numbers: int = 0,
    ) -> None:
        super().__init__()
        self.name = name
        self.settings = settings
        self.features = FeatureStore(settings.categorical, settings.numeric)
        self.tables: dict[str, Table] = {}
        if settings.ids:
            self.tables[f"{name}.id"] = Table(
                settings.dim, slots, std, seed, device, numbers
            )
        for k, feature in enumerate(settings.categorical):
            self.tables[f"{name}.{feature}"] = Table(
                settings.dim, slots, std, seed + 101 + k, device, numbers
            )
        generator = torch.Generator().manual_seed(seed + 7)
        self.numeric = (
            _linear(len(settings.numeric), settings.dim, generator, device)
            if settings.numeric
            else None
        )
        parts = len(self.tables) + (1 if settings.numeric else 0)
        widths = (settings.dim * parts + extra, *settings.layers)
        self.layers = nn.ModuleList(
            _linear(a, b, generator, device) for a, b in itertools.pairwise(widths)
        )

    @property
    def size(self) -> int:
        """Known rows."""
        return max(
            [t.size for n, t in self.tables.items() if n.endswith(".id")],
            default=self.features.size,
        )

    def grow(self, size: int) -> None:
        """Make room for rows 0 .. size - 1."""
        self.features.grow(size)
        if self.settings.ids:
            self.tables[f"{self.name}.id"].grow(size)

    def codes(self, rows: Rows) -> Rows:
        """[n, C] the categories of rows."""
        found = [
            self.features.codes(rows, k) for k in range(len(self.settings.categorical))
        ]
        return np.stack(found, axis=1) if found else np.empty((len(rows), 0), np.int64)

    def categories(self, touched: TouchedRows, codes: Rows) -> dict[str, TouchedTable]:
        """The rows of each table of categories that some [n, C] need."""
        found = {}
        for k, feature in enumerate(self.settings.categorical):
            self._take_categories(
                touched, name := f"{self.name}.{feature}", np.unique(codes[:, k])
            )
            found[name] = touched.tables[-1]
        return found

    def parts(
        self,
        touched: TouchedRows,
        rows: Rows,
        categories: dict[str, tuple[Rows, Tensor]] | None = None,
    ) -> list[Tensor]:
        """The embeddings of distinct rows, one [T, dim] tensor for each source.

        Args:
            touched: takes note of them.
            rows: [T] distinct.
            categories: rows of the tables of categories, ascending, and their weights,
                if these are taken already.
        """
        found = []
        if self.settings.ids:
            found.append(
                touched.take(f"{self.name}.id", self.tables[f"{self.name}.id"], rows)
            )
        for k, feature in enumerate(self.settings.categorical):
            name = f"{self.name}.{feature}"
            codes = self.features.codes(rows, k)
            if categories is None:
                distinct = np.unique(codes)
                weight = self._take_categories(touched, name, distinct)
            else:
                distinct, weight = categories[name]
            place = np.searchsorted(distinct, codes)
            found.append(weight.index_select(0, to_device(place, touched.device)))
        if self.numeric is not None:
            found.append(
                self.numeric(to_device(self.features.numbers(rows), touched.device))
            )
        return found

    def _take_categories(self, touched: TouchedRows, name: str, rows: Rows) -> Tensor:
        """The weights of distinct categories, ascending."""
        table = self.tables[name]
        table.grow(int(rows[-1]) + 1 if len(rows) else 0)
        return touched.take(name, table, rows)

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


def _linear(
    inputs: int, outputs: int, generator: torch.Generator, device: torch.device
) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, device=device)
    weight = nn.init.xavier_uniform_(torch.empty(outputs, inputs), generator=generator)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.zero_()
    return layer
