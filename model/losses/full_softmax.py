"""Full softmax: the reference that the others approximate."""

from __future__ import annotations

from typing import Literal

import numpy as np

from model.batch import Floats
from model.losses.base import Extra, Part, SamplerSettings
from model.plan import Plan


class FullSoftmax:
    """-log softmax of the positive among all known items. Costs O(B N)."""

    name = "full-softmax"
    extra: Extra = "all"
    popularity: Literal["none", "exact", "hash"] = "none"
    resamples = False

    def parts(self, plan: Plan, log_pop: Floats, known_items: int, settings: SamplerSettings) -> list[Part]:
        return [Part("batch", plan.all_candidates(once=True), np.zeros_like(log_pop), None, 1.0)]
