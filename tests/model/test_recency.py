"""The order in which rows were last seen, against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamer.model.rows.recency import MAX_MARKS, Recency, StepClock

ROWS = st.lists(st.integers(0, 9), max_size=6)


class AgainstDictionary(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.recency, self.last, self.step = Recency(), {}, 0

    @rule(rows=ROWS)
    def see(self, rows):
        self.step += 1
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
        assert self.recency.step_of_oldest == (self.last[expected[0]] if expected else None)


TestAgainstDictionary = AgainstDictionary.TestCase


def test_steps_are_remembered_with_their_times():
    clock, ends = StepClock(), {}
    for k in range(10 * MAX_MARKS):
        step = clock.tick(np.array([5, 100 + 10 * k, 2**31 - 1]))
        ends[step] = 100 + 10 * k
    error = [abs(clock.time_of(step) - time_s) for step, time_s in ends.items()]
    assert error[-1] == 0
    assert max(error) <= (ends[step] - ends[1]) / 100
    clock.forget_before(step)
    assert clock.time_of(step) == ends[step]


def test_time_stands_still_in_steps_without_events_or_with_older_ones():
    clock = StepClock()
    for times_s in ([], [50, 60, 70], [], [10]):
        clock.tick(np.array(times_s, np.int64))
    assert [clock.time_of(step) for step in (2, 3, 4)] == [60, 60, 60]
    other = StepClock()
    other.load_dense(clock.dense())
    assert other.tick(np.array([61])) == 5
    assert other.time_of(4) == 60
