"""XIR: cache-augmented in-batch importance resampling (Algorithm 2 of the paper)."""

from __future__ import annotations

from typing import Literal

from streamer.model.batch import Floats
from streamer.model.losses.base import Extra, LossTerm, Proposals
from streamer.model.plan import Plan
from streamer.model.settings import MethodSettings


class Xir:
    """Half of a query's negatives are drawn from the batch, half from a cache of
    often-resampled items.

    loss = lambda loss(cache, m = |R_u| / 2) + (1 - lambda) loss(batch, m = |R_u| / 2)

    The paper corrects both sets by popularity. A cached item is there because it was
    resampled often, though, not because it is popular: with
    `cache_correction="occurrence"` the cache is corrected by the probability with which
    it was really drawn.
    """

    name = "xir"
    extra: Extra = "cache"
    popularity: Literal["none", "exact", "hash"] = "exact"
    resamples = True

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        draws = max(1, (settings.draws or len(plan.positive)) // 2)
        share = settings.cache_weight if len(plan.extra) else 0.0
        batch = LossTerm(
            "batch", plan.batch_candidates(), proposals.log_pop, draws, 1.0 - share
        )
        if not len(plan.extra):
            return [batch]
        return [
            batch,
            LossTerm(
                "cache",
                plan.extra_candidates(),
                self._of_cache(proposals, settings),
                draws,
                share,
            ),
        ]

    def _of_cache(self, proposals: Proposals, settings: MethodSettings) -> Floats:
        if (
            settings.cache_correction == "occurrence"
            and proposals.log_cache is not None
        ):
            return proposals.log_cache
        return proposals.log_pop
