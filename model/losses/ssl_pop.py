"""SSL-Pop: in-batch softmax corrected by item popularity."""

from __future__ import annotations

from typing import Literal

from streamer.model.losses.base import Extra, LossTerm, Proposals
from streamer.model.plan import Plan
from streamer.model.settings import MethodSettings


class SslPop:
    """Every logit minus log pop: an item is in the batch as often as it is popular, and
    must not be punished for it.
    """

    name = "ssl-pop"
    extra: Extra = "none"
    popularity: Literal["none", "exact", "hash"] = "exact"
    resamples = False

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        return [
            LossTerm("batch", plan.batch_candidates(), proposals.log_pop, None, 1.0)
        ]
