"""SSL: plain in-batch softmax, nothing corrected."""

from __future__ import annotations

from typing import Literal

import numpy as np

from streamer.model.losses.base import Extra, LossTerm, Proposals
from streamer.model.plan import Plan
from streamer.model.settings import MethodSettings


class Ssl:
    """-log softmax of the positive among the batch's items."""

    name = "ssl"
    extra: Extra = "none"
    popularity: Literal["none", "exact", "hash"] = "none"
    resamples = False

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        return [
            LossTerm(
                "batch",
                plan.batch_candidates(),
                np.zeros_like(proposals.log_pop),
                None,
                1.0,
            )
        ]
