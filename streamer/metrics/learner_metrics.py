"""Metrics of what is learned: its size and limits, what the sampler draws, and how well
it ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from streamer.metrics.catalogue import (
    BANDS,
    DECILES,
    MEMORY,
    PARTS,
    SIDES,
    TOP_RANKS,
    WHY_EVICTED,
)
from streamer.metrics.instruments import Instruments

if TYPE_CHECKING:
    from torch import Tensor

    from streamer.evaluation import Prequential
    from streamer.learner import Learned, Learner
    from streamer.metrics.sampler_report import SamplerReport


def set_limits(i: Instruments, learner: Learner) -> None:
    """How many ids there may be, how old they get, and how many went."""
    i.set("streamer_cold_items", len(learner.state.cold_items))
    limits = learner.state.limits._asdict()
    for side in SIDES:
        i.set("streamer_ids_limit", limits[side], side)
        i.set("streamer_oldest_age_seconds", learner.state.age_s(side), side)
        i.set(
            "streamer_evicted_age_seconds",
            learner.eviction.evicted_age_s.get(side),
            side,
        )
        for reason in WHY_EVICTED:
            i.rise(
                "streamer_evicted_total",
                learner.eviction.evicted[side, reason],
                side,
                reason,
            )
    i.set("streamer_young_age_seconds", learner.settings.young_age_s)


def set_memory(i: Instruments, learner: Learner) -> None:
    """The bytes that each part of the state takes."""
    sizes: Counter[str] = Counter()
    for kind, parts in learner.state.memory().items():
        sizes[_memory_part(kind, parts)] += sum(parts.values())
    for part in MEMORY:
        i.set("streamer_memory_bytes", sizes[part], part)


def _memory_part(kind: str, parts: Mapping[str, int]) -> str:
    if kind == "pairs":
        return "items"
    if kind in SIDES:
        return kind
    return "categories" if "ids" in parts else "other"


def set_draws(i: Instruments, learned: Learned) -> None:
    """What the draws of the latest step looked like; the line has waited for the
    device already, for the loss.
    """
    step = learned.step
    users = max(len(learned.users), 1)
    for name in PARTS:
        part = step.parts.get(name)
        if part is None:
            continue
        draws = float(_array(part.counts).sum()) / users
        distinct = float(_array(part.distinct))
        i.set("streamer_loss_part", float(_array(part.loss)), name)
        i.set("streamer_sampler_effective_size", float(_array(part.effective)), name)
        i.set("streamer_sampler_distinct_negatives", distinct, name)
        i.set(
            "streamer_sampler_distinct_share",
            distinct / draws if draws else 0.0,
            name,
        )
        i.set("streamer_sampler_own_share", float(_array(part.own_share)), name)


def set_sampler_report(i: Instruments, report: SamplerReport) -> None:
    """What is in the cache, and how popular items are drawn."""
    i.set("streamer_cache_slots", report.slots)
    i.set("streamer_cache_distinct_items", report.distinct)
    i.set("streamer_cache_entropy_nats", report.entropy)
    i.set("streamer_cache_turnover_share", report.turnover)
    i.set("streamer_cache_entry_age_seconds", report.age_s)
    i.set("streamer_cache_batch_overlap_share", report.overlap)
    for band, slots, drawn in zip(
        BANDS, report.slot_bands, report.occurrence_bands, strict=True
    ):
        i.set("streamer_cache_slot_share", slots, band)
        i.set("streamer_occurrence_share", drawn, band)
    for decile, slots, drawn in zip(
        DECILES, report.slot_deciles, report.occurrence_deciles, strict=True
    ):
        i.set("streamer_cache_slot_share_decile", slots, decile)
        i.set("streamer_occurrence_share_decile", drawn, decile)
    shares = [top.share for top in report.top] + [0.0] * len(TOP_RANKS)
    for rank, share in zip(TOP_RANKS, shares, strict=False):
        i.set("streamer_cache_top_slot_share", share, rank)
    for part, value in report.divergence.items():
        i.set("streamer_popularity_divergence_nats", value, part)
    i.set("streamer_popularity_items", report.items)
    i.set("streamer_popularity_hash_log_error", report.hash_error)
    i.set("streamer_popularity_hash_collision_share", report.collision_share)


def set_prequential(
    i: Instruments,
    prequential: Prequential,
    influence: Mapping[str, Mapping[str, float]],
) -> None:
    """How well events were ranked before they were trained, and by what evidence."""
    k = str(prequential.k)
    for name in prequential.names:
        hit_rate = prequential.figure(name).recent
        ndcg = prequential.figure(name, metric="ndcg").recent
        i.set("streamer_prequential_hit_rate", hit_rate, name, k)
        i.set("streamer_prequential_ndcg", ndcg, name, k)
    if (share := prequential.watch.cold_share) is not None:
        i.set("streamer_recommended_cold_share", share)
    if (baseline := prequential.best_baseline()) is not None:
        i.replace(
            "streamer_prequential_best_baseline_hit_rate",
            {(baseline.name, k): baseline.hit_rate},
        )
    for history, shares in influence.items():
        for evidence, share in shares.items():
            i.set("streamer_ranker_influence_share", share, history, evidence)
    i.rise("streamer_prequential_events_total", prequential.model.events)


def _array(tensor: Tensor) -> Any:
    """What a tensor holds. On the host without a call that lets other threads run
    first: they may take their time.
    """
    return tensor.numpy() if tensor.device.type == "cpu" else tensor.cpu().numpy()
