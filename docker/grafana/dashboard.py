"""Writes the dashboard: what is on it stands here, and `dashboards/streamer.json` is what Grafana reads.

    python docker/grafana/dashboard.py

A panel is a line or two below; where it stands, its number and everything that all panels have in common are added.
`$trainer` is what is chosen at the top of the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "dashboards" / "streamer.json"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS = 24
OURS = '{instance=~"$trainer"}'
REQUESTS = "rate(streamer_server_requests_total[$__rate_interval])"
IS_SET = " > -Inf"
"""Leaves out what is not a number, which a gauge is until something sets it: one of those would spoil every mean."""

HEAD, TORSO, TAIL = "#1f60c4", "#73bf69", "#ff9830"
BANDS = {"head": HEAD, "torso": TORSO, "tail": TAIL}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart or number.

    Args:
        title: what it shows.
        queries: PromQL by legend.
        about: what to make of it, for the little (i).
        unit: as Grafana calls it; shares are `percentunit`.
        kind: `timeseries`, `stat`, `bargauge` or `table`.
        width: of the page's 24 columns.
        height: in Grafana's rows.
        stacked: whether series are drawn on top of each other.
        top: where the axis ends, if that is known.
        bottom: where it begins, if that is known.
        colors: of series, by name.
        limits: values from which a number turns orange, and red.
    """

    title: str
    queries: dict[str, str]
    about: str = ""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    top: float | None = None
    bottom: float | None = 0
    colors: dict[str, str] = field(default_factory=dict)
    limits: tuple[float, float] | None = None


def number(
    title: str,
    query: str,
    about: str = "",
    unit: str = "short",
    limits: tuple[float, float] | None = None,
) -> Panel:
    """What there is now, in large letters."""
    return Panel(
        title, {"": query}, about, unit, kind="stat", width=3, height=4, limits=limits
    )


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


def total(metric: str, by: str = "") -> str:
    """A gauge, added up over trainers."""
    return f"sum{_by(by)}({metric}{OURS})"


def mean(metric: str, by: str = "") -> str:
    """A gauge, averaged over the trainers that have set it."""
    return f"avg{_by(by)}({metric}{OURS}{IS_SET})"


def each(metric: str) -> str:
    """A gauge of every trainer."""
    return f"{metric}{OURS}"


def rate(counter: str, by: str = "") -> str:
    """A counter's increase a second, added up over trainers."""
    return f"sum{_by(by)}(rate({counter}{OURS}[$__rate_interval]))"


