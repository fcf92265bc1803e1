"""What each metric is, taken from the parts of a line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from streamer.metrics.catalogue import (
    BANDS,
    CATALOGUE,
    MEMORY,
    PARTS,
    SIDES,
    STORE_ERRORS,
    WHY_EVICTED,
)
from streamer.metrics.instruments import Values

if TYPE_CHECKING:
    from torch import Tensor

    from streamer.evaluation import Prequential
    from streamer.learner import OnlineLearner
    from streamer.metrics.status import Status


def status_figures(status: Status, now_s: float) -> Values:
    """What became of the events, what waits, and what is exchanged, saved and
    published: the numbers of a status.
    """
    saves = status.saves
    published = status.publishing
    found: Values = {
        "streamer_source_live": status.source_problem is None,
        "streamer_partitions": len(status.partitions),
        "streamer_checkpoint_writable": saves.problem is None,
        ("streamer_checkpoints_total", "saved"): saves.saved,
        ("streamer_checkpoints_total", "failed"): saves.failed,
        "streamer_publish_live": published is None or published.problem is None,
        "streamer_group_trainers": len(status.members),
    }
    for name, metric in CATALOGUE.items():
        number = _number_at(status, metric.path) if metric.path else None
        if number is not None:
            found[name] = number
    for band in BANDS:
        slots = getattr(status.sampler.cache_bands, band)
        drawn = getattr(status.sampler.occurrence_bands, band)
        found["streamer_cache_slot_share", band] = slots
        found["streamer_occurrence_share", band] = drawn
    for reason, count in status.this_run["dead_letters"].items():
        found["streamer_dead_letters_total", reason] = count
    for (topic, number), lag in status.lag.items():
        found["streamer_lag_records", topic, str(number)] = lag
    if published is not None and published.at_s is not None:
        found["streamer_published_age_seconds"] = now_s - published.at_s
    errors: Counter[str] = Counter()
    for reason, count in status.store.errors.items():
        errors[reason if reason in STORE_ERRORS else "other"] += count
    for reason, count in errors.items():
        found["streamer_store_errors_total", reason] = count
    for number, member in enumerate(status.members):
        name = str(number)
        waiting_s = member.waiting_ms / 1000
        exchange_s = member.exchange_ms / 1000
        found["streamer_group_partitions", name] = len(member.partitions)
        found["streamer_group_waiting_seconds_total", name] = waiting_s
        found["streamer_group_exchange_seconds_total", name] = exchange_s
        found["streamer_group_sent_bytes_total", name] = member.sent_bytes
    return found


def _number_at(status: Status, path: str) -> float | None:
    """A number of the status; None if a part on the way to it is missing."""
    found: Any = status
    for part in path.split("."):
        if found is None:
            return None
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    return None if found is None else float(found)


def limit_figures(learner: OnlineLearner) -> Values:
    """How many ids there may be, how old they get, and how many went."""
    state = learner.state
    eviction = learner.eviction
    limits = state.limits._asdict()
    found: Values = {
        "streamer_cold_items": len(state.cold_items),
        "streamer_young_age_seconds": learner.settings.young_age_s,
    }
    for side in SIDES:
        evicted_age_s = eviction.evicted_age_s.get(side)
        found["streamer_ids_limit", side] = limits[side]
        found["streamer_evicted_age_seconds", side] = evicted_age_s
        for reason in WHY_EVICTED:
            count = eviction.evicted[side, reason]
            found["streamer_evicted_total", side, reason] = count
    return found


def memory_figures(learner: OnlineLearner) -> Values:
    """The bytes that each part of the state takes."""
    sizes = Counter(dict.fromkeys(MEMORY, 0))
    for kind, parts in learner.state.memory().items():
        part = "categories" if "ids" in parts else "other"
        if kind in SIDES:
            part = kind
        elif kind == "pairs":
            part = "items"
        sizes[part] += sum(parts.values())
    return {("streamer_memory_bytes", part): size for part, size in sizes.items()}


def draw_figures(status: Status) -> Values:
    """What the draws of the latest step looked like; the line has waited for the
    device already, for the loss.
    """
    found: Values = {}
    for name in PARTS:
        part = status.draws.get(name)
        if part is not None:
            distinct = float(_array(part.distinct))
            effective = float(_array(part.effective))
            own_share = float(_array(part.own_share))
            found["streamer_loss_part", name] = float(_array(part.loss))
            found["streamer_sampler_effective_size", name] = effective
            found["streamer_sampler_distinct_negatives", name] = distinct
            found["streamer_sampler_own_share", name] = own_share
    return found


def _array(tensor: Tensor) -> Any:
    """What a tensor holds. On the host without a call that lets other threads run
    first: they may take their time.
    """
    return tensor.numpy() if tensor.device.type == "cpu" else tensor.cpu().numpy()


def ranking_figures(prequential: Prequential, status: Status) -> Values:
    """How well events were ranked before they were trained, and by what evidence."""
    k = str(prequential.k)
    found: Values = {
        "streamer_recommended_cold_share": prequential.watch.cold_share,
        "streamer_prequential_events_total": prequential.model.events,
    }
    for name in prequential.names:
        hit_rate = prequential.figure(name).recent
        found["streamer_prequential_hit_rate", name, k] = hit_rate
    if (best := prequential.best_baseline()) is not None:
        name = "streamer_prequential_best_baseline_hit_rate"
        found[name, best.name, k] = best.hit_rate
    for history, shares in status.influence.items():
        for evidence, share in shares.items():
            found["streamer_ranker_influence_share", history, evidence] = share
    return found
