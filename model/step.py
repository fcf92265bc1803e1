"""What a training step works with and returns; the step itself is in `trainer.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamer.model.batch import Batch, Floats, Rows
from streamer.model.device import to_device
from streamer.model.kernels import LossOutcome, Sampling, SparseScores, sampled_softmax
from streamer.model.losses import LossTerm, Method, Proposals
from streamer.model.plan import Plan, Planner
from streamer.model.rows.by_rows import Arrays
from streamer.model.settings import MethodSettings
from streamer.model.towers import TouchedRows, TouchedTable

FIGURES = 4
"""Numbers that describe the draws of a candidate set."""


@dataclass(frozen=True, slots=True)
class RowGradient:
    """The gradient of a table's touched rows."""

    table: str
    rows: Tensor  # [T] distinct
    gradient: Tensor  # [T, dim]
    on_host: Rows
    """The rows, where no device must be waited for."""


@dataclass(frozen=True, slots=True)
class Resampled:
    """How often each candidate was drawn in a step: the increments of the occurrence
    vector.
    """

    items: Rows  # [K] item rows, distinct
    counts: Tensor  # [K]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did. Tensors stay on the device: reading them is what waits for it.

    Args:
        loss: the loss that was minimised, [].
        parts: what each candidate set contributed, by name (`batch`, `cache`).
        resampled: increments of the occurrence vector, one for each candidate set that
            was drawn from.
        gradients: gradients of the touched rows, before they were applied.
    """

    loss: Tensor
    parts: dict[str, LossOutcome]
    resampled: list[Resampled]
    gradients: list[RowGradient]

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
        items = np.concatenate([r.items for r in self.resampled])
        return items, np.concatenate([r.counts.cpu().numpy() for r in self.resampled])


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
        self, counts: Tensor, term: LossTerm, whole: LossTerm, plan: Plan
    ) -> Tensor:
        """Draws from a term of this part, by the candidates of the whole batch."""
        if self.items is None:
            return counts
        device = counts.device
        by_place = torch.zeros(len(plan.items), device=device)  # [T]
        mine = self.items[term.candidates.places()]
        by_place[to_device(mine, device)] = counts
        return by_place[to_device(whole.candidates.places(), device)]


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
        self, part: Rows, planner: Planner, method: Method, settings: MethodSettings
    ) -> PartCandidates:
        """Whom the events of a part compete with: the whole batch, or the part alone."""
        plan = self.plan
        if not self.local or len(part) == len(self.batch):
            terms = [term.only(part) for term in self.terms]
            return PartCandidates(terms, None, plan.positive[part])
        recent = plan.recent[part] if plan.recent is not None else None
        own = Batch(self.batch.users[part], plan.positive[part], recent)
        local = planner.plan(own, plan.extra, len(plan.items))
        terms = method.terms(local, self.proposals.only(local.items), settings)
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
        self.offsets.set_state(torch.from_numpy(np.array(arrays["draws"])))
        if "device_draws" in arrays and self.on_device is not None:
            state = torch.from_numpy(np.array(arrays["device_draws"]))
            self.on_device.set_state(state)


def term_loss(
    term: LossTerm,
    queries: Tensor,
    vectors: Tensor,
    positive: Tensor,
    offsets: Tensor | None,
    settings: MethodSettings,
    generator: torch.Generator | None,
) -> LossOutcome:
    """The loss of one term.

    Args:
        term: its candidates, and how they are weighted and drawn.
        queries: [b, d].
        vectors: [t, d] of the items that the term refers to.
        positive: [b] score of each query's positive.
        offsets: [b] one uniform number of each query, if they are drawn by it.
        settings: options.
        generator: of other draws.
    """
    device = queries.device
    candidates = term.candidates
    if candidates.at is None:
        items = vectors[: len(candidates.count)]
    else:
        items = vectors.index_select(0, to_device(candidates.at, device))
    masked = settings.mask_positive
    sampling = Sampling(
        log_weight=to_device(term.log_weight(), device),
        draws=term.draws,
        add_positive=masked or term.draws is not None,
        own=to_device(candidates.own, device),
        offsets=None if offsets is None else to_device(offsets, device),
        resampler=settings.resampler,
        generator=generator,
    )
    masks = SparseScores.masking(candidates.own, queries) if masked else None
    return sampled_softmax(queries, items, positive, sampling, masks)
