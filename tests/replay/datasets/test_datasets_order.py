"""The order of a stream: by time, ties by the seed, the same for ever."""

from __future__ import annotations

import random

import duckdb
import numpy as np
import pytest
from contracts.dataset_contract import rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.replay.datasets import LogSettings, open_log
from streamer.replay.datasets.order import shuffled_sql


def keys(rows: list[int] | range, seed: int) -> list[int]:
    """The keys by which rows of equal time are shuffled."""
    sql = shuffled_sql(f"(SELECT unnest({list(rows)}) AS row)", seed)
    return [key for _, key in duckdb.connect().execute(sql).fetchall()]


def csv_of(times: list[int]) -> str:
    return "user_id,item_id,timestamp\n" + "".join(f"u{n % 7},i{n},{t}\n" for n, t in enumerate(times))


def slow_order(times: list[int] | None, rows: int, seed: int) -> list[int]:
    """Numbers of the rows in the order of the stream, one at a time."""
    shuffled = keys(range(rows), seed)
    return sorted(range(rows), key=lambda n: (times[n] if times else 0, shuffled[n], n))


# keys -----------------------------------------------------------------------------------------------------------------


def test_keys_of_a_seed_never_change():
    assert keys(range(4), 0) == [4204088601, 598980972, 3000669939, 901121361]
    assert keys(range(4), 1) == [254469030, 3435076264, 2219454771, 2785206330]
    assert keys([2**32, 2**40 + 7], 2**70 + 5) == [378117820, 1063120830]


def test_keys_differ_from_row_to_row_and_those_of_neighbouring_seeds_have_nothing_in_common():
    first, second = (np.argsort(np.argsort(keys(range(20_000), seed))) for seed in (0, 1))
    assert len(set(keys(range(100_000), 3))) == 100_000
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first, np.arange(20_000))[0, 1]) < 0.03
    assert np.mean(first == second) < 0.001


# order ----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(0, 99), st.integers(1, 9))
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_stream_is_sorted_by_time_and_ties_by_the_keys_of_the_rows(write, times, seed, chunk):
    with open_log(write("log.csv", csv_of(times)), "csv", LogSettings(seed=seed)) as log:
        expected = [(f"u{n % 7}", f"i{n}", float(times[n])) for n in slow_order(times, len(times), seed)]
        assert rows_of(log, chunk=chunk) == expected
        assert len(log) == len(times)


def test_log_without_time_is_shuffled_by_the_seed(write):
    text = "user_id,item_id\n" + "".join(f"u,i{n}\n" for n in range(200))
    with open_log(write("log.csv", text), "csv", LogSettings(seed=4)) as log:
        assert [item for _, item, _ in rows_of(log)] == [f"i{n}" for n in slow_order(None, 200, 4)]
        assert not log.has_time


@pytest.mark.slow
def test_order_does_not_depend_on_threads_or_on_memory(write):
    rng = random.Random(0)
    path = write("log.csv", csv_of([rng.randrange(50) for _ in range(300_000)]))
    orders = []
    for options in ({"threads": 1}, {"threads": 2}, {"threads": 1, "memory_limit": "40MB"}):
        with open_log(path, "csv", LogSettings(**options)) as log:
            orders.append(rows_of(log))
    assert orders[0] == orders[1] == orders[2]
    times = [t for _, _, t in orders[0]]
    assert times == sorted(times)
    assert len(set(orders[0])) == 300_000


def test_start_is_the_position_of_the_first_event(write):
    with open_log(write("log.csv", csv_of([3, 1, 2, 2, 2, 9])), "csv") as log:
        everything = rows_of(log)
        for start in range(8):
            assert rows_of(log, start=start, chunk=2) == everything[start:]


def test_further_pass_has_another_order_of_ties_and_the_same_events(write):
    times = [n // 20 for n in range(200)]
    with open_log(write("log.csv", csv_of(times)), "csv") as log:
        first, second, again = rows_of(log), rows_of(log, pass_seed=1), rows_of(log, pass_seed=1)
        assert second == again != first
        assert sorted(first) == sorted(second)
        assert [t for *_, t in second] == sorted(times)
        assert rows_of(log, pass_seed=1, start=50) == second[50:]
        assert rows_of(log, pass_seed=0) == first


def test_pass_with_a_seed_is_the_order_that_the_seed_gives_from_the_start(write):
    path = write("log.csv", csv_of([1, 1, 1, 2, 2, 2]))
    with open_log(path, "csv", LogSettings(seed=5)) as log, open_log(path, "csv") as other:
        assert rows_of(other, pass_seed=5) == rows_of(log)


def test_limit_is_the_beginning_of_the_stream_in_every_pass(write):
    path = write("log.csv", csv_of([n // 10 for n in range(100)]))
    with open_log(path, "csv") as whole, open_log(path, "csv", LogSettings(limit=15)) as log:
        assert rows_of(log) == rows_of(whole)[:15]
        assert sorted(rows_of(log, pass_seed=3)) == sorted(rows_of(log))
        assert len(log) == 15


# arrays ---------------------------------------------------------------------------------------------------------------


def test_interactions_are_the_stream_with_codes_by_first_appearance(write):
    with open_log(write("log.csv", csv_of([n * 7 % 11 for n in range(60)])), "csv") as log:
        found, rows = log.interactions(), rows_of(log)
    assert [found.user_ids[code] for code in found.users] == [user for user, _, _ in rows]
    assert [found.item_ids[code] for code in found.items] == [item for _, item, _ in rows]
    assert found.user_ids == list(dict.fromkeys(user for user, _, _ in rows))
    assert found.users.dtype == found.items.dtype == np.int64
    assert len(found) == 60
