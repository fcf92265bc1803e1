"""SSL-Pop: in-batch softmax corrected by item popularity."""

from __future__ import annotations

from typing import Literal

from model.batch import Floats
from model.losses.base import Extra, Part, SamplerSettings
from model.plan import Plan


class SslPop:
    """Every logit minus log pop: an item is in the batch as often as it is popular, and must not be punished for it."""

    name = "ssl-pop"
    extra: Extra = "none"
    popularity: Literal["none", "exact", "hash"] = "exact"
    resamples = False

    def parts(self, plan: Plan, log_pop: Floats, known_items: int, settings: SamplerSettings) -> list[Part]:
        return [Part("batch", plan.batch_candidates(), log_pop, None, 1.0)]
