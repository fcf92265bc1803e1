"""Every event is trained, filtered or dead-lettered."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from line_harness import assert_closed

from streamer.accounting import Accounting
from streamer.dead_letters.base import DeadLetter, Reason
from streamer.ingest.batcher import MicroBatch

BATCHES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.lists(st.sampled_from([*Reason]), max_size=5)), max_size=10
)


def batch_of(trained: int, filtered: int, reasons: list[Reason]) -> MicroBatch:
    letters = [DeadLetter(reason, "", "t", 0, k, 0, None, b"") for k, reason in enumerate(reasons)]
    return MicroBatch(["u"] * trained, ["i"] * trained, filtered=filtered, dead_letters=letters)


@given(BATCHES)
def test_what_is_consumed_is_the_sum_of_what_became_of_it(batches):
    accounting = Accounting()
    for trained, filtered, reasons in batches:
        accounting.add(batch_of(trained, filtered, reasons))
        assert_closed(accounting.to_json())
    reasons = [reason for _, _, these in batches for reason in these]
    assert accounting.trained == sum(trained for trained, _, _ in batches)
    assert accounting.filtered == sum(filtered for _, filtered, _ in batches)
    assert accounting.dead_lettered == len(reasons)
    assert accounting.consumed == accounting.trained + accounting.filtered + len(reasons)
    assert dict(accounting.dead_letters) == {str(r): reasons.count(r) for r in set(reasons)}


@given(BATCHES, BATCHES)
def test_a_restart_goes_on_counting(before, after):
    one, other = Accounting(), Accounting()
    for batch in before:
        one.add(batch_of(*batch))
    other = Accounting.from_json(json.loads(json.dumps(one.to_json())))
    for batch in after:
        one.add(batch_of(*batch))
        other.add(batch_of(*batch))
    assert one.to_json() == other.to_json()
