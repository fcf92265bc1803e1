"""BIR: in-batch importance resampling (Algorithm 1 of the paper)."""

from __future__ import annotations

from typing import Literal

from streamer.model.losses.base import Extra, LossTerm, Proposals
from streamer.model.plan import Plan
from streamer.model.settings import MethodSettings


class Bir:
    """Each query draws its own negatives from the batch, with the softmax of its
    corrected scores as weights.
    """

    name = "bir"
    extra: Extra = "none"
    popularity: Literal["none", "exact", "hash"] = "exact"
    resamples = True

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        draws = settings.draws or len(plan.positive)
        return [
            LossTerm("batch", plan.batch_candidates(), proposals.log_pop, draws, 1.0)
        ]
