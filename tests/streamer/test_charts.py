from __future__ import annotations

from itertools import pairwise

import pytest
from rich.text import Text

from streamer.display.charts import History, line_over_area, share_bar, shares_over_time, sparkline


def plain(rows: list[Text]) -> list[str]:
    return [row.plain for row in rows]


def test_history_keeps_all_while_there_is_room():
    history = History(capacity=4)
    for value in range(4):
        history.add((float(value), 0.0))
    assert history.resampled(10) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_history_spans_the_whole_run_in_bounded_memory():
    history = History(capacity=8)
    for value in range(1000):
        history.add((float(value),))
    points = [value for (value,) in history.resampled(1000)]
    assert 4 <= len(points) <= 8
    assert points == sorted(points)
    gaps = {round(b - a, 6) for a, b in pairwise(points)}
    assert len(gaps) == 1
    assert points[0] < 128
    assert points[-1] > 1000 - 256


def test_history_is_resampled_to_the_columns_there_are():
    history = History()
    for value in range(100):
        history.add((float(value),))
    points = history.resampled(7)
    assert len(points) == 7
    assert points[0][0] == pytest.approx(6.5, abs=0.6)
    assert points[-1][0] == pytest.approx(92.5, abs=0.6)


def test_sparkline_goes_from_lowest_to_highest():
    assert sparkline([0, 1, 2, 3], 10) == "▁▃▆█"
    assert sparkline([2, 2], 10, lowest=0.0) == "██"
    assert sparkline(range(100), 3)[-1] == "█"
    assert len(sparkline(range(100), 3)) == 3


def test_sparkline_of_little_or_nothing():
    assert sparkline([], 5) == ""
    assert sparkline([1.0], 5) == "▁"
    assert sparkline([1.0], 0) == ""


def test_share_bar_fills_its_width():
    bar = share_bar([0.5, 0.3, 0.2], ["blue", "cyan", "magenta"], 10)
    assert bar.plain == "█████▒▒▒░░"
    assert len(share_bar([1 / 3, 1 / 3, 1 / 3], ["blue", "cyan", "magenta"], 10)) == 10


def test_area_with_a_line_over_it():
    rows = line_over_area([(1.0, 0.1), (0.5, 0.1), (0.0, 0.9)], 2, 1.0, ("green", "yellow"))
    assert plain(rows) == ["█ ▔", "▁▁ "]
    assert str(rows[1].spans[0].style) == "yellow on green"


def test_shares_are_stacked_with_the_first_at_the_bottom():
    points = [(1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.25, 0.25)]
    assert plain(shares_over_time(points, 4, ("blue", "cyan", "magenta"), colours=False)) == [
        "█░░",
        "█░▒",
        "█░█",
        "█░█",
    ]


def test_with_colours_a_cell_shows_where_one_share_ends_and_the_next_begins():
    [row] = shares_over_time([(0.5, 0.5)], 1, ("blue", "cyan"), colours=True)
    assert row.plain == "▄"
    assert str(row.spans[0].style) == "blue on cyan"
