from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamer.replay.pacing import MAX_CATCH_UP_S, Pace
from streamer.replay.settings import WriteSettings


class FakeTime:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def written(pace: Pace, time: FakeTime, timestamps_ms: Sequence[int]) -> list[float]:
    """Seconds from the beginning at which each event is written."""
    start_s, at_s, rest = time.now_s, [], list(timestamps_ms)
    while rest:
        count = pace.due(rest)
        assert 1 <= count <= len(rest)
        at_s += [time.now_s - start_s] * count
        rest = rest[count:]
    return at_s


def test_unpaced_everything_is_due():
    assert Pace().due([5, 3, 9]) == 3


def test_a_rate_is_kept_over_time(time: FakeTime):
    at_s = written(Pace(rate=1000, clock=time.clock, sleep=time.sleep), time, range(10_000))
    assert at_s[0] == 0
    assert at_s[-1] == pytest.approx(10, abs=0.1)
    assert at_s[4999] == pytest.approx(5, abs=0.1)


def test_events_close_together_are_written_at_once(time: FakeTime):
    written(Pace(rate=10_000, clock=time.clock, sleep=time.sleep), time, range(10_000))
    assert len(time.slept_s) < 30


@pytest.mark.parametrize(
    ("pace", "times_ms", "expected"),
    [
        pytest.param({"rate": 2}, range(5), [0, 0.5, 1, 1.5, 2], id="a slow rate"),
        pytest.param({"speed": 1}, [7_000, 8_000, 8_500, 20_000], [0, 1, 1.5, 13], id="real time"),
        pytest.param({"speed": 10}, [0, 10_000, 30_000], [0, 1, 3], id="ten times real time"),
        pytest.param(
            {"speed": 10, "max_gap_s": 2}, [0, 10_000, 86_400_000, 86_410_000], [0, 1, 3, 4], id="gaps are capped"
        ),
        pytest.param({"speed": 1}, [5_000, 1_000, 6_000], [0, 0, 5], id="out of order: due with the one before"),
    ],
)
def test_events_are_written_when_they_are_due(time: FakeTime, pace: dict[str, float], times_ms, expected):
    assert written(Pace(**pace, clock=time.clock, sleep=time.sleep), time, times_ms) == pytest.approx(expected)


def test_gaps_are_kept_between_two_questions(time: FakeTime):
    pace = Pace(speed=1, clock=time.clock, sleep=time.sleep)
    pace.due([1000])
    pace.due([4000])
    assert time.now_s == pytest.approx(103)


def test_a_writer_that_fell_behind_a_little_catches_up(time: FakeTime):
    pace = Pace(rate=2, clock=time.clock, sleep=time.sleep)
    pace.due([0])
    time.now_s += 1.5
    assert pace.due(range(10)) == 3
    assert time.slept_s == []


def test_a_writer_that_fell_far_behind_does_not_make_up_for_it(time: FakeTime):
    pace = Pace(rate=100, clock=time.clock, sleep=time.sleep)
    pace.due([0])
    time.now_s += 3600
    assert pace.due(range(10_000)) <= 100 * (MAX_CATCH_UP_S + 0.1)


def test_a_sleep_that_returns_early_makes_no_difference_to_the_answer(time: FakeTime):
    pace = Pace(rate=1, clock=time.clock, sleep=lambda seconds: None)
    assert pace.due([0, 1]) == 1
    assert pace.due([1]) == 1


def test_paces_that_contradict_each_other_are_all_reported():
    assert len(WriteSettings(rate=0, speed=-1).problems()) == 3
    [problem] = WriteSettings(max_gap_s=1).problems()
    assert "give that too" in problem
    assert WriteSettings(rate=float("nan")).problems() == ["rate is nan: it must be a number above 0"]
