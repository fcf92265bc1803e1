"""What a training method is: which candidates it uses, how it corrects them, and whether it resamples.

All methods are weighted sums of the same loss over candidate sets (`kernels.sampled_softmax`); they differ only in
what is described here.

**The query's own positive among its candidates** (an accidental hit, when it was drawn or sampled as a negative) is
treated in one way by all: as in the paper's code it stays a candidate like any other. With `mask_own` it is removed
from every candidate set of its query, all copies of it, and only the positive term of the loss remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from streamer.model.batch import Floats
from streamer.model.plan import Candidates, Plan

Extra = Literal["none", "cache", "uniform", "all"]
"""Where candidates from outside the batch come from."""


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """Options of the methods.

    Args:
        draws: |R_u|, how often a query draws in all; None draws as often as the batch has events.
        cache_weight: lambda, the cache's share of XIR's loss.
        cache_correction: XIR corrects cached items by `popularity` (the paper) or by their `occurrence`, the weight
            with which they were drawn into the cache.
        uniform: how many uniform items MNS adds; None adds as many as the batch has events.
        resampler: `systematic` or `multinomial` (the paper's).
        mask_own: remove the query's own positive from its candidates.
    """

    draws: int | None = None
    cache_weight: float = 0.2
    cache_correction: Literal["popularity", "occurrence"] = "popularity"
    uniform: int | None = None
    resampler: Literal["systematic", "multinomial"] = "systematic"
    mask_own: bool = False

    def problems(self) -> list[str]:
        """What is wrong with these settings; empty if nothing is."""
        found = []
        if self.draws is not None and self.draws < 1:
            found.append(f"draws is {self.draws}: a query must draw at least once")
        if not 0 <= self.cache_weight <= 1:
            found.append(f"cache_weight (lambda) is {self.cache_weight}: choose a number from 0 to 1")
        if self.cache_correction not in ("popularity", "occurrence"):
            found.append(f"cache_correction is {self.cache_correction!r}: choose popularity or occurrence")
        if self.uniform is not None and self.uniform < 0:
            found.append(f"uniform is {self.uniform}: it cannot be negative")
        if self.resampler not in ("systematic", "multinomial"):
            found.append(f"resampler is {self.resampler!r}: choose systematic or multinomial")
        return found


@dataclass(frozen=True, slots=True)
class Proposals:
    """How likely items become candidates.

    Args:
        log_pop: [T] log popularity of `plan.items`.
        log_cache: [T] log probability of being drawn into the cache; None if it is not known.
        known_items: N.
    """

    log_pop: Floats
    log_cache: Floats | None
    known_items: int


@dataclass(frozen=True, slots=True)
class Part:
    """One term of the loss.

    Args:
        name: `batch` or `cache`.
        candidates: whom the positive competes with.
        log_proposal: [T] log of the probability with which each item became a candidate.
        draws: draws a query, None to take every candidate once.
        weight: share of this term in the loss.
    """

    name: str
    candidates: Candidates
    log_proposal: Floats
    draws: int | None
    weight: float

    def log_weight(self) -> Floats:
        """[K] log multiplicity - log proposal."""
        weight: Floats = np.log(self.candidates.count) - self.candidates.take(self.log_proposal)
        return weight


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

    def parts(self, plan: Plan, proposals: Proposals, settings: SamplerSettings) -> list[Part]:
        """The terms of the loss.

        Args:
            plan: the step's candidates.
            proposals: how likely each of them became one.
            settings: options.
        """
        ...
