"""Popularity estimates: a contract for all, exact counts against the obvious sum, hash arrays against the truth.

The hash estimate of a gap is a moving average with weight alpha. Gaps of a random stream are nearly exponential, so
their deviation equals their mean, and the estimate deviates by sqrt(alpha / (2 - alpha)) of the gap once the start is
forgotten: 10.05% for alpha = 0.02, 22.9% for 0.1. The tolerances below are multiples of that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamer.model.batch import LogPopularity
from streamer.model.popularity import ExactPopularity, HashPopularity, PopularityEstimate

SEEN, UNSEEN = np.arange(30), np.array([999, 10**6, 10**12])

Items = NDArray[np.int64]


def zipf_shares(items: int) -> NDArray[np.float64]:
    shares = 1 / np.arange(1.0, items + 1)
    return shares / shares.sum()


def stream_of(shares: NDArray[np.float64], events: int, seed: int = 0) -> Items:
    return np.random.default_rng(seed).choice(len(shares), events, p=shares)


def observed(popularity: PopularityEstimate, stream: Items, batch: int = 512) -> PopularityEstimate:
    for start in range(0, len(stream), batch):
        popularity.observe(stream[start : start + batch])
    return popularity


def shares(popularity: LogPopularity, rows: list[int] | Items) -> NDArray[np.float64]:
    return np.exp(popularity.log_pop(np.asarray(rows, np.int64)).astype(np.float64))


def deviation_of(alpha: float) -> float:
    """Expected relative deviation of a moving average of exponential gaps."""
    return math.sqrt(alpha / (2 - alpha))


class Zipf:
    """The truth about `zipf_shares`."""

    def __init__(self, items: int) -> None:
        self.log_shares = np.log(zipf_shares(items)).astype(np.float32)

    def log_pop(self, rows: Items) -> NDArray[np.float32]:
        return self.log_shares[rows]


class PopularityContract:
    """What every estimate must do. A test class of an implementation says how to make one."""

    STREAM = stream_of(zipf_shares(len(SEEN)), 4000)

    def make(self) -> PopularityEstimate:
        raise NotImplementedError

    def after(self, stream: Items = STREAM) -> PopularityEstimate:
        return observed(self.make(), stream)

    def test_finite_for_every_row_before_and_after_the_first_event(self):
        for popularity in (self.make(), self.after(np.array([3])), self.after()):
            log_pop = popularity.log_pop(np.concatenate([SEEN, UNSEEN]))
            assert log_pop.dtype == np.float32
            assert np.isfinite(log_pop).all()
            assert (log_pop <= 0).all()

    def test_frequent_items_are_more_popular_than_rare_ones(self):
        popularity = self.after()
        assert shares(popularity, [0])[0] > 3 * shares(popularity, [20])[0]
        assert shares(popularity, UNSEEN).max() <= shares(popularity, SEEN).min()

    def test_shares_are_near_the_truth(self):
        found = shares(self.after(), SEEN)[:5]
        np.testing.assert_allclose(found, zipf_shares(len(SEEN))[:5], rtol=0.45)

    def test_retiring_keeps_every_row_finite_and_the_others_in_order(self):
        popularity = self.after()
        kept = SEEN[1:10]
        before = popularity.log_pop(kept)
        popularity.forget(np.array([0, 0, 15, 10**9]))
        assert np.isfinite(popularity.log_pop(np.concatenate([SEEN, UNSEEN]))).all()
        after = popularity.log_pop(kept)
        np.testing.assert_allclose(after - after[0], before - before[0], atol=1e-5)


class EventClockContract(PopularityContract):
    """What those that count events, not batches, must do beyond that."""

    @pytest.mark.parametrize("seed", range(5))
    def test_where_the_stream_is_cut_into_batches_does_not_matter(self, seed):
        whole, cut, stream = self.make(), self.make(), self.STREAM[:200]
        whole.observe(stream)
        for batch in np.split(stream, np.sort(np.random.default_rng(seed).integers(0, 200, 12))):
            cut.observe(batch)
        np.testing.assert_allclose(cut.log_pop(SEEN), whole.log_pop(SEEN), rtol=1e-6)


class TestExactContract(EventClockContract):
    def make(self) -> ExactPopularity:
        return ExactPopularity()


class TestExactHalfLifeContract(EventClockContract):
    def make(self) -> ExactPopularity:
        return ExactPopularity(half_life_events=1000)


class TestHashContract(EventClockContract):
    def make(self) -> HashPopularity:
        return HashPopularity(slots=1 << 12)


class TestHashBatchClockContract(PopularityContract):
    def make(self) -> HashPopularity:
        return HashPopularity(slots=1 << 12, clock="batch")

    def after(self, stream: Items = PopularityContract.STREAM) -> PopularityEstimate:
        return observed(self.make(), stream, batch=2)  # so small that an item is rarely twice in a batch


def slow_counts(stream: list[int], half_life: float | None, items: int) -> NDArray[np.float64]:
    """The obvious sum: an event counts 2^(-age / half-life), its age in further events."""
    counts = np.zeros(items)
    for age, item in enumerate(reversed(stream)):
        counts[item] += 1.0 if half_life is None else 2.0 ** (-age / half_life)
    return counts


class TestExact:
    @given(
        batches=st.lists(st.lists(st.integers(0, 5), max_size=30), max_size=6),
        half_life=st.one_of(st.none(), st.floats(0.05, 2), st.floats(2, 1000)),
    )
    def test_counts_are_sums_of_aged_events_also_where_it_rescales(self, batches, half_life):
        popularity, stream = ExactPopularity(half_life), list(itertools.chain(*batches))
        for batch in batches:
            popularity.observe(np.array(batch, np.int64))
        slow = slow_counts(stream, half_life, 8)
        np.testing.assert_allclose(popularity.counts(np.arange(8)), slow, rtol=1e-9, atol=1e-200)
        assert popularity.total == pytest.approx(slow.sum(), rel=1e-9)
        expected = np.log(np.maximum(slow, 1.0) / max(slow.sum(), 1.0))
        np.testing.assert_allclose(popularity.log_pop(np.arange(8)), expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("half_life", [0.1, 3.0])
    def test_batch_of_many_half_lives_stays_finite(self, half_life):
        popularity, stream = ExactPopularity(half_life), [1] * 10_000 + [2] * 3 + [1]
        popularity.observe(np.array(stream))
        np.testing.assert_allclose(
            popularity.counts(np.array([1, 2])), slow_counts(stream[-9000:], half_life, 3)[1:], rtol=1e-9
        )

    def test_counts_at_once_are_counts_of_single_events(self):
        at_once, one_by_one = ExactPopularity(), ExactPopularity()
        at_once.add(np.array([3, 5]), np.array([4.0, 2.0]))
        one_by_one.observe(np.array([3, 3, 5, 3, 5, 3]))
        np.testing.assert_array_equal(at_once.counts(np.arange(6)), one_by_one.counts(np.arange(6)))

    def test_an_item_counts_at_most_what_32_bits_hold(self):
        popularity = ExactPopularity()
        popularity.add(np.array([3, 5]), np.array([2.0**32 - 3, 7.0]))
        popularity.observe(np.array([3, 5, 3, 3, 3]))
        assert popularity.counts(np.array([3, 5])).tolist() == [2**32 - 1, 8]
        assert popularity.total == 2**32 + 7

    def test_counts_at_once_age_like_the_mean_over_all_orders_of_their_events(self):
        def after(further: Callable[[ExactPopularity], None]) -> NDArray[np.float64]:
            popularity = ExactPopularity(half_life_events=2)
            popularity.observe(np.array([1, 2]))
            further(popularity)
            return np.append(popularity.counts(np.arange(4)), popularity.total)

        orders = [np.array(order) for order in itertools.permutations([3, 3, 3, 1])]
        mean = np.mean([after(lambda p, order=order: p.observe(order)) for order in orders], axis=0)
        found = after(lambda p: p.add(np.array([1, 3]), np.array([1.0, 3.0])))
        np.testing.assert_allclose(found, mean, rtol=1e-12)

    @pytest.mark.parametrize("half_life", [None, 10.0])
    def test_retired_item_is_as_if_it_had_never_been(self, half_life):
        popularity, stream = ExactPopularity(half_life), [1, 2, 1, 3, 3, 3, 2, 1]
        popularity.observe(np.array(stream))
        popularity.forget(np.array([3, 3]))
        slow = slow_counts(stream, half_life, 4)
        slow[3] = 0
        np.testing.assert_allclose(popularity.counts(np.arange(4)), slow, rtol=1e-12)
        assert popularity.total == pytest.approx(slow.sum(), rel=1e-12)

    @pytest.mark.parametrize("wrong", [0, -1.0])
    def test_the_half_life_must_be_positive(self, wrong):
        with pytest.raises(ValueError, match=r"half_life_events is .* choose a positive number"):
            ExactPopularity(wrong)


class SlowGaps:
    """The algorithm for one item that has a slot of its own."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self.last = self.hits = 0
        self.gap = 0.0

    def hit(self, now: int) -> None:
        self.hits += 1
        weight = max(self.alpha, 1 / self.hits)
        self.gap = (1 - weight) * self.gap + weight * (now - self.last)
        self.last = now

    def estimate(self, now: int) -> float:
        gap, away = (self.gap if self.hits else now), now - self.last
        return away if away > 4 * gap else gap


