from __future__ import annotations

import math

from streamer.metrics.history import RECENT_POINTS, RUN_POINTS, Timeline


def filled(count: int) -> Timeline:
    timeline = Timeline(("time", "loss"))
    for k in range(count):
        timeline.add({"time": float(k), "loss": k / 2})
    return timeline


def test_a_short_run_is_shown_as_it_was():
    timeline = filled(5)
    assert timeline.recent() == timeline.run() == [(float(k), k / 2) for k in range(5)]


def test_a_series_without_a_value_is_not_a_number():
    timeline = Timeline(("time", "loss"))
    timeline.add({"time": 1.0})
    assert timeline.recent()[0][0] == 1.0
    assert math.isnan(timeline.recent()[0][1])


def test_the_last_minutes_end_with_the_latest_moment():
    rows = filled(RECENT_POINTS + 7).recent()
    assert [row[0] for row in rows] == list(range(7, RECENT_POINTS + 7))


def test_the_whole_run_is_spanned_in_bounded_memory():
    rows = filled(50_000).run()
    assert RUN_POINTS // 2 <= len(rows) <= RUN_POINTS
    assert rows[0][0] == 0
    assert rows[-1][0] > 49_000
    assert rows == sorted(rows)
