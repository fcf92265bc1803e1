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
from typing import Literal, Protocol

import numpy as np

from streamer.model.batch import Floats, Rows
from streamer.model.plan import CandidateSet, Plan
from streamer.model.settings import MethodSettings

Extra = Literal["none", "cache", "uniform", "all"]
"""Where candidates from outside the batch come from."""


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
    draws: int | None
    weight: float

    def log_weight(self) -> Floats:
        """[K] log multiplicity - log proposal."""
        weight: Floats = np.log(self.candidates.count) - self.candidates.take(
            self.log_proposal
        )
        return weight

    def only(self, events: Rows) -> LossTerm:
        """The same candidates, of some of the events."""
        return replace(
            self, candidates=replace(self.candidates, own=self.candidates.own[events])
        )


class Method(Protocol):
    """A way to train the towers.

    Attributes:
        name: how users call it.
        extra: where candidates from outside the batch come from.
        popularity: which estimate corrects it; `none` if it corrects nothing.
        resamples: whether it has draws, and so an occurrence vector.
    """

    name: str
    extra: Extra
    popularity: Literal["none", "exact", "hash"]
    resamples: bool

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        """The terms of the loss.

        Args:
            plan: the step's candidates.
            proposals: how likely each of them became one.
            settings: options.
        """
        ...