class TestHashAgainstASlowOne:
    ROWS = np.arange(8)
    streams = st.lists(st.lists(st.integers(0, 6), max_size=20), max_size=12)

    @given(batches=streams, alpha=st.sampled_from([0.0, 0.02, 0.3, 1.0]), clock=st.sampled_from(["event", "batch"]))
    def test_shares_are_one_over_the_slow_gaps(self, batches, alpha, clock):
        popularity = HashPopularity(3, 1 << 12, alpha, clock=clock)
        slow, ticks = [SlowGaps(alpha) for _ in self.ROWS], 0
        for batch in batches:
            popularity.observe(np.array(batch, np.int64))
            for hits in [{item} for item in batch] if clock == "event" else [set(batch)] * bool(batch):
                ticks += 1
                for item in hits:
                    slow[item].hit(ticks)
        events_a_tick = sum(map(len, batches)) / max(ticks, 1)
        gaps = [max(each.estimate(ticks) * events_a_tick, 1) for each in slow]
        np.testing.assert_allclose(shares(popularity, self.ROWS), 1 / np.array(gaps), rtol=1e-5)


class TestHashOnAStationaryStream:
    ITEMS, EVENTS = 200, 400_000  # the rarest item has 340 events: its start is forgotten

    def gaps(self, alpha: float) -> NDArray[np.float64]:
        """Estimated gap over true gap of all items that came lately (the others are estimated by their absence)."""
        truth, stream = zipf_shares(self.ITEMS), stream_of(zipf_shares(self.ITEMS), self.EVENTS, seed=3)
        popularity = observed(HashPopularity(alpha=alpha), stream)
        last = np.array([np.flatnonzero(stream == item)[-1] for item in range(self.ITEMS)])
        recent = (self.EVENTS - last) * truth < 3
        return (truth / shares(popularity, np.arange(self.ITEMS)))[recent]

    @pytest.mark.parametrize("alpha", [0.02, 0.1])
    def test_converges_to_the_truth_with_the_deviation_that_alpha_implies(self, alpha):
        ratio, expected = self.gaps(alpha), deviation_of(alpha)
        assert len(ratio) > 0.9 * self.ITEMS  # 1 - e^-3 = 95% came within three gaps
        # 190 items: the mean is known to expected / 14, the deviation to a part in 20; four times that is allowed
        assert ratio.mean() == pytest.approx(1, abs=4 * expected / math.sqrt(len(ratio)))
        assert ratio.std() == pytest.approx(expected, rel=0.2)


