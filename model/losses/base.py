"""What a training method is: which candidates it uses, how it corrects them, and
whether it resamples.

All methods are weighted sums of the same loss over candidate sets
(`kernels.sampled_softmax`); they differ only in what is described here.

**The query's own positive among its candidates** (an accidental hit, when it was drawn
or sampled as a negative) is treated in one way by all: as in the paper's code it stays
a candidate like any other. With `mask_positive` it is removed from every candidate set
of its query, all copies of it, and only the positive term of the loss remains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from streamer.model.batch import Floats, Rows
from streamer.model.device import to_device
from streamer.model.kernels import LossOutcome, Sampling, sampled_softmax
from streamer.model.plan import CandidateSet, Plan
from streamer.model.settings import MethodSettings


@dataclass(frozen=True, slots=True)
class Proposals:
    """How likely items become candidates.

    Args:
        log_pop: [T] log popularity of `plan.items`.
        log_cache: [T] log probability of being drawn into the cache; None if it is not
            known.
        known_items: N.
    """

    log_pop: Floats
    log_cache: Floats | None
    known_items: int

    def only(self, places: Rows) -> Proposals:
        """Those of some of the items."""
        return replace(
            self,
            log_pop=self.log_pop[places],
            log_cache=None if self.log_cache is None else self.log_cache[places],
        )


@dataclass(frozen=True, slots=True)
class LossTerm:
    """One term of the loss.

    Args:
        name: `batch` or `cache`.
        candidates: whom the positive competes with.
        log_proposal: [T] log of the probability with which each item became a
            candidate.
        draws: draws a query, None to take every candidate once.
        weight: share of this term in the loss.
    """

    name: str
    candidates: CandidateSet
    log_proposal: Floats
    draws: int | None = None
    weight: float = 1.0

    def log_weight(self) -> Floats:
        """[K] log multiplicity - log proposal."""
        proposal: Floats = self.candidates.take(self.log_proposal)
        return np.log(self.candidates.count) - proposal

    def only(self, events: Rows) -> LossTerm:
        """The same candidates, of some of the events."""
        return replace(
            self, candidates=replace(self.candidates, own=self.candidates.own[events])
        )

    def loss(
        self,
        queries: Tensor,
        vectors: Tensor,
        positive: Tensor,
        places: Rows,
        settings: MethodSettings,
        offsets: Tensor | None,
        generator: torch.Generator | None,
        weights: Tensor | None = None,
    ) -> LossOutcome:
        """The loss of this term.

        Args:
            queries: [b, d].
            vectors: [t, d] of the items that the term refers to.
            positive: [b] score of each query's positive.
            places: [b] of the positives among those items.
            settings: options.
            offsets: [b] one uniform number of each query, if they are drawn by it.
            generator: of other draws.
            weights: [b] how much each query counts; None: 1 each.
        """
        device = queries.device
        items = vectors[: len(self.candidates.count)]
        if self.candidates.at is not None:
            items = vectors.index_select(0, to_device(self.candidates.at, device))
        if self.draws is None:
            positive = positive - to_device(self.log_proposal[places], device)
        sampling = Sampling(
            to_device(self.log_weight(), device),
            self.draws,
            to_device(self.candidates.own, device),
            settings.mask_positive,
            None if offsets is None else to_device(offsets, device),
            settings.resampler,
            generator,
            weights,
        )
        return sampled_softmax(queries, items, positive, sampling)


class Method:
    """A way to train the towers."""

    name: str
    """How users call it."""
    extra: Literal["none", "cache", "uniform", "all"] = "none"
    """Where candidates from outside the batch come from."""
    popularity: Literal["none", "exact", "hash"] = "exact"
    """Which estimate corrects it; `none` if it corrects nothing."""
    resamples = False
    """Whether it has draws, and so an occurrence vector."""

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        """The terms of the loss.

        Args:
            plan: the step's candidates.
            proposals: how likely each of them became one.
            settings: options.
        """
        raise NotImplementedError
