"""Every metric that Streamer exposes: its name, kind, labels with all their values, and what it means.

Instruments are made from this list alone, and `docs/metrics.md` is compared with it. Names follow Prometheus: base
units, `_total` for counters. Counters start at zero with the process, also where a model goes on from a checkpoint: a
counter that began in the past would look like a burst of events. What a model has seen in its whole life is a gauge.

A label has a closed set of values, or says what bounds it. Ids of users and items are never labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamer.dead_letters.base import Reason

Kind = Literal["counter", "gauge", "histogram"]

PHASES = ("poll", "decode", "rank", "step", "store", "checkpoint")
BANDS = ("head", "torso", "tail")
DECILES = tuple(str(k) for k in range(1, 11))
PARTS = ("batch", "cache")
RECOMMENDERS = ("model", "most-popular", "recently-popular", "last-items", "co-visitation")
TOP_RANKS = tuple(str(k) for k in range(1, 11))
STORE_ERRORS = (*("unreachable", "slow", "full", "read-only", "loading", "broken", "refused", "fenced", "other"),)

QUICK_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
WAITS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 86_400.0)
SIZES = (1.0, 8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)


@dataclass(frozen=True, slots=True)
class Label:
    """A label and what bounds it.

    Args:
        name: of the label.
        values: all values that it may have; empty if `bound` says what they are.
        bound: why there are few of them, in a few words.
    """

    name: str
    values: tuple[str, ...] = ()
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        name: as Prometheus shows it; `_total` for counters.
        kind: what it is.
        help: what it means, in a sentence.
        labels: what distinguishes its series.
        buckets: upper bounds of a histogram.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Metrics that belong together."""

    title: str
    metrics: tuple[Metric, ...]


def _counter(name: str, help_: str, *labels: Label) -> Metric:
    return Metric(name, "counter", help_, labels)


def _gauge(name: str, help_: str, *labels: Label) -> Metric:
    return Metric(name, "gauge", help_, labels)


def _histogram(name: str, help_: str, buckets: tuple[float, ...], *labels: Label) -> Metric:
    return Metric(name, "histogram", help_, labels, buckets)


_OF_PARTITION = (
    Label("topic", bound="topics of our partitions"),
    Label("partition", bound="our partitions; gone with them"),
)
_BAND = Label("band", BANDS)
_DECILE = Label("decile", DECILES)
_PART = Label("part", PARTS)
_RECOMMENDER = Label("recommender", RECOMMENDERS)
_K = Label("k", bound="one value a process")