class TestHashOnAChangingStream:
    def test_item_that_becomes_popular_is_found_out(self):
        stream, popularity = stream_of(np.full(400, 1 / 400), 40_000), HashPopularity()
        observed(popularity, stream)
        assert shares(popularity, [7])[0] < 1 / 200
        stream[::10] = 7  # its gap falls from 400 to 10
        observed(popularity, stream[:4000])  # 400 gaps: 390 x 0.98^400 = 0.1 is left of the old one
        assert shares(popularity, [7])[0] == pytest.approx(0.1025, rel=4 * deviation_of(0.02))


class TestCollisions:
    ITEMS, EVENTS = 300, 400_000
    ROWS = np.arange(ITEMS)
    STREAM = stream_of(zipf_shares(ITEMS), EVENTS)

    def estimate(self, hashes: int, slots: int) -> HashPopularity:
        popularity = HashPopularity(hashes, slots)
        observed(popularity, self.STREAM)
        return popularity

    @pytest.mark.parametrize("slots", [30, 150])
    def test_collisions_only_make_items_too_popular(self, slots):
        alone, crowded = (1 / shares(self.estimate(1, size), self.ROWS) for size in (1 << 18, slots))
        assert np.log(alone / crowded).mean() > 0.3
        # a slot's gap is no longer than the item's (up to four deviations of both), nor is its absence
        noise = math.exp(4 * math.sqrt(2) * deviation_of(0.02))
        away = self.EVENTS - 1 - np.array([np.flatnonzero(item == self.STREAM)[-1] for item in self.ROWS])
        assert (crowded <= np.maximum(alone * noise, away * (1 + 1e-5))).all()

    def test_several_hashes_beat_a_single_one(self):
        assert shares(self.estimate(3, 1), self.ROWS) == pytest.approx(np.ones(self.ITEMS))
        truth = Zipf(self.ITEMS).log_pop(self.ROWS)
        single, several = (np.abs(self.estimate(h, 1000).log_pop(self.ROWS) - truth).mean() for h in (1, 5))
        noise = deviation_of(0.02) * math.sqrt(2 / math.pi)  # mean absolute error without collisions
        absent = math.exp(-4) * (math.log(4) + 0.2)  # of the 2% that are just estimated by their absence
        assert several < 1.2 * (noise + absent)
        assert single > 2 * several


