"""What of a log becomes the stream: against plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.errors import SettingsError
from streamer.replay.datasets import LogSettings, open_log


class Row(NamedTuple):
    user: str
    item: str
    rating: float
    kind: str
    time: int


ROWS = st.lists(
    st.builds(
        Row,
        st.sampled_from("abcde"),
        st.sampled_from("vwxyz"),
        st.sampled_from([1.0, 2.5, 4.0, 5.0]),
        st.sampled_from(["view", "buy"]),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=40,
)
SOME = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def kept(write, rows: list[Row], options: LogSettings, name: str = "csv") -> Counter[Row]:
    """What the log leaves of some rows; each has a number of its own."""
    text = "user_id,item_id,rating,event_type,timestamp,number\n"
    text += "".join(f"{','.join(map(str, row))},{number}\n" for number, row in enumerate(rows))
    with open_log(write("log.csv", text), name, replace(options, item_features=("number",))) as log:
        numbers = [int(f["number"]) for events in log.batches() for f in events.item_features]
        assert len(numbers) == len(log)
    return Counter(rows[number] for number in numbers)


def slow_core(rows: list[Row], core: int) -> list[Row]:
    while True:
        by_user, by_item = Counter(r.user for r in rows), Counter(r.item for r in rows)
        left = [r for r in rows if by_user[r.user] >= core and by_item[r.item] >= core]
        if len(left) == len(rows):
            return rows
        rows = left


@SOME
@given(ROWS, st.integers(0, 5))
def test_core_has_enough_events_of_every_user_and_item(write, rows, core):
    assert kept(write, rows, LogSettings(k_core=core)) == Counter(slow_core(rows, core))


@SOME
@given(
    ROWS,
    st.sampled_from([None, 0.0, 2.5, 3.0, 6.0]),
    st.sampled_from([(), ("buy",), ("view", "buy"), ("sell",)]),
    st.none() | st.tuples(st.integers(0, 4), st.integers(1, 3)),
)
def test_rating_types_and_time_range_are_those_asked_for(write, rows, least, types, times):
    """The threshold and the start of the range are included, its end is not."""
    options, left = LogSettings(min_rating=least, event_types=types), rows
    if times:
        since, until = times[0], sum(times)
        options = replace(options, since=str(since), until=str(until))
        left = [r for r in rows if since <= r.time < until]
    left = [r for r in left if (least is None or r.rating >= least) and (not types or r.kind in types)]
    assert kept(write, rows, options) == Counter(left)


@SOME
@given(ROWS)
def test_amazon_keeps_what_is_above_the_average_of_the_user(write, rows):
    mean = {user: sum(x) / len(x) for user in "abcde" if (x := [r.rating for r in rows if r.user == user])}
    assert kept(write, rows, LogSettings(), "amazon") == Counter(r for r in rows if r.rating > mean[r.user] + 1e-9)


@SOME
@given(ROWS, st.integers(1, 6), st.integers(0, 9))
def test_sample_has_that_number_of_users_with_all_their_events(write, rows, number, seed):
    found = kept(write, rows, LogSettings(sample_users=number, seed=seed))
    users = {r.user for r in found}
    assert len(users) == min(number, len({r.user for r in rows}))
    assert found == Counter(r for r in rows if r.user in users)


@pytest.mark.slow
@SOME
@given(ROWS, st.integers(1, 3), st.sampled_from([1.0, 2.5]), st.integers(0, 3))
def test_filters_come_before_the_sample_and_the_core_comes_last(write, rows, core, least, seed):
    together = LogSettings(min_rating=least, sample_users=2, seed=seed, k_core=core)
    rated = [r for r in rows if r.rating >= least]
    sampled = list(kept(write, rated, LogSettings(sample_users=2, seed=seed)).elements()) if rated else []
    assert kept(write, rows, together) == Counter(slow_core(sampled, core))


def test_smaller_sample_is_part_of_a_larger_one_and_seeds_differ(write):
    rows = [Row(f"u{n}", "x", 1.0, "view", 1) for n in range(60)]
    ten = {r.user for r in kept(write, rows, LogSettings(sample_users=10))}
    half = {r.user for r in kept(write, rows, LogSettings(sample_users=0.5))}
    assert (len(ten), len(half)) == (10, 30)
    assert ten < half
    assert ten != {r.user for r in kept(write, rows, LogSettings(sample_users=10, seed=1))}


def test_time_range_takes_dates_and_offsets(write):
    rows = [Row("a", "x", 1.0, "view", 1415664000 + hour * 3600) for hour in range(-2, 3)]
    found = kept(write, rows, LogSettings(since="2014-11-11", until="2014-11-11T03:00:00+01:00"))
    assert sorted(r.time for r in found) == [1415664000, 1415664000 + 3600]


def test_filters_that_leave_nothing_leave_an_empty_log(write):
    with open_log(write("log.csv", "user_id,item_id\na,x\n"), "csv", LogSettings(k_core=2)) as log:
        assert len(log) == 0
        assert list(log.batches()) == []
        assert len(log.interactions()) == 0
        assert log.describe()["events"] == 0


def test_filter_without_its_column_is_refused_with_all_others(write):
    options = LogSettings(event_types=("buy",), min_rating=3, since="2014-01-01", until="2015-01-01")
    with pytest.raises(SettingsError) as caught:
        open_log(write("log.csv", "user_id,item_id\na,x\n"), "csv", options)
    assert [problem.split()[0] for problem in caught.value.problems] == ["event-type", "min-rating", "since", "until"]
    assert "the log has only user_id, item_id" in caught.value.problems[0]


# options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LogSettings(columns={"user": "uid"}), "no field 'user'"),
        (LogSettings(columns={"user_id": ""}), "user_id needs the name"),
        (LogSettings(min_rating=float("nan")), "min-rating is nan"),
        (LogSettings(k_core=-1), "k-core is -1"),
        (LogSettings(limit=0), "limit is 0"),
        (LogSettings(sample_users=0), "sample-users is 0"),
        (LogSettings(sample_users=1.5), "sample-users is 1.5"),
        (LogSettings(since="yesterday"), "since is 'yesterday'"),
        (LogSettings(until="inf"), "until is 'inf'"),
        (LogSettings(since="2015-01-01", until="2014-01-01"), "no time lies between"),
        (LogSettings(sample_users=float("inf")), "sample-users is inf"),
        (LogSettings(seed=-1), "seed is -1"),
        (LogSettings(threads=0), "threads is 0"),
        (LogSettings(delimiter=""), "delimiter is ''"),
    ],
)
def test_wrong_option_is_reported(options, expected):
    assert len(options.problems()) == 1
    assert expected in options.problems()[0]


def test_all_wrong_options_are_reported_at_once_and_the_format_too(write):
    with pytest.raises(SettingsError) as caught:
        open_log(write("log.csv", ""), "gowala", LogSettings(limit=0, seed=-1))
    assert len(caught.value.problems) == 3
    assert "choose one of amazon, csv" in caught.value.problems[2]


@pytest.mark.parametrize("since", [None, "0", "86400", "2014.0", "1415664000", "2014-11-11"])
def test_defaults_and_times_that_are_clear_have_no_problems(since):
    assert LogSettings(since=since).problems() == []
