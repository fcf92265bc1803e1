"""MNS: mixed negative sampling (Yang et al., WWW 2020)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from streamer.model.losses.base import Extra, LossTerm, Proposals
from streamer.model.plan import Plan
from streamer.model.settings import MethodSettings


class Mns:
    """Batch items and uniformly drawn items in one candidate set, corrected by the
    mixture's probability.

    q(j) = B / (B + B') pop(j) + B' / (B + B') / N
    """

    name = "mns"
    extra: Extra = "uniform"
    popularity: Literal["none", "exact", "hash"] = "exact"
    resamples = False

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        batch = len(plan.positive) / (len(plan.positive) + len(plan.extra))
        mixture = batch * np.exp(proposals.log_pop) + (1 - batch) / max(
            proposals.known_items, 1
        )
        return [
            LossTerm(
                "batch",
                plan.all_candidates(),
                np.log(mixture).astype(np.float32),
                None,
                1.0,
            )
        ]
