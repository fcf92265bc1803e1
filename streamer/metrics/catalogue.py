"""Every metric that Streamer exposes: its name, kind, labels with all their values, and
what it means.

Instruments are made from this list alone, and `docs/metrics.md` is compared with it.
Names follow Prometheus: base units, `_total` for counters. Counters start at zero with
the process, also where a model goes on from a checkpoint: a counter that began in the
past would look like a burst of events. What a model has seen in its whole life is a
gauge.

A label has a closed set of values, or says what bounds it. Ids of users and items are
never labels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from streamer.dead_letters.base import Reason

PHASES = ("poll", "decode", "rank", "step", "store", "publish", "checkpoint")
BANDS = ("head", "torso", "tail")
PARTS = ("batch", "cache")
BASELINES = ("most-popular", "last-items", "counting")
RECOMMENDERS = ("model", "model-without-towers", *BASELINES)
HISTORIES = ("0", "1", "2-3", "4-7", "8-15", "16+")
EVIDENCE = ("co-occurrence", "popularity", "own history", "towers")
SIDES = ("users", "items")
WHY_EVICTED = ("limit", "ttl", "deleted", "shared")
MEMORY = ("users", "items", "categories", "other")
STORE_ERRORS = (
    "unreachable",
    "slow",
    "full",
    "read-only",
    "loading",
    "broken",
    "refused",
    "other",
)

QUICK_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
WAITS_S = (
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
    3600.0,
    86_400.0,
)
FRESH_S = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
SIZES = (1.0, 8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)


@dataclass(frozen=True, slots=True)
class Label:
    """What distinguishes series of a metric: all values that it may have, or else why
    there are few, in a few words.
    """

    name: str
    values: tuple[str, ...] = ()
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        name: as Prometheus sees it.
        kind: of metric.
        help: what it means.
        labels: what distinguishes its series.
        path: which number of `Status` it is, such as `store.live`; empty for none.
        buckets: the upper bounds of a histogram.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[Label, ...] = ()
    path: str = ""
    buckets: tuple[float, ...] = ()


_ONE_VALUE = "one value a process"
_LABELS = {
    "letter_reason": Label("reason", tuple(str(reason) for reason in Reason)),
    "store_reason": Label("reason", STORE_ERRORS),
    "topic": Label("topic", bound="topics of our partitions"),
    "partition": Label("partition", bound="our partitions; gone with them"),
    "band": Label("band", BANDS),
    "side": Label("side", SIDES),
    "evicted_reason": Label("reason", WHY_EVICTED),
    "memory_part": Label("part", MEMORY),
    "trainer": Label("trainer", bound="ranks of the group"),
    "part": Label("part", PARTS),
    "phase": Label("phase", PHASES),
    "recommender": Label("recommender", RECOMMENDERS),
    "baseline": Label("baseline", BASELINES),
    "history": Label("history", HISTORIES),
    "evidence": Label("evidence", EVIDENCE),
    "result": Label("result", ("saved", "failed")),
    "seen_as": Label("seen_as", ("recent_items", "new_item", "vectors")),
    "since": Label("since", ("event", "record")),
    "path": Label("path", bound="paths of the server, ids left out"),
    "status": Label("status", bound="statuses of HTTP"),
    **{
        name: Label(name, bound=_ONE_VALUE)
        for name in ("k", "version", "python", "torch", "method", "device")
    },
}
_BUCKETS = {
    "streamer_event_to_trained_seconds": WAITS_S,
    "streamer_batch_events": SIZES,
    "streamer_batch_age_seconds": QUICK_S,
    "streamer_phase_seconds": QUICK_S,
    "streamer_server_request_seconds": QUICK_S,
    "streamer_freshness_seconds": FRESH_S,
}
"""Of every histogram. Of the other metrics, those that end in `_total` are counters and
the rest are gauges.
"""

_METRICS = """
## Stream
streamer_events_consumed_total = this_run.consumed: Events consumed, whatever became of them.
streamer_events_trained_total = this_run.trained: Events that were trained.
streamer_events_filtered_total = this_run.filtered: Events that the filters left out; those that were not admitted and
    those of the catalogue too.
streamer_catalogue_events_total = this_run.catalogue: Events that created, described or deleted an item.
streamer_events_not_admitted_total = this_run.not_admitted: Events of users or items that had not come often enough to
    get a row.
streamer_dead_letters_total{letter_reason}: Events and records that could not be used, by reason.
streamer_source_live: 1 while the source responds; else 0.
streamer_lost_records_total = this_run.lost: Records that retention removed before they were read.
streamer_partitions: Partitions assigned to this trainer.
streamer_lag_records{topic, partition}: Records of a partition that are not trained yet.
streamer_queued_events = queued_events: Events that are decoded and wait to be trained.
streamer_event_delay_seconds: How long before it was trained the newest event of the latest batch happened, by the
    event's own time; negative if its clock is ahead.
streamer_event_to_trained_seconds: From an event's own time until it was trained; four events of each batch, evenly
    chosen.
