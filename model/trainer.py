"""The training step: a micro-batch and a view of the stream in, updated towers and a report out. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer.model.batch import Batch, Floats, LogPopularity, Rows, StreamState
from streamer.model.changes import Changes
from streamer.model.device import to_device
from streamer.model.kernels import Outcome, Sampling, SparseScores, sampled_softmax
from streamer.model.kernels.rows_numba import MASKED
from streamer.model.losses import LossTerm, Proposals, method_named
from streamer.model.optim import ParameterAdam, make_optimizer, sum_of_squares
from streamer.model.plan import Candidates, Plan, Planner
from streamer.model.settings import LearnerSettings
from streamer.model.towers import TouchedRows
from streamer.model.two_tower import TwoTower

KINDS = {"user.id": "users", "item.id": "items"}
"""Of the rows of a table."""


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
    """How often each candidate was drawn in a step: the increments of the occurrence vector."""

    items: Rows  # [K] item rows, distinct
    counts: Tensor  # [K]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did. Tensors stay on the device: reading them is what waits for it.

    Args:
        loss: the loss that was minimised, [].
        parts: what each candidate set contributed, by name (`batch`, `cache`).
        resampled: increments of the occurrence vector, one for each candidate set that was drawn from.
        gradients: gradients of the touched rows, before they were applied.
    """

    loss: Tensor
    parts: dict[str, Outcome]
    resampled: list[Resampled]
    gradients: list[RowGradient]

    def occurrence(self) -> tuple[Rows, NDArray[np.float32]]:
        """Items and increments of all candidate sets; an item of both occurs twice. Waits for the device."""
        if not self.resampled:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        items = np.concatenate([r.items for r in self.resampled])
        return items, np.concatenate([r.counts.cpu().numpy() for r in self.resampled])


