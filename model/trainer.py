"""The training step: a micro-batch and a view of the stream in, updated towers and a
report out. No I/O.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamer.model.batch import Batch, Floats, LogPopularity, Rows, StreamState
from streamer.model.device import to_device
from streamer.model.kernels import LossOutcome
from streamer.model.losses import METHODS, Proposals
from streamer.model.optim import ParameterAdam, make_optimizer, sum_of_squares
from streamer.model.plan import Plan, Planner
from streamer.model.rows.by_rows import Arrays
from streamer.model.rows.changes import RowChanges
from streamer.model.settings import LearnerSettings
from streamer.model.step import (
    FIGURES,
    GradientShare,
    Prepared,
    RandomDraws,
    StepResult,
)
from streamer.model.towers import TouchedRows, TouchedTable, TwoTower, gradient_of

KINDS = {"user.id": "users", "item.id": "items"}
"""Of the rows of a table."""


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
        self.method = METHODS[settings.method]
        self.optimizer = make_optimizer(settings.optimizer, settings.l2)
        self.model = TwoTower(
            settings, self.optimizer.slots, device, self.optimizer.numbers
        )
        self.dense_adam = ParameterAdam(dict(self.model.named_parameters()))
        self.planner = Planner()
        self.changes = RowChanges()
        self.steps = 0
        self.not_finite = torch.zeros((), dtype=torch.int64, device=device)
        """Rows of all steps that were not updated, because a number of theirs was not
        finite.
        """
        self._draws = RandomDraws(settings.seed, device)

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
        offsets = {}
        for term in terms:
            if term.draws is not None and self.settings.resampler == "systematic":
                offsets[term.name] = torch.rand(
                    len(batch), generator=self._draws.offsets
                )
        touched = TouchedRows(self.device)
        vectors = self.model.items(touched, plan.items)  # [T, d]
        codes = batch.user_codes
        if codes is None:
            codes = self.model.user.features.codes(batch.users)
        return Prepared(
            batch,
            plan,
            proposals,
            terms,
            offsets,
            touched,
            vectors,
            categories=self.model.user.categories(touched, codes),
            local=self.settings.negatives == "local",
        )

    def share(self, prepared: Prepared, part: Rows) -> GradientShare:
        """Steps 2 and 3 for some events of the batch: what they add to the gradient of
        the whole batch's mean loss.

        Several processes may each compute some parts; shares add up.
        """
        # 2. vectors; gradients stop at those of items and of users' categories, and go
        # on from their sum in `finish`
        plan = prepared.plan
        vectors = prepared.vectors.detach().requires_grad_()  # [T, d]
        categories = {}
        for name, table in prepared.categories.items():
            leaf = table.weight.detach().requires_grad_()
            categories[name] = replace(table, weight=leaf)
        users, place = np.unique(prepared.batch.users[part], return_inverse=True)
        recent = self._to_device(plan.recent[part]) if plan.recent is not None else None
        queries = self.model.queries(  # [b, d]
            prepared.touched, users, self._to_device(place), vectors, recent, categories
        )
        own = vectors.index_select(0, self._to_device(plan.positive[part]))
        positive = (queries * own).sum(1)  # [b]

        # 3. loss and gradients
        settings = self.settings
        draws = self._draws.on_device
        candidates = prepared.candidates_of(part, self.planner, self.method, settings)
        items = vectors
        if candidates.items is not None:
            items = vectors.index_select(0, self._to_device(candidates.items))
        weights = None
        if prepared.batch.weights is not None:
            weights = self._to_device(prepared.batch.weights[part])
        outcomes = []
        for term in candidates.terms:
            offsets = prepared.offsets.get(term.name)
            if offsets is not None:
                offsets = offsets[torch.from_numpy(part)]
            outcomes.append(
                term.loss(
                    queries,
                    items,
                    positive,
                    candidates.own,
                    settings,
                    offsets,
                    draws,
                    weights,
                )
            )
        weight = len(part) / len(prepared.batch)
        terms = zip(outcomes, candidates.terms, strict=True)
        loss = torch.stack([o.loss * term.weight for o, term in terms]).sum() * weight
        self.dense_adam.clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]

        leaves = [
            *self._user_parameters(),
            *(table.weight for table in categories.values()),
        ]
        pieces = [gradient_of(leaf).reshape(-1) for leaf in leaves]
        figures = [loss.detach()]
        for outcome, term, whole in zip(
            outcomes, candidates.terms, prepared.terms, strict=True
        ):
            pieces.append(candidates.spread(outcome.counts, term, whole, plan))
            figures += [figure * weight for figure in _figures(outcome)]
        vector = torch.cat(
            [piece.detach() for piece in [*pieces, torch.stack(figures)]]
        )
        return GradientShare(gradient_of(vectors), vector)

    def finish(self, prepared: Prepared, rows: Tensor, vector: Tensor) -> StepResult:
        """Step 3 for what the shares add up to.

        Args:
            prepared: the step.
            rows: [T, d] gradient of the items' vectors.
            vector: the rest of the shares.
        """
        leaves = self._leaves(prepared)
        counts_sizes = [len(term.candidates.count) for term in prepared.terms]
        sizes = [leaf.numel() for leaf in leaves] + counts_sizes
        *pieces, figures = torch.split(vector, [*sizes, len(vector) - sum(sizes)])

        self.dense_adam.clear_gradients()
        for leaf, gradient in zip(leaves, pieces, strict=False):
            leaf.grad = gradient.view_as(leaf)
        prepared.vectors.backward(rows)  # type: ignore[no-untyped-call]
        parts = {}
        resampled = []
        by_term = figures[1:].view(len(prepared.terms), -1)
        counts = pieces[len(leaves) :]
        for term, drawn, (loss, *others) in zip(
            prepared.terms, counts, by_term, strict=True
        ):
            parts[term.name] = LossOutcome(loss, drawn, *others)
            if term.draws:
                items = term.candidates.take(prepared.plan.items)
                resampled.append((items, drawn))
        return StepResult(figures[0], parts, resampled, prepared.touched.tables)

    def vector_size(self, prepared: Prepared) -> int:
        """Numbers in the vector of a share."""
        size = 1 + sum(leaf.numel() for leaf in self._leaves(prepared))
        for term in prepared.terms:
            size += len(term.candidates.count) + FIGURES
        return size

    def _leaves(self, prepared: Prepared) -> list[Tensor]:
        categories = [table.weight for table in prepared.categories.values()]
        return [*self._user_parameters(), *categories]

    def _user_parameters(self) -> list[torch.nn.Parameter]:
        """Parameters whose gradients come from queries; those of the item tower come
        from the items' vectors.
        """
        parameters = self.dense_adam.parameters.items()
        return [p for name, p in parameters if not name.startswith("item.")]

    def apply(self, gradients: list[TouchedTable]) -> None:
        """Step 4: update touched rows and dense parameters, but for what is not finite."""
        settings = self.settings
        decay = 1.0
        if settings.decay_every:
            decay = settings.learning_rate_decay ** (self.steps // settings.decay_every)
        tables = self.model.tables
        for g in gradients:
            rows = g.on_host
            if settings.optimizer == "dense-adam":
                rows = np.arange(tables[g.table].size)
            self.changes.mark(KINDS.get(g.table, g.table), rows)
        total = sum_of_squares([g.gradient for g in gradients])
        if total is None or not math.isfinite(total):
            for g in gradients:
                self._make_finite(g)
        rate = settings.learning_rate * decay
        for g in gradients:
            self.optimizer.apply(tables[g.table], g.rows, g.gradient, rate)
        self.steps += 1
        self.dense_adam.step(settings.dense_learning_rate * decay, self.steps)

    def _make_finite(self, g: TouchedTable) -> None:
        """A row whose gradient is not finite gets none; one whose weights are not,
        begins anew at zero.
        """
        lines = self.model.tables[g.table].lines
        touched = lines.index_select(0, g.rows)
        sound = touched.isfinite().all(1)  # [T]
        usable = g.gradient.square().sum(1).isfinite()  # [T]
        lines.index_copy_(0, g.rows, torch.where(sound[:, None], touched, 0.0))
        self.not_finite += (~(sound & usable)).sum()
        g.weight.grad = torch.where(usable[:, None], g.gradient, 0.0)

    def dense(self) -> tuple[Arrays, dict[str, Any]]:
        """A copy of what belongs to no row and of random states: arrays, and a few
        plain values.
        """
        arrays, values = self._draws.state()
        for name, tensor in self.dense_adam.state().items():
            arrays[name] = tensor.to("cpu", copy=True).numpy()
        return arrays, values | {"steps": self.steps}

    def load_dense(self, arrays: Arrays, values: dict[str, Any]) -> None:
        """Take over what `dense` returned.

        Raises:
            ValueError: it belongs to a model of another shape.
        """
        self.steps = values["steps"]
        self._draws.load_state(arrays, values)
        for name, tensor in self.dense_adam.state().items():
            found = arrays.get(name)
            shape = tuple(tensor.shape)
            if found is None or found.shape != shape:
                raise ValueError(
                    f"the state has no {name} of shape {shape}: another model"
                )
            tensor.copy_(torch.from_numpy(np.array(found)))

    def _to_device(self, value: NDArray[Any] | Tensor) -> Tensor:
        return to_device(value, self.device)

    def _grow(self, batch: Batch, view: StreamState) -> None:
        users = int(batch.users.max(initial=-1)) + 1
        items = max(batch.items.max(initial=-1), view.cache.max(initial=-1))
        if batch.recent is not None:
            items = max(items, batch.recent.max(initial=-1))
        self.model.grow(users, int(items) + 1)

    def _extra(self, batch: Batch, view: StreamState, known: int) -> Rows:
        """Candidates from outside the batch."""
        kind = self.method.extra
        if kind == "cache":
            return view.cache
        extra = np.empty(0, np.int64)
        if kind == "uniform":
            count = self.settings.uniform_negatives
            count = len(batch) if count is None else count
            extra = self._draws.items.integers(0, known, count)
        elif kind == "all":
            extra = np.arange(known)
        return extra if view.is_used is None else extra[view.is_used(extra)]

    def _proposals(self, plan: Plan, view: StreamState, known: int) -> Proposals:
        corrected = self.method.popularity != "none"
        log_pop = _of_candidates(plan, view.popularity if corrected else None)
        log_cache = None
        by_occurrence = self.settings.cache_correction == "occurrence"
        if self.method.extra == "cache" and by_occurrence and view.cache_draws:
            log_cache = _of_candidates(plan, view.cache_draws)
        return Proposals(log_pop, log_cache, known)


def _of_candidates(plan: Plan, source: LogPopularity | None) -> Floats:
    """[T] for all candidates; recent items that are no candidates need none."""
    values = np.zeros(len(plan.items), np.float32)
    if source is not None:
        values[: plan.in_pools] = source.log_pop(plan.items[: plan.in_pools])
    return values


def _figures(outcome: LossOutcome) -> list[Tensor]:
    loss = outcome.loss.detach()
    return [loss, outcome.effective, outcome.distinct, outcome.own_share]