streamer_batch_events: Events of a micro-batch.
streamer_batch_age_seconds: How long the oldest record of a micro-batch had waited when its training ended.
streamer_rebalances_total = rebalances: Times that partitions were assigned to us.

## Learning
streamer_steps_total = new_steps: Training steps.
streamer_not_finite_rows_total = not_finite_rows: Rows that a step did not update because their weights or gradients
    were not finite.
streamer_loss = loss: Loss, mean over the latest events: about 20 full batches.
streamer_loss_part{part}: Loss of the latest step over one set of candidates, unweighted.
streamer_prequential_hit_rate{recommender, k}: Share of the latest ranked events whose item was among the first k,
    ranked before it was trained; of the model, of the model whose ranker reads zero for the towers' inner product, and
    of trivial recommenders. Where the first is not above the second, the towers add nothing on this stream.
streamer_prequential_best_baseline_hit_rate{baseline, k}: Hit rate over the same events of the best trivial recommender;
    where the model's is lower, learning does not pay. Most of these recommenders learn from this process's events only.
streamer_ranker_influence_share{history, evidence}: What decides the ranking, by kind of evidence and by the number of
    the user's recent items: share in what tells the candidates of the latest ranked events apart.
streamer_recommended_cold_share: Share of items that nobody has had yet, and that the catalogue describes, among the
    first k of the latest ranked lists.
streamer_cold_items: Items that the catalogue describes and nobody has had yet.
streamer_prequential_events_total: Events that were ranked before they were trained.
streamer_users = users: Users that the model knows.
streamer_items = items: Items that the model knows.
streamer_new_users_total = new_users: Users seen for the first time.
streamer_new_items_total = new_items: Items seen for the first time.
streamer_model_events = accounting.consumed: Events that the model took in during its whole life, all restarts.

## Limits
streamer_ids_limit{side}: Users or items that are kept, at most.
streamer_evicted_total{side, evicted_reason}: Users or items that were forgotten: over the limit, not seen for longer
    than the TTL, deleted by an event, or retired by the only trainers that had counted them.
streamer_evicted_age_seconds{side}: How long ago, by event time, those were seen that a limit made go last.
streamer_young_age_seconds: Where that age is below this one (the setting young_age), the limit is too low.
streamer_memory_bytes{memory_part}: Memory of what is learned: of users, of items with their neighbours, of categories,
    and what does not grow.

## Sampler
streamer_sampler_effective_size{part}: Effective sample size of the resampling weights, mean over the queries of the
    latest step.
streamer_sampler_distinct_negatives{part}: Distinct negatives that a query drew, mean over the queries of the latest
    step.
streamer_sampler_own_share{part}: Accidental hits: weight of a query's own positive among its candidates, mean of the
    latest step.

## Cache
streamer_cache_slots = sampler.slots: Slots of the cache.
streamer_cache_distinct_items = sampler.distinct: Different items in the cache.
streamer_cache_entropy_nats = sampler.entropy: Entropy of the items in the cache; 0 if all slots hold one item.
streamer_cache_turnover_share = sampler.turnover: Share of the cache's slots that the latest refresh gave other items.
streamer_cache_entry_age_seconds = sampler.age_s: How long the items of the cache have been in it without a gap, mean
    over its slots; as of the looks at it, which are some time apart.
streamer_cache_batch_overlap_share = sampler.overlap: Share of the cache's slots whose item is in the latest batch.
streamer_cache_slot_share{band}: Share of the cache's slots by popularity band.
streamer_occurrence_share{band}: Share of everything ever resampled by popularity band.

## Popularity
streamer_popularity_items = sampler.items: Items that have been counted.

## Time
streamer_phase_seconds{phase}: Time of one run of a phase. Reading ahead: poll (with the wait for records), decode.
    Training: rank, step, store (take in what others added, hand over ours), publish (copy what changed for servers),
    checkpoint (what training waits for; writing goes on beside it).

## Store
streamer_store_live = store.live: 1 while the store responds, or nothing is shared; else 0.
streamer_store_round_trip_seconds = store.round_trip_s: Round trip of the latest exchange with the store.
streamer_store_staleness_seconds = store.staleness_s: Since when the trainer is not known to have all that is in the
    store.
streamer_store_backlog_events = store.backlog_events: Events that are counted here and not in the store yet.
streamer_store_exchanges_total = store.exchanges: Exchanges with the store.
streamer_store_exchange_cpu_seconds_total = store.exchange_cpu_s: Processor time of the exchanges.
streamer_store_sent_bytes_total = store.sent_bytes: Bytes sent to the store.
streamer_store_received_bytes_total = store.received_bytes: Bytes received from the store.
streamer_store_duplicate_events_total = store.duplicate_events: Events that were trained and not counted because the
    store had counted them before.
streamer_store_errors_total{store_reason}: Exchanges that failed, by reason.