GROUPS = (
    Group(
        "Stream",
        (
            _counter("streamer_events_consumed_total", "Events consumed, whatever became of them."),
            _counter("streamer_events_trained_total", "Events that were trained."),
            _counter("streamer_events_filtered_total", "Events that the filters left out."),
            _counter(
                "streamer_dead_letters_total",
                "Events and records that could not be used, by reason.",
                Label("reason", tuple(str(reason) for reason in Reason)),
            ),
            _gauge("streamer_partitions", "Partitions assigned to this trainer."),
            _gauge("streamer_lag_records", "Records of a partition that are not trained yet.", *_OF_PARTITION),
            _gauge("streamer_queued_events", "Events that are decoded and wait to be trained."),
            _gauge(
                "streamer_event_delay_seconds",
                "How long before it was trained the newest event of the latest batch happened, by the event's own "
                "time; negative if its clock is ahead.",
            ),
            _histogram(
                "streamer_event_to_trained_seconds",
                "From an event's own time until it was trained; four events of each batch, evenly chosen.",
                WAITS_S,
            ),
            _histogram("streamer_batch_events", "Events of a micro-batch.", SIZES),
            _histogram(
                "streamer_batch_age_seconds",
                "How long the oldest record of a micro-batch had waited when its training ended.",
                QUICK_S,
            ),
            _counter("streamer_rebalances_total", "Times that partitions were assigned to us."),
        ),
    ),
    Group(
        "Learning",
        (
            _counter("streamer_steps_total", "Training steps."),
            _gauge("streamer_last_step_timestamp_seconds", "When the latest step ended, in seconds since the epoch."),
            _gauge("streamer_loss", "Loss of the latest step."),
            _gauge("streamer_loss_part", "Loss of the latest step over one set of candidates, unweighted.", _PART),
            _gauge(
                "streamer_prequential_hit_rate",
                "Share of the latest ranked events whose item was among the first k, ranked before it was trained; "
                "of the model and of trivial recommenders.",
                _RECOMMENDER,
                _K,
            ),
            _gauge("streamer_prequential_ndcg", "NDCG at k over the same events.", _RECOMMENDER, _K),
            _counter("streamer_prequential_events_total", "Events that were ranked before they were trained."),
            _gauge("streamer_users", "Users that the model knows."),
            _gauge("streamer_items", "Items that the model knows."),
            _counter("streamer_new_users_total", "Users seen for the first time."),
            _counter("streamer_new_items_total", "Items seen for the first time."),
            _gauge("streamer_model_events", "Events that the model took in during its whole life, all restarts."),
        ),
    ),
    Group(
        "Sampler",
        (
            _gauge(
                "streamer_sampler_effective_size",
                "Effective sample size of the resampling weights, mean over the queries of the latest step.",
                _PART,
            ),
            _gauge(
                "streamer_sampler_distinct_negatives",
                "Distinct negatives that a query drew, mean over the queries of the latest step.",
                _PART,
            ),
            _gauge(
                "streamer_sampler_distinct_share",
                "Distinct negatives of a query as a share of its draws; 0 where nothing is drawn.",
                _PART,
            ),
            _gauge(
                "streamer_sampler_own_share",
                "Accidental hits: weight of a query's own positive among its candidates, mean of the latest step.",
                _PART,
            ),
            _gauge(
                "streamer_popularity_divergence_nats",
                "Kullback-Leibler divergence from popularity of what the batch or the cache holds, over the ten "
                "popularity deciles; 0 if it holds items as often as they are popular.",
                _PART,
            ),
        ),
    ),
    Group(
        "Cache",
        (
            _gauge("streamer_cache_slots", "Slots of the cache."),
            _gauge("streamer_cache_distinct_items", "Different items in the cache."),
            _gauge("streamer_cache_entropy_nats", "Entropy of the items in the cache; 0 if all slots hold one item."),
            _gauge(
                "streamer_cache_turnover_share", "Share of the cache's slots that the latest refresh gave other items."
            ),
            _gauge(
                "streamer_cache_entry_age_seconds",
                "How long the items of the cache have been in it without a gap, mean over its slots; as of the looks "
                "at it, which are some time apart.",
            ),
            _gauge(
                "streamer_cache_batch_overlap_share", "Share of the cache's slots whose item is in the latest batch."
            ),
            _gauge("streamer_cache_slot_share", "Share of the cache's slots by popularity band.", _BAND),
            _gauge(
                "streamer_cache_slot_share_decile",
                "Share of the cache's slots by decile of popularity: 1 holds the most popular items, each decile a "
                "tenth of all events.",
                _DECILE,
            ),
            _gauge("streamer_occurrence_share", "Share of everything ever resampled by popularity band.", _BAND),
            _gauge(
                "streamer_occurrence_share_decile", "Share of everything ever resampled by popularity decile.", _DECILE
            ),
            _gauge(
                "streamer_cache_top_slot_share",
                "Share of the cache's slots of the item that holds the most, the second most, and so on.",
                Label("rank", TOP_RANKS),
            ),
        ),
    ),
    Group(
        "Popularity",
        (
            _gauge("streamer_popularity_items", "Items that have been counted."),
            _gauge(
                "streamer_popularity_hash_log_error",
                "Mean absolute error of the hashed estimate of log popularity against exact counts; 0.7 is a factor "
                "of two.",
            ),
            _gauge(
                "streamer_popularity_hash_collision_share",
                "How likely a new item meets a used slot in all of its hashes.",
            ),
        ),
    ),
    Group(
        "Time",
        (
            _histogram(
                "streamer_phase_seconds",
                "Time of one run of a phase. Reading ahead: poll (with the wait for records), decode. Training: rank, "
                "step, store (take in what others added, hand over ours), checkpoint (what training waits for; "
                "writing goes on beside it).",
                QUICK_S,
                Label("phase", PHASES),
            ),
            _counter("streamer_metrics_seconds_total", "Time that the training thread spent on refreshing metrics."),
        ),
    ),
    Group(
        "Store",
        (
            _gauge("streamer_store_live", "1 while the store responds, or nothing is shared; else 0."),
            _gauge("streamer_store_round_trip_seconds", "Round trip of the latest exchange with the store."),
            _gauge(
                "streamer_store_staleness_seconds",
                "Since when the trainer is not known to have all that is in the store.",
            ),
            _gauge("streamer_store_backlog_contributions", "Contributions that are not in the store yet."),
            _gauge("streamer_store_backlog_events", "Events of those contributions."),
            _gauge("streamer_store_log_entries", "Entries of the log that trainers share."),
            _counter("streamer_store_exchanges_total", "Exchanges with the store."),
            _counter("streamer_store_exchange_cpu_seconds_total", "Processor time of the exchanges."),
            _counter("streamer_store_sent_bytes_total", "Bytes sent to the store."),
            _counter("streamer_store_received_bytes_total", "Bytes received from the store."),
            _counter(
                "streamer_store_refused_events_total",
                "Events whose contribution was dropped because another trainer owned the partition by then.",
            ),
            _counter(
                "streamer_store_duplicate_events_total",
                "Events that were trained and not counted because the store had counted them before.",
            ),
            _counter("streamer_store_joins_total", "How often the trainer joined the store, the first time included."),
            _counter("streamer_store_seeds_total", "How often the trainer seeded a store that was empty or behind."),
            _counter(
                "streamer_store_snapshots_total", "Snapshots that the trainer wrote, after which the log is trimmed."
            ),
            _counter("streamer_store_errors_total", "Exchanges that failed, by reason.", Label("reason", STORE_ERRORS)),
        ),
    ),
    Group(
        "Checkpoints",
        (
            _gauge(
                "streamer_checkpoint_age_seconds",
                "Age of the state in the newest safe checkpoint; since the start of the process if there is none.",
            ),
            _gauge("streamer_checkpoint_unsaved_events", "Events that no safe checkpoint holds."),
            _gauge("streamer_checkpoint_duration_seconds", "From the copy of the state until the latest one was safe."),
            _gauge("streamer_checkpoint_size_bytes", "Size of the latest checkpoint."),
            _counter(
                "streamer_checkpoints_total",
                "Checkpoints by what became of them.",
                Label("result", ("saved", "failed")),
            ),
        ),
    ),
    Group(
        "Process",
        (
            _gauge("streamer_alive", "1 while the pipeline steps or waits, as /healthz reports."),
            _gauge("streamer_ready", "1 while there are partitions and recent steps, as /readyz reports."),
            _gauge(
                "streamer_build_info",
                "Always 1; says what runs.",
                *(Label(n, bound="one value a process") for n in ("version", "python", "torch", "method", "device")),
            ),
        ),
    ),
)
"""All metrics, in the order of the documentation."""

CATALOGUE = {metric.name: metric for group in GROUPS for metric in group.metrics}
"""All metrics by name."""
