"""How the ranks of a group agree on steps; what becomes of it is tested in `tests/streamer/lockstep`."""

from __future__ import annotations

import time

from streamer.event.decoded import Decoded
from streamer.lockstep.group import Group
from streamer.lockstep.ingest import PAUSE_S, LockstepIngest
from streamer.settings import PipelineSettings
from streamer.sources.base import Partition


def test_ranks_whose_events_make_no_step_yet_exchange_now_and_then_only(monkeypatch):
    partition, exchanges = Partition("t", 0), 0
    settings = PipelineSettings(batch_size=512, max_age_s=0, max_queued_events=4096)
    ingest = LockstepIngest(Group(0, 1, 4), settings, lambda: [partition])
    record = {"record_offsets": [0], "events_upto": [1], "filtered_upto": [0], "letters_upto": [0]}
    ingest.queues.add(Decoded(["u"], ["i"], [1.0], offsets=[0], partition=partition, **record))
    assert ingest.queued_events == 1
    exchange = ingest._exchange

    def counted():
        nonlocal exchanges
        exchanges += 1
        return exchange()

    monkeypatch.setattr(ingest, "_exchange", counted)
    began = time.monotonic()
    assert ingest._take(20 * PAUSE_S) is None
    assert exchanges > 1
    assert exchanges <= (time.monotonic() - began) / PAUSE_S + 2