def quantile(q: float, histogram: str, by: str = "") -> str:
    """A quantile of a histogram over all trainers."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({histogram}_bucket{OURS}[$__rate_interval])))"


def fresh(q: float) -> str:
    """A quantile of the time until a request sees an event, over all servers."""
    rates = 'rate(streamer_freshness_seconds_bucket{since="record"}[$__rate_interval])'
    return f"histogram_quantile({q}, sum by (le, seen_as) ({rates}))"


def by_band(metric: str) -> dict[str, str]:
    """A query for each popularity band, the head first; they are stacked in this order."""
    return {band: mean_of(metric, "band", band) for band in BANDS}


def by_decile(metric: str) -> dict[str, str]:
    """A query for each popularity decile, the most popular first."""
    return {str(k): mean_of(metric, "decile", str(k)) for k in range(1, 11)}


def mean_of(metric: str, label: str, value: str) -> str:
    """One series of a gauge, averaged over the trainers that have set it."""
    return f'avg({metric}{{instance=~"$trainer", {label}="{value}"}}{IS_SET})'


def share_of_limit(side: str) -> str:
    """Users or items of every trainer over its limit."""
    return f'streamer_{side}{OURS} / on (instance) streamer_ids_limit{{instance=~"$trainer", side="{side}"}}'


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else " "


ROWS = (
    Row(
        "At a glance",
        (
            number("Trainers that answer", 'sum(up{job="streamer"})'),
            number(
                "Trained", rate("streamer_events_trained_total"), "Events a second."
            ),
            number("Lag", total("streamer_lag_records"), "Records that wait."),
            number(
                "Hit rate",
                mean_of("streamer_prequential_hit_rate", "recommender", "model"),
                "Of the model, over the latest ranked events.",
                "percentunit",
            ),
            number(
                "... of the best baseline",
                mean("streamer_prequential_best_baseline_hit_rate"),
                "What counting, popularity or the user's last items would do, whichever does best.",
                "percentunit",
            ),
            number(
                "Dead letters",
                f"{rate('streamer_dead_letters_total')} / {rate('streamer_events_consumed_total')}",
                "Share of the events that cannot be used.",
                "percentunit",
                limits=(0.001, 0.01),
            ),
            number(
                "Oldest checkpoint",
                f"max({each('streamer_checkpoint_age_seconds')})",
                "Age of the newest safe state, of the trainer whose is the oldest.",
                "s",
                limits=(300, 900),
            ),
            number(
                "Alerts",
                'count(ALERTS{alertstate="firing", alertname=~"Streamer.*"}) or vector(0)',
                "That fire now; see the table below, or Prometheus.",
                limits=(1, 2),
            ),
        ),
    ),
    Row(
        "What the cache is made of",
        (
            Panel(
                "Slots of the cache by popularity band",
                by_band("streamer_cache_slot_share"),
                "Items by how often they were seen: the head makes up the first half of all events, the torso the next "
                "30%, the tail the rest.",
                unit="percentunit",
                width=12,
                height=10,
                stacked=True,
                top=1,
                colors=BANDS,
            ),
            Panel(
                "Everything ever resampled, by popularity band",
                by_band("streamer_occurrence_share"),
                "The weights that the cache is drawn with.",
                unit="percentunit",
                width=12,
                height=10,
                stacked=True,
                top=1,
                colors=BANDS,
            ),
            Panel(
                "Cache by popularity decile",
                by_decile("streamer_cache_slot_share_decile"),
                "1 holds the most popular items. Each decile is a tenth of all events: a cache with 10% of each is "
                "like the stream.",
                unit="percentunit",
                kind="bargauge",
                width=6,
                height=9,
            ),
            Panel(
                "Resampled by popularity decile",
                by_decile("streamer_occurrence_share_decile"),
                "The same of everything ever resampled.",
                unit="percentunit",
                kind="bargauge",
                width=6,
                height=9,
            ),
            Panel(
                "Largest shares of single items",
                {
                    "{{rank}}": f"sort_desc({mean('streamer_cache_top_slot_share', 'rank')})"
                },
                "Of the item that holds the most slots, the second most, and so on; a trainer's live page names them.",
                unit="percentunit",
                kind="bargauge",
                width=6,
                height=9,
            ),
            Panel(
                "Different items",
                {
                    "slots": mean("streamer_cache_slots"),
                    "different items": mean("streamer_cache_distinct_items"),
                    "as if equally frequent": f"avg(exp({each('streamer_cache_entropy_nats')}{IS_SET}))",
                },
                "The last one is the entropy as a number of items; far below the slots, a few items fill the cache.",
                width=6,
                height=9,
            ),
            Panel(
                "Change",
                {
                    "turnover of a refresh": mean("streamer_cache_turnover_share"),
                    "overlap with the batch": mean(
                        "streamer_cache_batch_overlap_share"
                    ),
                },
                "Share of the slots that the latest refresh gave other items, and whose item is in the latest batch.",
                unit="percentunit",
                width=12,
                top=1,
            ),
            Panel(
                "Age of entries",
                {"{{instance}}": each("streamer_cache_entry_age_seconds")},
                "How long items have been in the cache without a gap, mean over its slots.",
                unit="s",
                width=12,
            ),
        ),
    ),
    Row(
        "Stream",
        (
            Panel(
                "Events",
                {
                    "trained": rate("streamer_events_trained_total"),
                    "filtered": rate("streamer_events_filtered_total"),
                    "dead letters": rate("streamer_dead_letters_total"),
                    "lost to retention": rate("streamer_lost_records_total"),
                },
                "A second; the first three are all that were taken in.",
                stacked=True,
            ),
            Panel(
                "Trained by",
                {"{{instance}}": rate("streamer_events_trained_total", "instance")},
                stacked=True,
            ),
            Panel(
                "Lag by partition",
                {
                    "{{topic}} {{partition}}": total(
                        "streamer_lag_records", "topic, partition"
                    )
                },
                "Records that are not trained yet.",
                stacked=True,
            ),
            Panel(
                "Dead letters by reason",
                {"{{reason}}": f"{rate('streamer_dead_letters_total', 'reason')} > 0"},
                "A second. Empty is good.",
                stacked=True,
            ),
            Panel(
                "From arrival to trained",
                {
                    "half of the batches": quantile(0.5, "streamer_batch_age_seconds"),
                    "95%": quantile(0.95, "streamer_batch_age_seconds"),
                },
                "How long the oldest record of a micro-batch had waited when its training ended.",
                "s",
            ),
            Panel(
                "From the event to trained",
                {
                    "half of the events": quantile(
                        0.5, "streamer_event_to_trained_seconds"
                    ),
                    "95%": quantile(0.95, "streamer_event_to_trained_seconds"),
                    "newest, {{instance}}": each("streamer_event_delay_seconds"),
                },
                "By the event's own time. A replayed stream has old events, and is shown as old.",
                "s",
                bottom=None,
            ),
            Panel(
                "Batch size and queue",
                {
                    "events of a batch": f"{rate('streamer_batch_events_sum')} / {rate('streamer_batch_events_count')}",
                    "queued, {{instance}}": each("streamer_queued_events"),
                },
                "Small batches: the stream is slow. A full queue: training is.",
            ),
            Panel(
                "Partitions",
                {"{{instance}}": each("streamer_partitions")},
                stacked=True,
                width=6,
            ),
            Panel(
                "Rebalances",
                {
                    "{{instance}}": f"increase(streamer_rebalances_total{OURS}[$__rate_interval])"
                },
                "Times that partitions were assigned. Many of them: trainers come and go.",
                width=6,
            ),
            Panel(
                "Alive and ready",
                {
                    "alive, {{instance}}": each("streamer_alive"),
                    "ready, {{instance}}": each("streamer_ready"),
                    "source responds, {{instance}}": each("streamer_source_live"),
                    "checkpoints are written, {{instance}}": each(
                        "streamer_checkpoint_writable"
                    ),
                },
                "What /healthz and /readyz answer. Ready: source, store and checkpoints work, with partitions, and "
                "recent steps or nothing to do.",
                width=6,
                top=1,
            ),
            Panel(
                "Since the latest step",
                {
                    "{{instance}}": f"time() - {each('streamer_last_step_timestamp_seconds')}"
                },
                "Long is fine while nothing waits.",
                unit="s",
                width=6,
            ),
        ),
    ),
    Row(
        "Learning",
        (
            Panel(
                "Hit rate, ranked before trained",
                {
                    "{{recommender}}": mean(
                        "streamer_prequential_hit_rate", "recommender"
                    )
                },
                "Share of the latest ranked events whose item was among the first k; of the model, of the model whose "
                "ranker reads zero for the towers' inner product, and of trivial recommenders.",
                unit="percentunit",
                width=12,
                height=9,
            ),
            Panel(
                "NDCG",
                {"{{recommender}}": mean("streamer_prequential_ndcg", "recommender")},
                "Over the same events.",
                unit="percentunit",
                width=12,
                height=9,
            ),
            Panel(
                "What decides the ranking",
                {
                    "{{evidence}}, {{history}}": mean(
                        "streamer_ranker_influence_share", "history, evidence"
                    )
                },
                "Share of each kind of evidence in what tells a user's candidates apart, by the number of the user's "
                "recent items. Whether the towers help is seen above: the hit rate of the model beside that of the "
                "model without towers.",
                unit="percentunit",
                kind="bargauge",
                width=24,
                height=9,
            ),
            Panel(
                "Loss",
                {"{{instance}}": each("streamer_loss")},
                "Mean over the latest events.",
                bottom=None,
            ),
            Panel(
                "Rows that were not finite",
                {
                    "{{instance}}": f"increase(streamer_not_finite_rows_total{OURS}[$__rate_interval])"
                },
                "Weights or gradients; such rows are not updated.",
            ),
            Panel(
                "Loss by part",
                {"{{part}}": mean("streamer_loss_part", "part")},
                "Over the candidates of the batch, and over those of the cache; unweighted.",
                bottom=None,
            ),
            Panel(
                "Steps and ranked events",
                {
                    "steps": rate("streamer_steps_total"),
                    "ranked events": rate("streamer_prequential_events_total"),
                },
                "A second.",
            ),
            Panel(
                "Users and items",
                {
                    "users of {{instance}}": each("streamer_users"),
                    "items of {{instance}}": each("streamer_items"),
                    "items that {{instance}} has counted": each(
                        "streamer_popularity_items"
                    ),
                    "items of {{instance}} that nobody has had yet": each(
                        "streamer_cold_items"
                    ),
                },
                "That the models know. What other trainers have seen is counted too.",
            ),
            Panel(
                "Share of the limits",
                {
                    "users of {{instance}}": share_of_limit("users"),
                    "items of {{instance}}": share_of_limit("items"),
                },
                "At 1, those that were not seen for longest go when others come.",
            ),
            Panel(
                "Forgotten",
                {
                    "{{side}}: {{reason}}": rate(
                        "streamer_evicted_total", "side, reason"
                    )
                },
                "Users and items a second: over the limit, not seen for longer than the TTL, or deleted.",
            ),
            Panel(
                "Age of the oldest",
                {
                    "kept {{side}} of {{instance}}": each(
                        "streamer_oldest_age_seconds"
                    ),
                    "{{side}} of {{instance}} that a limit made go": each(
                        "streamer_evicted_age_seconds"
                    ),
                    "too young": each("streamer_young_age_seconds"),
                },
                "Since they were last seen, by event time.",
                unit="s",
            ),
            Panel(
                "Memory by part",
                {"{{part}} of {{instance}}": each("streamer_memory_bytes")},
                "Of what is learned.",
                unit="bytes",
            ),
            Panel(
                "Events that were not admitted",
                {
                    "{{instance}}": rate(
                        "streamer_events_not_admitted_total", "instance"
                    )
                },
                "A second; of users or items that have not come often enough.",
            ),
            Panel(
                "New users and items",
                {
                    "users": rate("streamer_new_users_total"),
                    "items": rate("streamer_new_items_total"),
                    "catalogue events": rate("streamer_catalogue_events_total"),
                },
                "A second.",
            ),
            Panel(
                "Untouched items that are recommended",
                {"{{instance}}": each("streamer_recommended_untouched_share")},
                "Share of items that nobody has had yet, and that the catalogue describes, in the first ten.",
                unit="percentunit",
            ),
            Panel(
                "Events of a model's life",
                {"{{instance}}": each("streamer_model_events")},
                "Through all restarts.",
            ),
        ),
    ),
    Row(
        "Sampler",
        (
            Panel(
                "Effective sample size",
                {"{{part}}": mean("streamer_sampler_effective_size", "part")},
                "Of the resampling weights, mean over the queries of a step. Near 1, one candidate takes all draws.",
            ),
            Panel(
                "Different negatives of a query",
                {"{{part}}": mean("streamer_sampler_distinct_negatives", "part")},
            ),
            Panel(
                "... as a share of its draws",
                {"{{part}}": mean("streamer_sampler_distinct_share", "part")},
                unit="percentunit",
            ),
            Panel(
                "Accidental hits",
                {"{{part}}": mean("streamer_sampler_own_share", "part")},
                "Weight of a query's own positive among its candidates.",
                "percentunit",
            ),
            Panel(
                "Divergence from popularity",
                {"{{part}}": mean("streamer_popularity_divergence_nats", "part")},
                "In nats, over popularity deciles; 0: items are held as often as they are popular.",
            ),
            Panel(
                "Popularity estimate",
                {
                    "error of the hashed logarithm": mean(
                        "streamer_popularity_hash_log_error"
                    ),
                    "collisions": mean("streamer_popularity_hash_collision_share"),
                },
                "Against exact counts; 0.7 is a factor of two. Collisions: how likely a new item meets a used slot in "
                "all of its hashes.",
            ),
        ),
    ),
    Row(
        "Time",
        (
            Panel(
                "Where the time goes",
                {
                    "{{phase}}": f"avg by (phase) (rate(streamer_phase_seconds_sum{OURS}[$__rate_interval]))"
                },
                "Share of a trainer's time. Poll (with the wait for records) and decode run beside the others.",
                unit="percentunit",
                width=12,
                stacked=True,
            ),
            Panel(
                "95% of the runs of a phase are quicker than",
                {"{{phase}}": quantile(0.95, "streamer_phase_seconds", "phase")},
                unit="s",
                width=12,
            ),
            Panel(
                "Processor",
                {"{{instance}}": rate("process_cpu_seconds_total", "instance")},
                "Cores that are busy.",
            ),
            Panel(
                "Memory",
                {"{{instance}}": each("process_resident_memory_bytes")},
                unit="bytes",
            ),
            Panel(
                "Price of the metrics",
                {"{{instance}}": rate("streamer_metrics_seconds_total", "instance")},
                "Share of the training thread's time that refreshing them takes.",
                "percentunit",
            ),
        ),
    ),
    Row(
        "Store",
        (
            Panel(
                "Live",
                {"{{instance}}": each("streamer_store_live")},
                "1 while the store responds.",
                width=6,
                top=1,
            ),
            Panel(
                "Round trip",
                {"{{instance}}": each("streamer_store_round_trip_seconds")},
                unit="s",
                width=6,
            ),
            Panel(
                "Staleness",
                {"{{instance}}": each("streamer_store_staleness_seconds")},
                "Since when a trainer is not known to have all that is in the store.",
                unit="s",
                width=6,
            ),
            Panel(
                "Errors by reason",
                {"{{reason}}": f"{rate('streamer_store_errors_total', 'reason')} > 0"},
                "A second. Empty is good.",
                width=6,
            ),
            Panel(
                "Processor time of exchanges",
                {
                    "{{instance}}": rate(
                        "streamer_store_exchange_cpu_seconds_total", "instance"
                    )
                },
                "Share of one core.",
                unit="percentunit",
                width=6,
            ),
            Panel(
                "Backlog",
                {
                    "contributions of {{instance}}": each(
                        "streamer_store_backlog_contributions"
                    ),
                    "events of {{instance}}": each("streamer_store_backlog_events"),
                },
                "What is not in the store yet.",
                width=6,
            ),
            Panel(
                "Traffic",
                {
                    "sent": rate("streamer_store_sent_bytes_total"),
                    "received": rate("streamer_store_received_bytes_total"),
                },
                unit="Bps",
                width=6,
            ),
            Panel(
                "Exchanges and log",
                {
                    "exchanges a second": rate("streamer_store_exchanges_total"),
                    "entries of the log": f"max({each('streamer_store_log_entries')})",
                    "refused events a second": rate(
                        "streamer_store_refused_events_total"
                    ),
                    "duplicate events a second": rate(
                        "streamer_store_duplicate_events_total"
                    ),
                },
                width=6,
            ),
            Panel(
                "Joins, seeds and snapshots",
                {
                    "events of retired items": total(
                        "streamer_store_retired_events_total"
                    ),
                    "joins": total("streamer_store_joins_total"),
                    "seeds": total("streamer_store_seeds_total"),
                    "snapshots": total("streamer_store_snapshots_total"),
                },
                "Joins rise when the store has trimmed what a trainer had not read, seeds when it has lost something.",
            ),
        ),
    ),
    Row(
        "Checkpoints",
        (
            Panel(
                "Age",
                {"{{instance}}": each("streamer_checkpoint_age_seconds")},
                unit="s",
                width=6,
            ),
            Panel(
                "Unsaved events",
                {"{{instance}}": each("streamer_checkpoint_unsaved_events")},
                "What would be trained again after a crash.",
                width=6,
            ),
            Panel(
                "Time to write one",
                {"{{instance}}": each("streamer_checkpoint_duration_seconds")},
                "From the step of its state until it was safe; training goes on meanwhile.",
                unit="s",
                width=6,
            ),
            Panel(
                "Longest pause",
                {"{{instance}}": each("streamer_checkpoint_longest_pause_seconds")},
                "The longest that a step had to wait for checkpoints.",
                unit="s",
                width=6,
            ),
            Panel(
                "Size",
                {
                    "latest, {{instance}}": each("streamer_checkpoint_size_bytes"),
                    "base, {{instance}}": each("streamer_checkpoint_base_bytes"),
                    "deltas, {{instance}}": each("streamer_checkpoint_delta_bytes"),
                },
                "A checkpoint holds what changed; when the deltas outweigh the base, a new base is written.",
                unit="bytes",
            ),
            Panel(
                "Deltas since the base",
                {"{{instance}}": each("streamer_checkpoint_deltas")},
                width=6,
            ),
            Panel(
                "Written",
                {
                    "{{instance}} {{result}}": f"increase(streamer_checkpoints_total{OURS}[$__rate_interval])"
                },
                width=6,
            ),
            Panel(
                "Alerts that fire or are about to",
                {"": 'ALERTS{alertname=~"Streamer.*"}'},
                kind="table",
                width=24,
                height=6,
            ),
        ),
    ),
    Row(
        "Publishing",
        (
            Panel(
                "Age of what is published",
                {
                    "{{instance}}": each("streamer_published_age_seconds"),
                    "live": each("streamer_publish_live"),
                },
                "Grows while the directory or the topic is away; what changes meanwhile waits as rows.",
                unit="s",
            ),
            Panel(
                "Points a second", {"points": rate("streamer_published_points_total")}
            ),
            Panel(
                "Bytes a second",
                {"bytes": rate("streamer_published_bytes_total")},
                unit="Bps",
            ),
        ),
    ),
    Row(
        "Trainers of a group",
        (
            Panel(
                "Trainers in lockstep",
                {
                    "trainers": each("streamer_group_trainers"),
                    "users in several partitions": each("streamer_group_spread_users"),
                },
                "0 if this one trains alone. A topic must be keyed by user, or users have a history in each partition.",
            ),
            Panel(
                "Partitions of each", {"{{trainer}}": each("streamer_group_partitions")}
            ),
            Panel(
                "Waiting for others",
                {
                    "{{trainer}}": rate(
                        "streamer_group_waiting_seconds_total", "trainer"
                    )
                },
                "Seconds a second, at the beginning of steps.",
            ),
            Panel(
                "Time in exchanges",
                {
                    "{{trainer}}": rate(
                        "streamer_group_exchange_seconds_total", "trainer"
                    )
                },
                "Seconds a second.",
            ),
            Panel(
                "Bytes sent",
                {"{{trainer}}": rate("streamer_group_sent_bytes_total", "trainer")},
                unit="Bps",
            ),
        ),
    ),
    Row(
        "Servers",
        (
            Panel(
                "From an event to a request that sees it, median",
                {"{{seen_as}}": fresh(0.5)},
                "Since its record was written: among its user's recent items, as a new item, in updated vectors.",
                unit="s",
            ),
            Panel("The same, 99%", {"{{seen_as}}": fresh(0.99)}, unit="s"),
            Panel(
                "Age of the model that is served",
                {"{{instance}}": "streamer_server_age_seconds"},
                "Grows while the trainer, or what it publishes to, is away.",
                unit="s",
            ),
            Panel(
                "Requests a second",
                {"{{path}} {{status}}": f"sum by (path, status) ({REQUESTS})"},
            ),
            Panel(
                "Time of a request",
                {
                    f"{q:.0%}": f"histogram_quantile({q}, sum by (le) "
                    "(rate(streamer_server_request_seconds_bucket[$__rate_interval])))"
                    for q in (0.5, 0.99)
                },
                unit="s",
            ),
            Panel(
                "State",
                {
                    "ready": "streamer_server_ready",
                    "following": "streamer_server_following",
                    "tailing": "streamer_server_tailing",
                },
                "Whether everything that is published is served, and whether points and events can be read.",
            ),
            Panel(
                "Points",
                {
                    "deltas": "sum(rate(streamer_server_deltas_total[$__rate_interval]))",
                    "bases": "sum(rate(streamer_server_bases_total[$__rate_interval]))",
                    "refused": "sum(rate(streamer_server_refused_points_total[$__rate_interval]))",
                },
                "Refused: damaged, lost or out of order; a base follows.",
            ),
            Panel(
                "Served",
                {
                    "users": "streamer_server_users",
                    "items": "streamer_server_items",
                    "found by an index": "streamer_server_indexed_items",
                    "hidden": "streamer_server_hidden_items",
                    "events not learned yet": "streamer_server_events_not_learned",
                },
            ),
            Panel(
                "Generation and step",
                {
                    "generation": "streamer_server_generation",
                    "step": "streamer_server_step",
                },
            ),
        ),
    ),
)


def dashboard() -> Json:
    """Everything, as Grafana reads it."""
    return {
        "uid": "streamer",
        "title": "Streamer",
        "description": "Is the stream healthy, does the model learn, and what is the cache made of?",
        "tags": ["streamer"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_trainers()]},
        "annotations": {"list": []},
        "panels": list(_placed()),
    }


def _trainers() -> Json:
    query = "label_values(streamer_build_info, instance)"
    return {
        "name": "trainer",
        "label": "Trainer",
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "trainers"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed() -> Iterator[Json]:
    """Rows and panels from the top to the bottom, each line of panels filled from the left."""
    number = y = 0
    for row in ROWS:
        number += 1
        yield _heading(row.title, number, y)
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            yield _panel(panel, number, x, y)
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def _heading(title: str, number: int, y: int) -> Json:
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": place,
        "panels": [],
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": [
            _target(panel, k, *query) for k, query in enumerate(panel.queries.items())
        ],
        "fieldConfig": {
            "defaults": _defaults(panel),
            "overrides": [_colored(*c) for c in panel.colors.items()],
        },
        "options": OPTIONS[panel.kind],
    }


def _target(panel: Panel, number: int, legend: str, expression: str) -> Json:
    now = panel.kind != "timeseries"
    return {
        "refId": chr(ord("A") + number),
        "datasource": SOURCE,
        "expr": expression,
        "legendFormat": legend or "__auto",
        "instant": now,
        "range": not now,
        "format": "table" if panel.kind == "table" else "time_series",
    }


def _defaults(panel: Panel) -> Json:
    bounds = {"min": panel.bottom, "max": panel.top}
    return {
        "unit": panel.unit,
        **{name: value for name, value in bounds.items() if value is not None},
        "color": {"mode": "thresholds" if panel.limits else "palette-classic"},
        "thresholds": _thresholds(panel.limits),
        "custom": _drawing(panel.stacked) if panel.kind == "timeseries" else {},
    }


def _thresholds(limits: tuple[float, float] | None) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    for color, value in zip(("orange", "red"), limits or (), strict=False):
        steps.append({"color": color, "value": value})
    return {"mode": "absolute", "steps": steps}


def _drawing(stacked: bool) -> Json:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 70 if stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }


def _colored(series: str, color: str) -> Json:
    return {
        "matcher": {"id": "byName", "options": series},
        "properties": [
            {"id": "color", "value": {"mode": "fixed", "fixedColor": color}}
        ],
    }


_NOW = {"calcs": ["lastNotNull"], "fields": "", "values": False}
OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {
            "displayMode": "list",
            "placement": "bottom",
            "showLegend": True,
            "calcs": [],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": _NOW,
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "value",
    },
    "bargauge": {
        "reduceOptions": _NOW,
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
    },
    "table": {"showHeader": True},
}


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
