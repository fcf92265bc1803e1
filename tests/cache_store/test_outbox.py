"""Contributions that wait, are merged, acknowledged, kept and sent again."""

from __future__ import annotations

from collections import Counter

import pytest
from test_contribution import contribution, items_of

from streamer.cache_store.outbox import Outbox


def filled(count: int, max_waiting: int = 4, **more: float) -> Outbox:
    outbox = Outbox(max_waiting, **more)  # type: ignore[arg-type]
    for k in range(count):
        outbox.add(contribution([("p", k, k % 3)], drawn=1))
    return outbox


def requeued(outbox: Outbox, next_offsets: dict[str, int]) -> int:
    """How many wait once a server has lost what is not before these offsets."""
    outbox.requeue(next_offsets)
    return len(outbox.waiting)


def test_only_what_was_not_sent_is_merged() -> None:
    outbox = filled(3)
    outbox.waiting[0].attempts = outbox.waiting[1].attempts = 1
    for k in range(3, 30):
        outbox.add(contribution([("p", k, 0)]))
        assert len(outbox.waiting) <= 2 + 4
    first, second, *rest = outbox.waiting
    assert (first.number, second.number) == (1, 2)
    assert first.contribution.counts is second.contribution.counts is None
    assert [w.number for w in rest] == sorted(w.number for w in rest)
    assert outbox.events == 30


def test_what_has_come_is_kept_for_a_while() -> None:
    outbox = filled(4, max_waiting=10, keep_s=10.0)
    outbox.acknowledge(2, now_s=0.0)
    outbox.acknowledge(3, now_s=8.0)
    assert requeued(outbox, {}) == 4
    outbox.acknowledge(2, now_s=0.0)
    outbox.acknowledge(3, now_s=8.0)
    outbox.acknowledge(3, now_s=11.0)
    assert requeued(outbox, {}) == 2, "the first two came 11 seconds ago"


def test_what_is_kept_is_bounded() -> None:
    one = contribution([("p", 0, 0)], drawn=1).nbytes
    outbox = filled(10, max_waiting=100, keep_s=1e9, keep_bytes=3 * one)
    outbox.acknowledge(10, now_s=0.0)
    assert requeued(outbox, {}) == 3


def test_what_a_server_lost_waits_again_in_order_and_the_rest_stays_kept() -> None:
    outbox = filled(6, max_waiting=10, keep_s=1e9)
    outbox.waiting[4].attempts, outbox.waiting[4].accepted = 1, True
    outbox.acknowledge(4, now_s=0.0)
    assert requeued(outbox, {"p": 2}) == 4
    assert [w.number for w in outbox.waiting] == [3, 4, 5, 6]
    assert not any(w.attempts or w.accepted for w in outbox.waiting)
    assert requeued(outbox, {}) == 6, "it lost more than we thought"


def test_how_far_a_partition_waits() -> None:
    outbox = filled(3)
    outbox.add(contribution([("q", 7, 0)]))
    assert (outbox.end_offset("p"), outbox.end_offset("q"), outbox.end_offset("r")) == (3, 8, 0)


def test_what_was_contributed_of_a_recreated_partition_is_dropped_waiting_or_kept() -> None:
    outbox = Outbox(100, keep_s=1e9)
    for k in range(6):
        outbox.add(contribution([("p", k, 1), ("q", k, 2)]))
    outbox.acknowledge(3, now_s=0.0)
    outbox.drop_beyond("p", 1)
    outbox.requeue({})
    assert outbox.end_offset("p") == 1
    assert sum((items_of(w.contribution) for w in outbox.waiting), Counter()) == Counter({1: 1, 2: 6})


@pytest.mark.parametrize("numbers", [[], [2], [1, 3]])
def test_some_can_be_replaced_or_taken_away(numbers: list[int]) -> None:
    outbox = filled(3)
    for waiting in outbox.waiting:
        waiting.attempts = 1
    outbox.change(numbers, lambda c: None if c.offsets[0] == 0 else c)
    assert [w.number for w in outbox.waiting] == [n for n in (1, 2, 3) if n != 1 or 1 not in numbers]
    assert [w.number for w in outbox.waiting if not w.attempts] == [n for n in numbers if n != 1]
