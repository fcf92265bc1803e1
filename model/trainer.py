"""The training step: a micro-batch and a view of the stream in, updated towers and a report out. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer.model.batch import Batch, Floats, LogPopularity, Rows, View
from streamer.model.companions import Near
from streamer.model.entries import Term, merged
from streamer.model.kernels import Entries, Outcome, Sampling, sampled_softmax
from streamer.model.kernels.rows_numba import MASKED
from streamer.model.losses import Part, Proposals, method_named
from streamer.model.optim import ParameterAdam, make_optimizer
from streamer.model.plan import Candidates, Plan, Planner
from streamer.model.settings import LearnerSettings
from streamer.model.towers import Tape
from streamer.model.two_tower import TwoTower


@dataclass(frozen=True, slots=True)
class RowGradient:
    """The gradient of a table's touched rows."""

    table: str
    rows: Tensor  # [T] distinct
    gradient: Tensor  # [T, dim]


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

    Raises:
        ValueError: settings are wrong; the message lists every problem.
    """

    def __init__(self, settings: LearnerSettings, device: torch.device) -> None:
        if problems := settings.problems():
            raise ValueError("; ".join(problems))
        self.settings, self.device = settings, device
        self.method = method_named(settings.method)
        self.optimizer = make_optimizer(settings.optimizer, settings.l2)
        self.model = TwoTower(settings, self.optimizer.slots, device)
        self.dense = ParameterAdam({name: p for name, p in self.model.named_parameters() if p.requires_grad})
        self.planner = Planner(settings.repeat_ranks)
        self.steps = 0
        self._draws = torch.Generator().manual_seed(settings.seed)  # on the host: the same draws on every device
        self._device_draws = _generator(device, settings.seed) if device.type == "cuda" else self._draws
        self._host_draws = np.random.default_rng([settings.seed, 1])

    def step(self, batch: Batch, view: View) -> StepResult:
        """Learn from one micro-batch.

        1. lay out candidates and touched rows;
        2. vectors of both sides;
        3. loss over each candidate set, gradients of touched rows;
        4. update.
        """
        result = self.gradients(batch, view)
        self.apply(result.gradients)
        return result

    def gradients(self, batch: Batch, view: View) -> StepResult:
        """Steps 1 to 3: everything but the update. Dense parameters hold their gradients in `.grad`."""
        model = self.model

        # 1. on the host: who competes with whom
        self._grow(batch, view)
        known = model.item.size
        plan = self.planner.plan(batch, self._extra(batch, view, known), known)
        proposals = self._proposals(plan, view, known)
        near = self._near(plan, batch, view)

        # 2. vectors, with the prior as one more dimension
        tape = Tape(self.device)
        users, place = np.unique(batch.users, return_inverse=True)
        vectors = model.items(tape, plan.items)  # [T, d]
        recent = tape.tensor(plan.recent) if plan.recent is not None else None
        queries = model.queries(tape, users, tape.tensor(place), vectors, recent)  # [B, d]
        prior = self._prior(plan, view, tape)
        queries, vectors = model.with_prior(queries, vectors, prior)
        positive = model.positive_scores(queries, vectors, plan, near, tape)  # [B]

        # 3. loss and gradients
        parts = self.method.parts(plan, proposals, self.settings)
        outcomes = {p.name: self._outcome(p, queries, vectors, positive, plan, near, tape) for p in parts}
        loss = torch.stack([outcomes[p.name].loss * p.weight for p in parts]).sum()
        self.dense.clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [RowGradient(t.name, t.rows, _gradient(t.weight)) for t in tape.touched]
        drawn = [Resampled(_items(p.candidates, plan), outcomes[p.name].counts) for p in parts if p.draws is not None]
        detached = {name: _detached(outcome) for name, outcome in outcomes.items()}
        return StepResult(loss.detach(), detached, drawn, gradients)

    def apply(self, gradients: list[RowGradient]) -> None:
        """Step 4: update touched rows and dense parameters."""
        decay = self._decay()
        tables = self.model.tables
        for g in gradients:
            self.optimizer.apply(tables[g.table], g.rows, g.gradient, self.settings.learning_rate * decay)
        self.dense.step(self.settings.dense_learning_rate * decay)
        self.steps += 1

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that a restart needs to go on with the same bits: tensors, and a few plain values."""
        tensors = {f"dense.{name}": p.detach() for name, p in self.model.named_parameters()}
        for name, table in self.model.tables.items():
            tensors |= {f"table.{name}.{key}": value for key, value in table.state_dict().items()}
        for side, tower in (("user", self.model.user), ("item", self.model.item)):
            arrays = tower.features.state().items()
            tensors |= {f"features.{side}.{key}": torch.from_numpy(np.ascontiguousarray(v)) for key, v in arrays}
        tensors["draws"] = self._draws.get_state()
        if self._device_draws is not None and self._device_draws is not self._draws:
            tensors["device_draws"] = self._device_draws.get_state()
        tensors |= {f"adam.{name}": value for name, value in self.dense.state().items()}
        return tensors, {"steps": self.steps, "host_draws": self._host_draws.bit_generator.state}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Take over what `state` answered.

        Raises:
            ValueError: it belongs to a model of another shape.
        """
        self.steps = values["steps"]
        self._host_draws.bit_generator.state = values["host_draws"]
        self._draws.set_state(tensors["draws"].cpu())
        if "device_draws" in tensors and self._device_draws is not None:
            self._device_draws.set_state(tensors["device_draws"].cpu())
        self._load_model(tensors)
        prefix = "adam."
        self.dense.load_state({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})

    def _load_model(self, tensors: dict[str, Tensor]) -> None:
        for name, table in self.model.tables.items():
            wanted = {key: f"table.{name}.{key}" for key in table.state_dict()}
            if missing := [key for key in wanted.values() if key not in tensors]:
                raise ValueError(f"the state has no {', '.join(missing)}: it belongs to a model of another shape")
            table.load_state_dict({key: tensors[full] for key, full in wanted.items()})
        for side, tower in (("user", self.model.user), ("item", self.model.item)):
            keys = tower.features.state()
            tower.features.load_state({key: tensors[f"features.{side}.{key}"].numpy() for key in keys})
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                found = tensors.get(f"dense.{name}")
                if found is None or found.shape != parameter.shape:
                    raise ValueError(f"the state has no {name} of shape {tuple(parameter.shape)}: another model")
                parameter.copy_(found)

    def _decay(self) -> float:
        every = self.settings.decay_every
        return float(self.settings.learning_rate_decay ** (self.steps // every)) if every else 1.0

    def _grow(self, batch: Batch, view: View) -> None:
        users = int(batch.users.max(initial=-1)) + 1
        items = max(int(batch.items.max(initial=-1)), int(view.cache.max(initial=-1))) + 1
        if batch.recent is not None:
            items = max(items, int(batch.recent.max(initial=-1)) + 1)
        self.model.grow(users, items)

    def _extra(self, batch: Batch, view: View, known: int) -> Rows:
        kind = self.method.extra
        if kind == "cache":
            return view.cache
        if kind == "uniform":
            count = self.settings.uniform_negatives
            return self._host_draws.integers(0, known, len(batch) if count is None else count)
        return np.arange(known) if kind == "all" else np.empty(0, np.int64)

    def _proposals(self, plan: Plan, view: View, known: int) -> Proposals:
        log_pop = _of_candidates(plan, view.popularity if self.method.popularity != "none" else None)
        wanted = self.method.extra == "cache" and self.settings.cache_correction == "occurrence"
        log_cache = _of_candidates(plan, view.cache_draws) if wanted and view.cache_draws is not None else None
        return Proposals(log_pop, log_cache, known)

    def _prior(self, plan: Plan, view: View, tape: Tape) -> Tensor | None:
        if self.model.beta is None:
            return None
        return tape.tensor((view.prior or view.popularity).log_pop(plan.items))

    def _near(self, plan: Plan, batch: Batch, view: View) -> Near | None:
        """Which of all candidates are companions of each user's recent items."""
        if self.model.gamma is None:
            return None
        assert view.companions is not None, "the model has companions: pass them in the view"
        assert batch.recent is not None
        return view.companions.among(batch.recent, plan.items[: plan.in_pools])

    def _outcome(
        self,
        part: Part,
        queries: Tensor,
        vectors: Tensor,
        positive: Tensor,
        plan: Plan,
        near: Near | None,
        tape: Tape,
    ) -> Outcome:
        candidates, masked = part.candidates, self.settings.mask_positive
        if near is not None:
            near = near.moved(candidates.columns(plan.in_pools))
        if candidates.at is None:
            items = vectors[: len(candidates.count)]
        else:
            items = vectors.index_select(0, tape.tensor(candidates.at))
        if part.draws is None:
            positive = positive - tape.tensor(part.log_proposal[plan.positive])
        sampling = Sampling(
            log_weight=tape.tensor(part.log_weight()),
            draws=part.draws,
            add_positive=masked or part.draws is not None,
            own=tape.tensor(candidates.own),
            offsets=self._offsets(len(plan.positive), tape) if part.draws is not None else None,
            resampler=self.settings.resampler,
            generator=self._device_draws,
        )
        return sampled_softmax(queries, items, positive, sampling, self._entries(candidates, near, masked, tape))

    def _offsets(self, count: int, tape: Tape) -> Tensor:
        return tape.send(torch.rand(count, generator=self._draws))

    def _entries(self, candidates: Candidates, near: Near | None, masked: bool, tape: Tape) -> Entries | None:
        """The sparse terms of the scores: repeat bias, nearness, masks."""
        terms = []
        if self.model.repeat is not None and candidates.recent is not None:
            places = candidates.recent
            terms.append(Term(places.rows, places.columns, self.model.repeat_bonus(tape.tensor(places.ranks))))
        if near is not None:
            values = self.model.near_bonus(tape.tensor(near.values), tape.tensor(near.known))
            terms.append(Term(near.rows, near.columns, values))
        if masked:
            rows = np.flatnonzero(candidates.own >= 0)
            values = torch.full((len(rows),), float(MASKED), device=self.device)
            terms.append(Term(rows, candidates.own[rows], values))
        return merged(terms, len(candidates.own), tape)


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