## Group
streamer_group_trainers: Processes that train the model together; 0 if this one trains alone.
streamer_group_partitions{trainer}: Partitions that a trainer reads.
streamer_group_waiting_seconds_total{trainer}: Time that a trainer waited at the beginning of steps, until the slowest
    had come.
streamer_group_exchange_seconds_total{trainer}: Time that a trainer spent in exchanges inside of steps.
streamer_group_sent_bytes_total{trainer}: Bytes that a trainer sent to each of the others.
streamer_group_spread_users = spread_users: About how many users have events in several partitions; 0 if the topic is
    keyed by user.

## Checkpoints
streamer_checkpoint_age_seconds: Age of the state in the newest safe checkpoint; since the start of the process if there
    is none.
streamer_checkpoint_writable: 1 unless the latest checkpoint or the dead letters before it could not be written; else 0.
streamer_checkpoint_unsaved_events = saves.unsaved_events: Events that no safe checkpoint holds.
streamer_checkpoint_duration_seconds = saves.seconds: From the step of its state until the latest one was safe.
streamer_checkpoint_longest_pause_seconds = saves.longest_pause_s: The longest that a step had to wait for checkpoints;
    when partitions are handed over and at the end, everything is copied at once, which does not count.
streamer_checkpoint_size_bytes = saves.size_bytes: Size of the latest checkpoint: a base, which holds everything, or a
    delta.
streamer_checkpoint_base_bytes = saves.base_bytes: Size of the latest base.
streamer_checkpoint_deltas = saves.deltas: Deltas since the latest base: what a restart reads after it.
streamer_checkpoint_delta_bytes = saves.delta_bytes: Size of all of these deltas; when they outweigh the base, a new
    base is written.
streamer_checkpoints_total{result}: Checkpoints by what became of them.

## Publishing
streamer_publish_live: 1 while what is learned can be published, or nothing is to be; else 0.
streamer_published_points_total = publishing.snapshots: Deltas and bases that were written.
streamer_published_bytes_total = publishing.written_bytes: Their bytes.
streamer_published_age_seconds: Since the state that was published last was copied; not a number if nothing is.

## Process
streamer_alive: 1 while the pipeline steps or waits, as /healthz reports.
streamer_ready: 1 while source, store and checkpoint directory respond and there are partitions and recent steps, as
    /readyz reports.
streamer_build_info{version, python, torch, method, device}: Always 1; says what runs.

## Server
streamer_server_ready: 1 while everything that is published is served, as /readyz reports.
streamer_server_generation: Generation of the trainer that is served: it counts the starts of trainers.
streamer_server_step: Training step that is served.
streamer_server_age_seconds: Age of the state that is served; grows while the trainer or what it publishes to is away.
streamer_server_users: Users that are served.
streamer_server_items: Items that are served.
streamer_server_indexed_items: Items that an index finds; 0 while all are scored at every request.
streamer_server_hidden_items: Items that are never recommended.
streamer_server_events_not_learned: Events that the server has read and the trainer has not published yet.
streamer_server_events_of_others: Events of partitions that the served trainer does not read; the last 50 of a user are
    kept, and 100,000 in all.
streamer_server_deltas_total: Deltas that were applied.
streamer_server_bases_total: Bases that were loaded, the first included.
streamer_server_refused_points_total: Deltas and bases that were damaged, lost or out of order; a base follows.
streamer_server_following: 1 while what is published can be read; else 0.
streamer_server_tailing: 1 while the events themselves can be read; else 0.
streamer_server_requests_total{path, status}: Requests by path and status.
streamer_server_request_seconds: From a request to the end of its answer.
streamer_freshness_seconds{seen_as, since}: From an event until a request sees it: among its user's recent items, as a
    new item that can be recommended, in updated vectors; since the event's own time, or since its record was written.
"""
"""All metrics in the order of the documentation: name, its labels by their names above
or the number of `Status` that it is, and what it means.
"""


def _metric(name: str, labels: str, path: str, about: str) -> Metric:
    kind: Literal["counter", "gauge", "histogram"] = "gauge"
    if name in _BUCKETS:
        kind = "histogram"
    elif name.endswith("_total"):
        kind = "counter"
    found = tuple(_LABELS[label] for label in labels.split(", ") if label)
    text = " ".join(about.split())
    return Metric(name, kind, text, found, path, _BUCKETS.get(name, ()))


GROUPS: dict[str, list[Metric]] = {}
"""All metrics, by the titles of the documentation."""
for _title, _lines in re.findall(r"^## (.*)\n((?:.+\n)*)", _METRICS, re.MULTILINE):
    _line = r"^(\w+)(?:{(.*)})?(?: = (\S+))?: (.*(?:\n    .*)*)"
    _found = re.findall(_line, _lines, re.MULTILINE)
    GROUPS[_title] = [_metric(*_one) for _one in _found]

SERVER = {metric.name: metric for metric in GROUPS["Server"]}
"""The metrics of `streamer serve` by name."""

CATALOGUE = {
    m.name: m for title, metrics in GROUPS.items() if title != "Server" for m in metrics
}
"""Those of a trainer."""
