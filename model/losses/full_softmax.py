"""Full softmax: the reference that the others approximate."""

from __future__ import annotations

from typing import Literal

import numpy as np

from streamer.model.losses.base import Extra, LossTerm, Proposals
from streamer.model.plan import Plan
from streamer.model.settings import MethodSettings


class FullSoftmax:
    """-log softmax of the positive among all known items. Costs O(B N)."""

    name = "full-softmax"
    extra: Extra = "all"
    popularity: Literal["none", "exact", "hash"] = "none"
    resamples = False

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        return [
            LossTerm(
                "batch",
                plan.all_candidates(once=True),
                np.zeros_like(proposals.log_pop),
                None,
                1.0,
            )
        ]
