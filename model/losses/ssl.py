"""SSL: plain in-batch softmax, nothing corrected."""

from __future__ import annotations

from typing import Literal

import numpy as np

from model.batch import Floats
from model.losses.base import Extra, Part, SamplerSettings
from model.plan import Plan


class Ssl:
    """-log softmax of the positive among the batch's items."""

    name = "ssl"
    extra: Extra = "none"
    popularity: Literal["none", "exact", "hash"] = "none"
    resamples = False

    def parts(self, plan: Plan, log_pop: Floats, known_items: int, settings: SamplerSettings) -> list[Part]:
        return [Part("batch", plan.batch_candidates(), np.zeros_like(log_pop), None, 1.0)]
