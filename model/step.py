"""What a training step works with and returns; the step itself is in `trainer.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamer.model.batch import Batch, Floats, Rows
from streamer.model.device import to_device
from streamer.model.kernels import LossOutcome
from streamer.model.losses import LossTerm, Method, Proposals
from streamer.model.plan import Plan, Planner
from streamer.model.rows.by_rows import Arrays
from streamer.model.settings import MethodSettings
from streamer.model.towers import TouchedRows, TouchedTable

FIGURES = 4
"""Numbers that describe the draws of a candidate set."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did. Tensors stay on the device: reading them is what waits for it.

    Args:
        loss: the loss that was minimised, [].
        parts: what each candidate set contributed, by name (`batch`, `cache`).
        resampled: increments of the occurrence vector, one for each candidate set that
            was drawn from: distinct item rows [K], and how often each was [K].
        gradients: the touched rows with their gradients, before they were applied.
    """

    loss: Tensor
    parts: dict[str, LossOutcome]
    resampled: list[tuple[Rows, Tensor]]
    gradients: list[TouchedTable]

    @classmethod
    def empty(cls) -> StepResult:
        """Of no events."""
        return cls(torch.tensor(torch.nan), {}, [], [])

    def occurrence(self) -> tuple[Rows, Floats]:
        """Items and increments of all candidate sets; an item of both occurs twice.
        Waits for the device.
        """
        if not self.resampled:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        items, counts = zip(*self.resampled, strict=True)
        on_host = torch.cat(counts).cpu()
        return np.concatenate(items), on_host.numpy()


@dataclass(frozen=True, slots=True)
class PartCandidates:
    """Whom the events of a part compete with.

    Args:
        terms: of the loss.
        items: [t] places in `Plan.items` of what the terms call items; None: all.
        own: [b] the place of each event's positive among those.
    """

    terms: list[LossTerm]
    items: Rows | None
    own: Rows

    def spread(
        self,
        counts: Tensor,
        term: LossTerm,
        whole: LossTerm,
        plan: Plan,
    ) -> Tensor:
        """Draws from a term of this part, by the candidates of the whole batch."""
        if self.items is None:
            return counts
        device = counts.device
        by_place = torch.zeros(len(plan.items), device=device)  # [T]
        mine = self.items[term.candidates.places()]
        by_place[to_device(mine, device)] = counts
        wanted = whole.candidates.places()
        return by_place[to_device(wanted, device)]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step that is laid out: everything that its parts share."""

    batch: Batch
    plan: Plan
    proposals: Proposals
    terms: list[LossTerm]
    offsets: dict[str, Tensor]  # [B] one uniform number of each query, by term
    touched: TouchedRows
    vectors: Tensor  # [T, d] of `plan.items`
    categories: dict[str, TouchedTable]  # of all events' users, by table
    local: bool
    """Whether an event competes with its own part of the batch, instead of all of it."""

    def candidates_of(
        self,
        part: Rows,
        planner: Planner,
        method: Method,
        settings: MethodSettings,
    ) -> PartCandidates:
        """Whom the events of a part compete with: the whole batch, or the part alone."""
        plan = self.plan
        if not self.local or len(part) == len(self.batch):
            terms = [term.only(part) for term in self.terms]
            return PartCandidates(terms, None, plan.positive[part])
        recent = None
        if plan.recent is not None:
            recent = plan.recent[part]
        own = Batch(self.batch.users[part], plan.positive[part], recent)
        local = planner.plan(own, plan.extra, len(plan.items))
        proposals = self.proposals.only(local.items)
        terms = method.terms(local, proposals, settings)
        return PartCandidates(terms, local.items, local.positive)

    def touched_by(self, events: Rows) -> Rows:
        """Places of the items in which the shares of these events may differ from zero,
        ascending.
        """
        plan = self.plan
        mask = np.zeros(len(plan.items), np.bool_)
        if self.local:
            mask[plan.positive[events]] = True
            mask[plan.extra] = len(events) > 0
        else:
            mask[: plan.in_pools] = len(events) > 0
        if plan.recent is not None:
            recent = plan.recent[events]
            mask[recent[recent >= 0]] = True
        return np.flatnonzero(mask)


@dataclass(frozen=True, slots=True)
class GradientShare:
    """What some events add to a step: sums over events, whose order does not depend on
    who computes them.

    Args:
        rows: [T, d] gradient of the items' vectors.
        vector: gradients of dense parameters and of users' categories, draws of each
            candidate, the loss, and the figures of each term.
    """

    rows: Tensor
    vector: Tensor


class RandomDraws:
    """The sources of randomness of a training step.

    Args:
        seed: of all of them.
        device: where the step runs.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.items = np.random.default_rng([seed, 1])
        """Draws items."""
        self.offsets = torch.Generator().manual_seed(seed)
        """Draws the offsets of queries: on the host, so that they are the same on every
        device.
        """
        self.on_device: torch.Generator | None = self.offsets
        """Draws what is too much to send to a GPU; None if there is no GPU."""
        if device.type == "cuda":
            self.on_device = None
            if torch.cuda.is_available():
                self.on_device = torch.Generator(device).manual_seed(seed)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Arrays, and plain values."""
        arrays = {"draws": self.offsets.get_state().numpy()}
        if self.on_device is not None and self.on_device is not self.offsets:
            arrays["device_draws"] = self.on_device.get_state().numpy()
        return arrays, {"host_draws": self.items.bit_generator.state}

    def load_state(self, arrays: Arrays, values: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        self.items.bit_generator.state = values["host_draws"]
        offsets = torch.from_numpy(np.array(arrays["draws"]))
        self.offsets.set_state(offsets)
        if "device_draws" in arrays and self.on_device is not None:
            state = torch.from_numpy(np.array(arrays["device_draws"]))
            self.on_device.set_state(state)
