"""Figures from ranks, slices of the stream, and feedback that comes late."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_cases import streams

from streamer.evaluation.metrics import METRICS, MISS, Figure, Tally, values
from streamer.evaluation.slices import SLICES, WHOLE, FirstEvents, Traits, among_new

KS = (1, 3, 10)
rank = st.one_of(st.integers(1, 15), st.just(MISS))


def slow(metric: str, rank: int, k: int) -> float:
    if rank > k:
        return 0.0
    return {"hr": 1.0, "ndcg": 1.0 / math.log2(1 + rank), "mrr": 1.0 / rank}[metric]


@given(st.lists(rank, max_size=30))
def test_each_event_adds_what_the_formulas_say(ranks):
    found = values(np.array(ranks, np.int64), KS)
    for n, place in enumerate(ranks):
        for m, metric in enumerate(METRICS):
            assert found[n, m].tolist() == pytest.approx([slow(metric, place, k) for k in KS])


def test_the_first_rank_is_worth_one_and_the_third_a_half_in_ndcg():
    found = values(np.array([1, 3]), (10,))
    assert found[:, METRICS.index("ndcg"), 0].tolist() == [1.0, 0.5]
    assert found[:, METRICS.index("mrr"), 0].tolist() == [1.0, pytest.approx(1 / 3)]


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(rank, rank, st.booleans()), min_size=1, max_size=20), max_size=12))
def test_tallies_are_means_over_all_events_and_over_the_last_ones(batches):
    tally = Tally(["all", "new", "head"], KS, window=25)
    seen: list[list[tuple[int, int, bool]]] = []
    for batch in batches:
        ranks, new_ranks, inside = (np.array(column) for column in zip(*batch, strict=True))
        tally.add(ranks, new_ranks, np.stack([np.ones_like(inside), inside, inside], axis=1))
        seen.append(batch)
        last: list[tuple[int, int, bool]] = []
        for earlier in reversed(seen):
            if len(last) >= 25:
                break
            last += earlier
        for events, figure in (([e for batch in seen for e in batch], tally.overall), (last, tally.recent)):
            for metric in METRICS:
                check(figure("all", metric, 3), [slow(metric, a, 3) for a, _, _ in events])
                check(figure("new", metric, 3), [slow(metric, n, 3) for _, n, inside in events if inside])
                check(figure("head", metric, 3), [slow(metric, a, 3) for a, _, inside in events if inside])


def check(found: float | None, expected: list[float]) -> None:
    if not expected:
        assert found is None
    else:
        assert found == pytest.approx(sum(expected) / len(expected))


def test_a_figure_follows_its_tally():
    tally = Tally(["all"], KS, window=2)
    figure = Figure(tally, "all", "hr", 3)
    assert figure.overall is figure.recent is None
    for ranks in ([1, 2], [5, 7]):
        tally.add(np.array(ranks), np.array(ranks), np.ones((2, 1), np.bool_))
    assert (figure.events, figure.hits, figure.overall, figure.recent) == (4, 2, 0.5, 0.0)


@given(streams(40))
def test_rows_beyond_all_earlier_ones_are_new(stream):
    users, _, ends = stream
    seen, found = FirstEvents(), []
    for start, end in zip([0, *ends], ends, strict=False):
        found += seen.first(users[start:end]).tolist()
    assert found == [user not in users[:t] for t, user in enumerate(users.tolist())]


@st.composite
def traits(draw: st.DrawFn) -> Traits:
    n = draw(st.integers(0, 20))
    flags = [np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_) for _ in range(4)]
    band = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), np.int64)
    return Traits(flags[0], flags[1], band, flags[2], flags[3])


@given(traits())
def test_slices_split_events_without_gaps_and_overlaps(known):
    members = dict(zip(SLICES, known.members().T, strict=True))
    for begin, whole in (("", members["all"]), ("new/", members["new"])):
        users = (members[f"{begin}new-users"], members[f"{begin}returning-users"])
        items = (members[f"{begin}{name}"] for name in ("new-items", "head", "torso", "tail"))
        for parts in (users, items):
            assert np.array_equal(np.sum(list(parts), axis=0), whole)
    assert np.array_equal(members["all"], np.ones(len(known.fresh)))
    assert np.array_equal(members["new"], known.fresh)
    assert np.array_equal(members["new-users"], known.new_user)
    assert np.array_equal(members["returning-items"], ~known.new_item)
    assert np.array_equal(members["torso"], (known.band == 1) & ~known.new_item)
    for name in WHOLE:
        assert np.array_equal(members[f"second-half/{name}"], members[name] & known.late)


def test_only_slices_of_new_events_look_at_the_lists_without_known_items():
    new = [name for name in WHOLE if among_new(name)]
    assert new == [name for name in WHOLE if name == "new" or name.startswith("new/")]
    assert not among_new("new-users")
    assert among_new("second-half/new/tail")
    assert not among_new("second-half/new-items")
