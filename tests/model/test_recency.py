"""The order in which rows were last seen, against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamer.model.rows import recency
from streamer.model.rows.recency import STEP_BITS, Recency, StepClock

ROWS = st.lists(st.integers(0, 9), max_size=6)


@pytest.fixture(autouse=True, scope="module")
def short_queue():
    """So that the rows that one look finds are used up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recency, "QUEUED", 3)
        yield


class AgainstDictionary(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.recency, self.last, self.step = Recency(), {}, 0

    @rule(rows=ROWS, steps=st.integers(0, 2))
    def see(self, rows, steps):
        self.step = max(self.step + steps, 1)
        self.recency.mark_seen(np.array(rows, np.int64), self.step)
        self.last |= dict.fromkeys(rows, self.step)

    @rule(rows=st.sets(st.integers(0, 12)))
    def forget(self, rows):
        self.recency.forget(np.array(sorted(rows), np.int64))
        self.last = {row: step for row, step in self.last.items() if row not in rows}

    @rule()
    def go_on_in_another(self):
        other = Recency()
        other.load_state(self.recency.state())
        self.recency = other

    @invariant()
    def same(self):
        expected = sorted(self.last, key=lambda row: (self.last[row], row))
        assert self.recency.oldest(100).tolist() == expected
        assert self.recency.oldest(2).tolist() == expected[:2]
        assert self.recency.last_seen(np.arange(15)).tolist() == [self.last.get(row, 0) for row in range(15)]


TestAgainstDictionary = AgainstDictionary.TestCase


def test_ages_are_exact_and_time_stands_still_in_steps_without_events_or_with_older_ones():
    clock, stamps = StepClock(), []
    for times_s in ([], [50, 60, 70], [], [10], [5, 100, 2**31 - 1]):
        clock.tick(np.array(times_s, np.int64))
        stamps.append(clock.stamp)
    assert stamps == sorted(set(stamps))
    assert clock.ages_s(np.array(stamps)).tolist() == [100, 40, 40, 40, 0]
    other = StepClock()
    other.load_dense(clock.dense())
    other.tick(np.array([61]))
    assert other.stamp == clock.stamp + 1
    assert other.ages_s(np.array([other.stamp, 101 << STEP_BITS])).tolist() == [0, 0]