class Trainer:
    """Owns the model and its optimizer.

    Args:
        settings: shape of the model, and how it learns.
        device: where the step runs.

    Its `changes` say which rows of the tables were written; the rows of categories are of the kind of their table.

    Raises:
        ValueError: settings are wrong; the message lists every problem.
    """

    def __init__(self, settings: LearnerSettings, device: torch.device) -> None:
        if problems := settings.problems():
            raise ValueError("; ".join(problems))
        self.settings, self.device = settings, device
        self.method = method_named(settings.method)
        self.optimizer = make_optimizer(settings.optimizer, settings.l2)
        self.model = TwoTower(settings, self.optimizer.slots, device, self.optimizer.numbers)
        self.dense_adam = ParameterAdam({name: p for name, p in self.model.named_parameters() if p.requires_grad})
        self.planner = Planner()
        self.changes = Changes()
        self.steps = 0
        self.not_finite = torch.zeros((), dtype=torch.int64, device=device)
        """Rows of all steps that were not updated, because a number of theirs was not finite."""
        self._draws = torch.Generator().manual_seed(settings.seed)  # on the host: the same draws on every device
        self._device_draws = _generator(device, settings.seed) if device.type == "cuda" else self._draws
        self._host_draws = np.random.default_rng([settings.seed, 1])

    def step(self, batch: Batch, view: StreamState) -> StepResult:
        """Learn from one micro-batch.

        1. lay out candidates and touched rows;
        2. vectors of both sides;
        3. loss over each candidate set, gradients of touched rows;
        4. update.
        """
        result = self.gradients(batch, view)
        self.apply(result.gradients)
        return result

    def gradients(self, batch: Batch, view: StreamState) -> StepResult:
        """Steps 1 to 3: everything but the update. Dense parameters hold their gradients in `.grad`."""
        model = self.model

        # 1. on the host: who competes with whom
        self._grow(batch, view)
        known = model.item.size
        plan = self.planner.plan(batch, self._extra(batch, view, known), known)
        proposals = self._proposals(plan, view, known)

        # 2. vectors
        touched = TouchedRows(self.device)
        users, place = np.unique(batch.users, return_inverse=True)
        vectors = model.items(touched, plan.items)  # [T, d]
        recent = self._to_device(plan.recent) if plan.recent is not None else None
        queries = model.queries(touched, users, self._to_device(place), vectors, recent)  # [B, d]
        own = vectors.index_select(0, self._to_device(plan.positive))
        positive = (queries * own).sum(1)  # [B]

        # 3. loss and gradients
        terms = self.method.terms(plan, proposals, self.settings)
        outcomes = {p.name: self._outcome(p, queries, vectors, positive, plan) for p in terms}
        loss = torch.stack([outcomes[p.name].loss * p.weight for p in terms]).sum()
        self.dense_adam.clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [RowGradient(t.name, t.rows, _gradient(t.weight), t.on_host) for t in touched.tables]
        drawn = [Resampled(_items(p.candidates, plan), outcomes[p.name].counts) for p in terms if p.draws is not None]
        detached = {name: _detached(outcome) for name, outcome in outcomes.items()}
        return StepResult(loss.detach(), detached, drawn, gradients)

    def apply(self, gradients: list[RowGradient]) -> None:
        """Step 4: update touched rows and dense parameters, but for what is not finite."""
        decay = self._decay()
        tables = self.model.tables
        for g in gradients:
            every = self.settings.optimizer == "dense-adam"
            self.changes.mark(KINDS.get(g.table, g.table), np.arange(tables[g.table].size) if every else g.on_host)
        total = sum_of_squares([g.gradient for g in gradients])
        if total is None or not math.isfinite(total):
            gradients = [self._finite(g) for g in gradients]
        for g in gradients:
            self.optimizer.apply(tables[g.table], g.rows, g.gradient, self.settings.learning_rate * decay)
        self.dense_adam.step(self.settings.dense_learning_rate * decay)
        self.steps += 1

    def _finite(self, g: RowGradient) -> RowGradient:
        """A row whose gradient is not finite gets none; one whose weights are not, begins anew at zero."""
        lines = self.model.tables[g.table].lines
        touched = lines.index_select(0, g.rows)
        sound, usable = touched.isfinite().all(1), g.gradient.square().sum(1).isfinite()  # [T]
        lines.index_copy_(0, g.rows, torch.where(sound[:, None], touched, 0.0))
        self.not_finite += (~(sound & usable)).sum()
        return RowGradient(g.table, g.rows, torch.where(usable[:, None], g.gradient, 0.0), g.on_host)

    def dense(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """A copy of what belongs to no row and of random states: arrays, and a few plain values."""
        tensors = {f"dense.{name}": p.detach() for name, p in self.model.named_parameters()}
        tensors["draws"] = self._draws.get_state()
        if self._device_draws is not None and self._device_draws is not self._draws:
            tensors["device_draws"] = self._device_draws.get_state()
        tensors |= {f"adam.{name}": value for name, value in self.dense_adam.state().items()}
        arrays = {name: tensor.to("cpu", copy=True).numpy() for name, tensor in tensors.items()}
        return arrays, {"steps": self.steps, "host_draws": self._host_draws.bit_generator.state}

    def load_dense(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """Take over what `dense` returned.

        Raises:
            ValueError: it belongs to a model of another shape.
        """
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        self.steps = values["steps"]
        self._host_draws.bit_generator.state = values["host_draws"]
        self._draws.set_state(tensors["draws"])
        if "device_draws" in tensors and self._device_draws is not None:
            self._device_draws.set_state(tensors["device_draws"])
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                found = tensors.get(f"dense.{name}")
                if found is None or found.shape != parameter.shape:
                    raise ValueError(f"the state has no {name} of shape {tuple(parameter.shape)}: another model")
                parameter.copy_(found)
        prefix = "adam."
        self.dense_adam.load_state({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})

    def _to_device(self, value: NDArray[Any] | Tensor) -> Tensor:
        return to_device(value, self.device)

    def _decay(self) -> float:
        every = self.settings.decay_every
        return float(self.settings.learning_rate_decay ** (self.steps // every)) if every else 1.0

    def _grow(self, batch: Batch, view: StreamState) -> None:
        users = int(batch.users.max(initial=-1)) + 1
        items = max(int(batch.items.max(initial=-1)), int(view.cache.max(initial=-1))) + 1
        if batch.recent is not None:
            items = max(items, int(batch.recent.max(initial=-1)) + 1)
        self.model.grow(users, items)

    def _extra(self, batch: Batch, view: StreamState, known: int) -> Rows:
        kind = self.method.extra
        if kind == "cache":
            return view.cache
        if kind == "uniform":
            count = self.settings.uniform_negatives
            extra = self._host_draws.integers(0, known, len(batch) if count is None else count)
        else:
            extra = np.arange(known) if kind == "all" else np.empty(0, np.int64)
        return extra if view.is_used is None else extra[view.is_used(extra)]

    def _proposals(self, plan: Plan, view: StreamState, known: int) -> Proposals:
        log_pop = _of_candidates(plan, view.popularity if self.method.popularity != "none" else None)
        wanted = self.method.extra == "cache" and self.settings.cache_correction == "occurrence"
        log_cache = _of_candidates(plan, view.cache_draws) if wanted and view.cache_draws is not None else None
        return Proposals(log_pop, log_cache, known)

    def _outcome(self, term: LossTerm, queries: Tensor, vectors: Tensor, positive: Tensor, plan: Plan) -> Outcome:
        candidates, masked = term.candidates, self.settings.mask_positive
        if candidates.at is None:
            items = vectors[: len(candidates.count)]
        else:
            items = vectors.index_select(0, self._to_device(candidates.at))
        if term.draws is None:
            positive = positive - self._to_device(term.log_proposal[plan.positive])
        sampling = Sampling(
            log_weight=self._to_device(term.log_weight()),
            draws=term.draws,
            add_positive=masked or term.draws is not None,
            own=self._to_device(candidates.own),
            offsets=self._offsets(len(plan.positive)) if term.draws is not None else None,
            resampler=self.settings.resampler,
            generator=self._device_draws,
        )
        masks = self._masks(candidates.own) if masked else None
        return sampled_softmax(queries, items, positive, sampling, masks)

    def _masks(self, own: NDArray[np.int32]) -> SparseScores:
        """Scores that take each query's own positive out of its candidates."""
        rows = np.flatnonzero(own >= 0)
        first = np.searchsorted(rows, np.arange(len(own) + 1)).astype(np.int32)
        values = torch.full((len(rows),), float(MASKED), device=self.device)
        return SparseScores(self._to_device(first), self._to_device(rows), self._to_device(own[rows]), values)

    def _offsets(self, count: int) -> Tensor:
        return self._to_device(torch.rand(count, generator=self._draws))


def _generator(device: torch.device, seed: int) -> torch.Generator | None:
    """A GPU's own source of randomness, for draws that are too many to send; None where there is no GPU."""
    return torch.Generator(device).manual_seed(seed) if torch.cuda.is_available() else None


def _of_candidates(plan: Plan, source: LogPopularity | None) -> Floats:
    """[T] for all candidates; recent items that are no candidates need none."""
    values = np.zeros(len(plan.items), np.float32)
    if source is not None:
        values[: plan.in_pools] = source.log_pop(plan.items[: plan.in_pools])
    return values


def _items(candidates: Candidates, plan: Plan) -> Rows:
    found: Rows = plan.items[: len(candidates.count)] if candidates.at is None else plan.items[candidates.at]
    return found


def _gradient(leaf: Tensor) -> Tensor:
    return leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)


def _detached(outcome: Outcome) -> Outcome:
    fields: dict[str, Any] = {name: getattr(outcome, name).detach() for name in Outcome.__slots__}
    return Outcome(**fields)
