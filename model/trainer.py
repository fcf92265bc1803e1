"""The training step: a micro-batch and a view of the stream in, updated towers and a
report out. No I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer.model.batch import Batch, Floats, LogPopularity, Rows, StreamState
from streamer.model.device import to_device
from streamer.model.kernels import Outcome, Sampling, SparseScores, sampled_softmax
from streamer.model.kernels.rows_numba import MASKED
from streamer.model.losses import LossTerm, Proposals, method_named
from streamer.model.optim import ParameterAdam, make_optimizer, sum_of_squares
from streamer.model.plan import Candidates, Plan, Planner
from streamer.model.rows.changes import Changes
from streamer.model.settings import LearnerSettings
from streamer.model.towers import TouchedRows, TouchedTable
from streamer.model.two_tower import TwoTower

KINDS = {"user.id": "users", "item.id": "items"}
"""Of the rows of a table."""
FIGURES = 4
"""Of each candidate set, beside its draws."""


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
    parts: dict[str, Outcome]
    resampled: list[Resampled]
    gradients: list[RowGradient]

    @classmethod
    def empty(cls) -> StepResult:
        """Of no events."""
        return cls(torch.tensor(torch.nan), {}, [], [])

    def occurrence(self) -> tuple[Rows, NDArray[np.float32]]:
        """Items and increments of all candidate sets; an item of both occurs twice.
        Waits for the device.
        """
        if not self.resampled:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        items = np.concatenate([r.items for r in self.resampled])
        return items, np.concatenate([r.counts.cpu().numpy() for r in self.resampled])


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
    local: bool  # whether an event competes with its own part of the batch, instead of all of it

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
class Share:
    """What some events add to a step: sums over events, whose order does not depend on
    who computes them.
    """

    rows: Tensor  # [T, d] gradient of the items' vectors
    vector: Tensor  # gradients of dense parameters, draws of each candidate, loss and figures


class Trainer:
    """Owns the model and its optimizer.

    Args:
        settings: shape of the model, and how it learns.
        device: where the step runs.

    Its `changes` say which rows of the tables were written; the rows of categories are
    of the kind of their table.

    Raises:
        ValueError: settings are wrong; the message lists every problem.
    """

    def __init__(self, settings: LearnerSettings, device: torch.device) -> None:
        if problems := settings.problems():
            raise ValueError("; ".join(problems))
        self.settings = settings
        self.device = device
        self.method = method_named(settings.method)
        self.optimizer = make_optimizer(settings.optimizer, settings.l2)
        self.model = TwoTower(
            settings, self.optimizer.slots, device, self.optimizer.numbers
        )
        self.dense_adam = ParameterAdam(
            {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        )
        self.planner = Planner()
        self.changes = Changes()
        self.steps = 0
        self.not_finite = torch.zeros((), dtype=torch.int64, device=device)
        """Rows of all steps that were not updated, because a number of theirs was not
        finite.
        """
        self._draws = torch.Generator().manual_seed(
            settings.seed
        )  # on the host: the same draws on every device
        self._device_draws = (
            _generator(device, settings.seed) if device.type == "cuda" else self._draws
        )
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
        """Steps 1 to 3: everything but the update. Dense parameters hold their
        gradients in `.grad`.
        """
        prepared = self.prepare(batch, view)
        share = self.share(prepared, np.arange(len(batch)))
        return self.finish(prepared, share.rows, share.vector)

    def prepare(self, batch: Batch, view: StreamState) -> Prepared:
        """Step 1, on the host: who competes with whom. Draws its random numbers for the
        whole batch.
        """
        self._grow(batch, view)
        known = self.model.item.size
        plan = self.planner.plan(batch, self._extra(batch, view, known), known)
        proposals = self._proposals(plan, view, known)
        terms = self.method.terms(plan, proposals, self.settings)
        drawn = [
            t.name
            for t in terms
            if t.draws is not None and self.settings.resampler == "systematic"
        ]
        offsets = {
            name: torch.rand(len(batch), generator=self._draws) for name in drawn
        }
        touched = TouchedRows(self.device)
        vectors = self.model.items(touched, plan.items)  # [T, d]
        codes = (
            batch.user_codes
            if batch.user_codes is not None
            else self.model.user.codes(batch.users)
        )
        categories = self.model.user.categories(touched, codes)
        local = self.settings.negatives == "local"
        return Prepared(
            batch, plan, proposals, terms, offsets, touched, vectors, categories, local
        )

    def share(self, prepared: Prepared, part: Rows) -> Share:
        """Steps 2 and 3 for some events of the batch: what they add to the gradient of
        the whole batch's mean loss.

        Several processes may each compute some parts; shares add up.
        """
        # 2. vectors; gradients stop at those of items and of users' categories, and go
        # on from their sum in `finish`
        batch = prepared.batch
        plan = prepared.plan
        weight = len(part) / len(prepared.batch)
        vectors = prepared.vectors.detach().requires_grad_()  # [T, d]
        users, place = np.unique(batch.users[part], return_inverse=True)
        recent = self._to_device(plan.recent[part]) if plan.recent is not None else None
        categories = {
            n: (t.on_host, t.weight.detach().requires_grad_())
            for n, t in prepared.categories.items()
        }
        queries = self.model.queries(  # [b, d]
            prepared.touched, users, self._to_device(place), vectors, recent, categories
        )
        own = vectors.index_select(0, self._to_device(plan.positive[part]))
        positive = (queries * own).sum(1)  # [b]

        # 3. loss and gradients
        if prepared.local and len(part) < len(batch):
            candidates = self.planner.plan(
                Batch(
                    users,
                    plan.positive[part],
                    plan.recent[part] if plan.recent is not None else None,
                ),
                plan.extra,
                len(plan.items),
            )
            terms = self.method.terms(
                candidates, prepared.proposals.only(candidates.items), self.settings
            )
            items = vectors.index_select(0, self._to_device(candidates.items))
            at = candidates.items
            own_place = candidates.positive
        else:
            terms = [t.only(part) for t in prepared.terms]
            items = vectors
            at = None
            own_place = plan.positive[part]
        outcomes = {
            t.name: self._outcome(
                t,
                queries,
                items,
                positive,
                own_place,
                prepared.offsets.get(t.name),
                part,
            )
            for t in terms
        }
        loss = (
            torch.stack([outcomes[t.name].loss * t.weight for t in terms]).sum()
            * weight
        )
        self.dense_adam.clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        leaves = [
            *self._dense_of_users(),
            *(weight for _, weight in categories.values()),
        ]
        pieces = [_gradient(leaf).reshape(-1) for leaf in leaves]
        for term in prepared.terms:
            counts = outcomes[term.name].counts
            pieces.append(
                counts if at is None else _spread(counts, term, prepared, terms, at)
            )
        pieces.append(
            torch.stack(
                [
                    loss.detach(),
                    *(v * weight for o in outcomes.values() for v in _figures(o)),
                ]
            )
        )
        return Share(
            _gradient(vectors), torch.cat([piece.detach() for piece in pieces])
        )

    def finish(self, prepared: Prepared, rows: Tensor, vector: Tensor) -> StepResult:
        """Step 3 for what the shares add up to.

        Args:
            prepared: the step.
            rows: [T, d] gradient of the items' vectors.
            vector: the rest of the shares.
        """
        self.dense_adam.clear_gradients()
        at = 0
        for leaf in [
            *self._dense_of_users(),
            *(t.weight for t in prepared.categories.values()),
        ]:
            leaf.grad = vector[at : at + leaf.numel()].view_as(leaf)
            at += leaf.numel()
        prepared.vectors.backward(rows)  # type: ignore[no-untyped-call]
        gradients = [
            RowGradient(t.name, t.rows, _gradient(t.weight), t.on_host)
            for t in prepared.touched.tables
        ]
        counts = {}
        for term in prepared.terms:
            counts[term.name] = vector[at : at + len(term.candidates.count)]
            at += len(term.candidates.count)
        drawn = [
            Resampled(_items(t.candidates, prepared.plan), counts[t.name])
            for t in prepared.terms
            if t.draws
        ]
        loss = vector[at]
        figures = vector[at + 1 :].view(len(prepared.terms), -1)
        parts = {
            t.name: Outcome(f[0], counts[t.name], *f[1:])
            for t, f in zip(prepared.terms, figures, strict=True)
        }
        return StepResult(loss, parts, drawn, gradients)

    def vector_size(self, prepared: Prepared) -> int:
        """Numbers in the vector of a share."""
        dense = sum(p.numel() for p in self._dense_of_users())
        dense += sum(t.weight.numel() for t in prepared.categories.values())
        return (
            dense
            + sum(len(t.candidates.count) for t in prepared.terms)
            + 1
            + FIGURES * len(prepared.terms)
        )

    def _dense_of_users(self) -> list[torch.nn.Parameter]:
        """Parameters whose gradients come from queries; those of the item tower come
        from the items' vectors.
        """
        return [
            p
            for name, p in self.dense_adam.parameters.items()
            if not name.startswith("item.")
        ]

    def apply(self, gradients: list[RowGradient]) -> None:
        """Step 4: update touched rows and dense parameters, but for what is not finite."""
        decay = self._decay()
        tables = self.model.tables
        for g in gradients:
            every = self.settings.optimizer == "dense-adam"
            self.changes.mark(
                KINDS.get(g.table, g.table),
                np.arange(tables[g.table].size) if every else g.on_host,
            )
        total = sum_of_squares([g.gradient for g in gradients])
        if total is None or not math.isfinite(total):
            gradients = [self._finite(g) for g in gradients]
        for g in gradients:
            self.optimizer.apply(
                tables[g.table], g.rows, g.gradient, self.settings.learning_rate * decay
            )
        self.dense_adam.step(self.settings.dense_learning_rate * decay)
        self.steps += 1

    def _finite(self, g: RowGradient) -> RowGradient:
        """A row whose gradient is not finite gets none; one whose weights are not,
        begins anew at zero.
        """
        lines = self.model.tables[g.table].lines
        touched = lines.index_select(0, g.rows)
        # [T]
        sound = touched.isfinite().all(1)
        usable = g.gradient.square().sum(1).isfinite()
        lines.index_copy_(0, g.rows, torch.where(sound[:, None], touched, 0.0))
        self.not_finite += (~(sound & usable)).sum()
        return RowGradient(
            g.table, g.rows, torch.where(usable[:, None], g.gradient, 0.0), g.on_host
        )

    def dense(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """A copy of what belongs to no row and of random states: arrays, and a few
        plain values.
        """
        tensors = {
            f"dense.{name}": p.detach() for name, p in self.model.named_parameters()
        }
        tensors["draws"] = self._draws.get_state()
        if self._device_draws is not None and self._device_draws is not self._draws:
            tensors["device_draws"] = self._device_draws.get_state()
        tensors |= {
            f"adam.{name}": value for name, value in self.dense_adam.state().items()
        }
        arrays = {
            name: tensor.to("cpu", copy=True).numpy()
            for name, tensor in tensors.items()
        }
        return arrays, {
            "steps": self.steps,
            "host_draws": self._host_draws.bit_generator.state,
        }

    def load_dense(
        self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]
    ) -> None:
        """Take over what `dense` returned.

        Raises:
            ValueError: it belongs to a model of another shape.
        """
        tensors = {
            name: torch.from_numpy(np.array(array)) for name, array in arrays.items()
        }
        self.steps = values["steps"]
        self._host_draws.bit_generator.state = values["host_draws"]
        self._draws.set_state(tensors["draws"])
        if "device_draws" in tensors and self._device_draws is not None:
            self._device_draws.set_state(tensors["device_draws"])
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                found = tensors.get(f"dense.{name}")
                if found is None or found.shape != parameter.shape:
                    raise ValueError(
                        f"the state has no {name} of shape {tuple(parameter.shape)}: another model"
                    )
                parameter.copy_(found)
        prefix = "adam."
        self.dense_adam.load_state(
            {
                n.removeprefix(prefix): t
                for n, t in tensors.items()
                if n.startswith(prefix)
            }
        )

    def _to_device(self, value: NDArray[Any] | Tensor) -> Tensor:
        return to_device(value, self.device)

    def _decay(self) -> float:
        every = self.settings.decay_every
        return (
            float(self.settings.learning_rate_decay ** (self.steps // every))
            if every
            else 1.0
        )

    def _grow(self, batch: Batch, view: StreamState) -> None:
        users = int(batch.users.max(initial=-1)) + 1
        items = (
            max(int(batch.items.max(initial=-1)), int(view.cache.max(initial=-1))) + 1
        )
        if batch.recent is not None:
            items = max(items, int(batch.recent.max(initial=-1)) + 1)
        self.model.grow(users, items)

    def _extra(self, batch: Batch, view: StreamState, known: int) -> Rows:
        kind = self.method.extra
        if kind == "cache":
            return view.cache
        if kind == "uniform":
            count = self.settings.uniform_negatives
            extra = self._host_draws.integers(
                0, known, len(batch) if count is None else count
            )
        else:
            extra = np.arange(known) if kind == "all" else np.empty(0, np.int64)
        return extra if view.is_used is None else extra[view.is_used(extra)]

    def _proposals(self, plan: Plan, view: StreamState, known: int) -> Proposals:
        log_pop = _of_candidates(
            plan, view.popularity if self.method.popularity != "none" else None
        )
        wanted = (
            self.method.extra == "cache"
            and self.settings.cache_correction == "occurrence"
        )
        log_cache = (
            _of_candidates(plan, view.cache_draws)
            if wanted and view.cache_draws is not None
            else None
        )
        return Proposals(log_pop, log_cache, known)

    def _outcome(
        self,
        term: LossTerm,
        queries: Tensor,
        vectors: Tensor,
        positive: Tensor,
        own_place: Rows,
        offsets: Tensor | None,
        part: Rows,
    ) -> Outcome:
        candidates = term.candidates
        masked = self.settings.mask_positive
        if candidates.at is None:
            items = vectors[: len(candidates.count)]
        else:
            items = vectors.index_select(0, self._to_device(candidates.at))
        if term.draws is None:
            positive = positive - self._to_device(term.log_proposal[own_place])
        sampling = Sampling(
            log_weight=self._to_device(term.log_weight()),
            draws=term.draws,
            add_positive=masked or term.draws is not None,
            own=self._to_device(candidates.own),
            offsets=self._to_device(offsets[torch.from_numpy(part)])
            if offsets is not None
            else None,
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
        return SparseScores(
            self._to_device(first),
            self._to_device(rows),
            self._to_device(own[rows]),
            values,
        )


def _generator(device: torch.device, seed: int) -> torch.Generator | None:
    """A GPU's own source of randomness, for draws that are too many to send; None where
    there is no GPU.
    """
    return (
        torch.Generator(device).manual_seed(seed) if torch.cuda.is_available() else None
    )


def _of_candidates(plan: Plan, source: LogPopularity | None) -> Floats:
    """[T] for all candidates; recent items that are no candidates need none."""
    values = np.zeros(len(plan.items), np.float32)
    if source is not None:
        values[: plan.in_pools] = source.log_pop(plan.items[: plan.in_pools])
    return values


def _items(candidates: Candidates, plan: Plan) -> Rows:
    found: Rows = (
        plan.items[: len(candidates.count)]
        if candidates.at is None
        else plan.items[candidates.at]
    )
    return found


def _gradient(leaf: Tensor) -> Tensor:
    return leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)


def _figures(outcome: Outcome) -> list[Tensor]:
    return [
        outcome.loss.detach(),
        outcome.effective,
        outcome.distinct,
        outcome.own_share,
    ]


def _spread(
    counts: Tensor, term: LossTerm, prepared: Prepared, terms: list[LossTerm], at: Rows
) -> Tensor:
    """Draws among a part's own candidates, by the candidates of the whole batch."""
    local = next(t for t in terms if t.name == term.name).candidates
    by_place = torch.zeros(len(prepared.plan.items), device=counts.device)
    places = at[: len(local.count)] if local.at is None else at[local.at]
    by_place[to_device(places, counts.device)] = counts
    wanted = term.candidates
    return (
        by_place[: len(wanted.count)]
        if wanted.at is None
        else by_place[to_device(wanted.at, counts.device)]
    )
