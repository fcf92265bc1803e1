"""Metrics of what a line exchanges with others and saves: members of its group, the
store, checkpoints, and what is published.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from streamer.metrics.catalogue import STORE_ERRORS
from streamer.metrics.instruments import Instruments

if TYPE_CHECKING:
    from streamer.cache_store.state import StoreStatus
    from streamer.metrics.status import Status
    from streamer.snapshot.checkpointer import SaveStats
    from streamer.snapshot.publisher import PublishStatus


def set_members(i: Instruments, status: Status) -> None:
    """The processes that train together, and what they wait for."""
    i.set("streamer_group_trainers", len(status.members))
    i.set("streamer_group_spread_users", status.spread_users)
    for number, member in enumerate(status.members):
        name = str(number)
        waiting_s = member.waiting_ms / 1000
        exchange_s = member.exchange_ms / 1000
        i.set("streamer_group_partitions", len(member.partitions), name)
        i.rise("streamer_group_waiting_seconds_total", waiting_s, name)
        i.rise("streamer_group_exchange_seconds_total", exchange_s, name)
        i.rise("streamer_group_sent_bytes_total", member.sent_bytes, name)


def set_store(i: Instruments, store: StoreStatus) -> None:
    """What is exchanged with the store that trainers share."""
    i.set("streamer_store_live", float(store.live))
    i.set("streamer_store_round_trip_seconds", store.round_trip_s)
    i.set("streamer_store_staleness_seconds", store.staleness_s)
    i.set("streamer_store_backlog_contributions", store.backlog_contributions)
    i.set("streamer_store_backlog_events", store.backlog_events)
    i.set("streamer_store_log_entries", store.log_length)
    i.rise("streamer_store_exchanges_total", store.exchanges)
    i.rise("streamer_store_exchange_cpu_seconds_total", store.exchange_cpu_s)
    i.rise("streamer_store_sent_bytes_total", store.sent_bytes)
    i.rise("streamer_store_received_bytes_total", store.received_bytes)
    i.rise("streamer_store_refused_events_total", store.refused_events)
    i.rise("streamer_store_duplicate_events_total", store.duplicate_events)
    i.rise("streamer_store_retired_events_total", store.retired_events)
    i.rise("streamer_store_joins_total", store.joins)
    i.rise("streamer_store_seeds_total", store.seeds)
    i.rise("streamer_store_snapshots_total", store.snapshots)
    errors: Counter[str] = Counter()
    for reason, count in store.errors.items():
        errors[reason if reason in STORE_ERRORS else "other"] += count
    for reason, count in errors.items():
        i.rise("streamer_store_errors_total", count, reason)


def set_checkpoints(i: Instruments, saves: SaveStats) -> None:
    """What is saved, and how long it took."""
    i.set("streamer_checkpoint_writable", float(saves.problem is None))
    i.set("streamer_checkpoint_unsaved_events", saves.unsaved_events)
    i.set("streamer_checkpoint_duration_seconds", saves.seconds)
    i.set("streamer_checkpoint_longest_pause_seconds", saves.longest_pause_s)
    i.set("streamer_checkpoint_size_bytes", saves.size_bytes)
    i.set("streamer_checkpoint_base_bytes", saves.base_bytes)
    i.set("streamer_checkpoint_deltas", saves.deltas)
    i.set("streamer_checkpoint_delta_bytes", saves.delta_bytes)
    i.rise("streamer_checkpoints_total", saves.saved, "saved")
    i.rise("streamer_checkpoints_total", saves.failed, "failed")


def set_publishing(
    i: Instruments, published: PublishStatus | None, now_s: float
) -> None:
    """What servers were brought; None if nothing is published."""
    snapshots = 0
    written_bytes = 0
    age_s = None
    is_live = True
    if published is not None:
        snapshots = published.snapshots
        written_bytes = published.written_bytes
        is_live = published.problem is None
        if published.at_s is not None:
            age_s = now_s - published.at_s
    i.set("streamer_publish_live", float(is_live))
    i.rise("streamer_published_points_total", snapshots)
    i.rise("streamer_published_bytes_total", written_bytes)
    i.set("streamer_published_age_seconds", age_s)
