"""Figures from ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.evaluation.tally import METRICS, MISS, Figure, Ranks, Tally, values

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


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(rank, rank, st.booleans()), min_size=1, max_size=20), max_size=12))
def test_figures_are_means_over_all_events_and_over_the_last_ones(batches):
    tally = Tally(3, window=25, ks=KS, slices=["all", "new", "head"], among_new=["new"])
    assert tally.figure("model") == Figure(0, None, None, 0, None, None)
    seen: list[list[tuple[int, int, bool]]] = []
    for batch in batches:
        ranks, new_ranks, inside = (np.array(column) for column in zip(*batch, strict=True))
        missed = Ranks.missed(len(batch))
        members = np.stack([np.ones_like(inside), inside, inside], axis=1)
        tally.add({"model": Ranks(ranks, new_ranks), "nobody": missed}, members)
        seen.append(batch)
        last: list[tuple[int, int, bool]] = []
        for earlier in reversed(seen):
            if len(last) >= 25:
                break
            last += earlier
        everything = [e for batch in seen for e in batch]
        for metric in METRICS:
            for slice_, of in (
                ("all", lambda events: [a for a, _, _ in events]),
                ("new", lambda events: [n for _, n, inside in events if inside]),
                ("head", lambda events: [a for a, _, inside in events if inside]),
            ):
                found = tally.figure("model", slice_, metric)
                assert (found.events, found.recent_events) == (len(of(everything)), len(of(last)))
                check(found.overall, found.error, [slow(metric, place, 3) for place in of(everything)])
                check(found.recent, found.recent_error, [slow(metric, place, 3) for place in of(last)])
        assert tally.figure("nobody").overall == 0
        assert tally.figure("model").hits == sum(place <= 3 for place, _, _ in everything)


def check(mean: float | None, error: float | None, expected: list[float]) -> None:
    if not expected:
        assert mean is error is None
        return
    assert mean == pytest.approx(np.mean(expected))
    assert error == pytest.approx(np.std(expected) / math.sqrt(len(expected)), abs=1e-7)