class TestClocks:
    @pytest.mark.parametrize(("clock", "expected"), [("event", [1 / 2, 1 / 8]), ("batch", [1 / 8, 1 / 8])])
    def test_only_the_event_clock_tells_four_times_a_batch_from_once(self, clock, expected):
        popularity = observed(HashPopularity(clock=clock), self.batches(), batch=8)
        assert shares(popularity, [0, 1]) == pytest.approx(expected, rel=0.1)

    def batches(self) -> Items:
        """Item 0 four times a batch of eight, item 1 once, others rarely."""
        rng = np.random.default_rng(0)
        return np.concatenate([[0, 0, 0, 0, 1, *rng.integers(2, 500, 3)] for _ in range(1000)])

    @pytest.mark.parametrize("clock", ["event", "batch"])
    @pytest.mark.parametrize("batch", [4, 32])
    def test_both_clocks_have_the_scale_of_events(self, clock, batch):
        truth = zipf_shares(500)
        popularity = observed(HashPopularity(clock=clock), stream_of(truth, 400_000), batch)
        rare = np.flatnonzero(truth * batch < 0.05)  # at most 2.5% of their events share a batch with another
        ratio = truth[rare] / shares(popularity, rare)
        assert np.median(ratio) == pytest.approx(1, abs=0.025 + 5 * deviation_of(0.02) / math.sqrt(len(rare)))


class TestHashState:
    @pytest.mark.parametrize("other", [HashPopularity(slots=7), HashPopularity(slots=8, clock="batch")])
    def test_another_shape_or_clock_is_refused(self, other):
        with pytest.raises(ValueError, match=r"do not fit \(5, 8\) with the event clock"):
            HashPopularity(slots=8).load_state(other.state())

    def test_hash_functions_come_with_the_state(self):
        popularity = observed(HashPopularity(slots=64, seed=1), stream_of(zipf_shares(50), 5000))
        other = HashPopularity(slots=64, seed=2)
        other.load_state(popularity.state())
        np.testing.assert_array_equal(other.log_pop(np.arange(50)), popularity.log_pop(np.arange(50)))

    def test_slot_hit_for_years_does_not_overflow(self):
        popularity = observed(HashPopularity(slots=64), np.tile([0, 1], 500))
        state = popularity.state()
        state["hits"][:] = 2**31 - 1
        popularity.load_state(state)
        observed(popularity, np.tile([0, 1], 500))
        assert popularity.state()["hits"].min() > 0
        assert shares(popularity, [0, 1]) == pytest.approx([0.5, 0.5], rel=1e-3)
