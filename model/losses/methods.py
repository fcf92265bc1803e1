"""The training methods, each one class."""

from __future__ import annotations

import numpy as np

from streamer.model.losses.base import LossTerm, Method, Proposals
from streamer.model.plan import Plan
from streamer.model.settings import MethodSettings


class Ssl(Method):
    """Plain in-batch softmax: -log softmax of the positive among the batch's items,
    nothing corrected.
    """

    name = "ssl"
    popularity = "none"

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        uncorrected = np.zeros_like(proposals.log_pop)
        return [LossTerm("batch", plan.batch_candidates(), uncorrected)]


class SslPop(Method):
    """In-batch softmax with every logit minus log pop: an item is in the batch as often
    as it is popular, and must not be punished for it.
    """

    name = "ssl-pop"

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        return [LossTerm("batch", plan.batch_candidates(), proposals.log_pop)]


class Mns(Method):
    """Mixed negative sampling (Yang et al., WWW 2020): batch items and uniformly drawn
    items in one candidate set, corrected by the mixture's probability.

    q(j) = B / (B + B') pop(j) + B' / (B + B') / N
    """

    name = "mns"
    extra = "uniform"

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        batch = len(plan.positive) / (len(plan.positive) + len(plan.extra))
        uniform = (1 - batch) / max(proposals.known_items, 1)
        mixture = np.log(batch * np.exp(proposals.log_pop) + uniform)
        log_proposal = mixture.astype(proposals.log_pop.dtype)
        return [LossTerm("batch", plan.all_candidates(), log_proposal)]


class GTower(SslPop):
    """SSL-Pop whose popularity comes from hash arrays of fixed size (Yi et al., RecSys
    2019).
    """

    name = "g-tower"
    popularity = "hash"


class Bir(Method):
    """In-batch importance resampling (Algorithm 1 of the paper): each query draws its
    own negatives from the batch, with the softmax of its corrected scores as weights.
    """

    name = "bir"
    resamples = True

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        draws = settings.draws or len(plan.positive)
        return [LossTerm("batch", plan.batch_candidates(), proposals.log_pop, draws)]


class Xir(Method):
    """Cache-augmented importance resampling (Algorithm 2 of the paper): half of a
    query's negatives are drawn from the batch, half from a cache of often-resampled
    items.

    loss = lambda loss(cache, m = |R_u| / 2) + (1 - lambda) loss(batch, m = |R_u| / 2)

    The paper corrects both sets by popularity. A cached item is there because it was
    resampled often, though, not because it is popular: with
    `cache_correction="occurrence"` the cache is corrected by the probability with which
    it was really drawn.
    """

    name = "xir"
    extra = "cache"
    resamples = True

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        draws = max(1, (settings.draws or len(plan.positive)) // 2)
        batch = plan.batch_candidates()
        if not len(plan.extra):
            return [LossTerm("batch", batch, proposals.log_pop, draws)]
        log_cache = proposals.log_cache
        if log_cache is None or settings.cache_correction == "popularity":
            log_cache = proposals.log_pop
        share = settings.cache_weight
        cache = plan.extra_candidates()
        return [
            LossTerm("batch", batch, proposals.log_pop, draws, 1.0 - share),
            LossTerm("cache", cache, log_cache, draws, share),
        ]


class FullSoftmax(Method):
    """-log softmax of the positive among all known items: the reference that the others
    approximate. Costs O(B N).
    """

    name = "full-softmax"
    extra = "all"
    popularity = "none"

    def terms(
        self, plan: Plan, proposals: Proposals, settings: MethodSettings
    ) -> list[LossTerm]:
        uncorrected = np.zeros_like(proposals.log_pop)
        return [LossTerm("batch", plan.all_candidates(once=True), uncorrected)]


METHODS: dict[str, Method] = {
    method.name: method
    for method in (Ssl(), SslPop(), Mns(), GTower(), Bir(), Xir(), FullSoftmax())
}
