"""Test, then train: what is ranked, against what, and how much time it takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from clock import Clock
from line_harness import Event, Watch, assert_same_learner, events, learn_all, micro_batch, small
from slow_ranking import slow_hits

from streamer.evaluation import WITHOUT_TOWERS, BestBaseline, EventSampler, Prequential, Tally
from streamer.evaluation.tally import METRICS, Ranks
from streamer.learner import Evaluator, OnlineLearner
from streamer.model.batch import Batch
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.features import TOWERS


def ranks_all(learner: OnlineLearner, k: int = 10, window: int = 5000) -> Prequential:
    """Ranks every event."""
    return Prequential(learner, EventSampler(time_share=None, max_events=None), Tally(k, window))


def ranked_by(learner: OnlineLearner, stream: list[Event], evaluator: Evaluator) -> None:
    learner.learn_batch(micro_batch(stream), evaluator)


class TestAgainstTheSlowRanking:
    @pytest.mark.parametrize("method", ["xir", "ssl-pop"])
    def test_every_event_is_ranked_against_all_items_known_before_its_batch(self, method):
        learner, stream = OnlineLearner(small(method, rerank=False)), events(480)
        learn_all(learner, stream[:320])
        test = ranks_all(learner, k=5)
        expected: list[bool] = []

        def look(batch: Batch, _: Candidates | None) -> None:
            expected.extend(slow_hits(learner, batch, learner.state.item_counts.size, k=5))

        for start in range(320, 480, 40):
            ranked_by(learner, stream[start : start + 40], Watch(look, test))
        assert test.model.events == len(expected) == 160
        assert test.model.hits == sum(expected)
        assert 0 < test.model.hits < 160
        assert test.model.overall == sum(expected) / 160


class TestWhatCounts:
    @pytest.mark.parametrize("rerank", [False, True])
    def test_an_item_that_nobody_had_is_no_hit_however_few_items_there_are(self, rerank):
        learner = OnlineLearner(small(rerank=rerank))
        learn_all(learner, [("u0", "i0"), ("u1", "i1")])
        test = ranks_all(learner, k=10)
        ranked_by(learner, [("u0", "never seen"), ("u1", "nor this"), ("u0", "never seen")], test)
        assert test.model.events == 3
        assert test.model.hits == rerank  # the towers learn after the batch; evidence knows what its user had by then
        assert test.figure("most-popular").hits == 1  # a baseline learns from every event at once

    def test_a_known_item_among_fewer_than_k_is_always_a_hit(self):
        learner = OnlineLearner(small())
        learn_all(learner, [("u0", "i0"), ("u1", "i1")])
        test = ranks_all(learner, k=10)
        ranked_by(learner, [("u0", "i1"), ("new user", "i0")], test)
        assert test.model.hits == test.figure("most-popular").hits == 2

    def test_before_the_first_item_is_known_a_sample_takes_nothing(self):
        learner = OnlineLearner(small())
        test = Prequential(learner, EventSampler(time_share=None, max_events=2))
        ranked_by(learner, [("u", "i")], test)
        assert test.model.events == test.figure("most-popular").events == 0
        assert test.model.overall is test.model.recent is test.figure("most-popular").overall is None
        ranked_by(learner, [("u", "i")] * 3, test)
        assert (test.model.events, test.model.hits) == (2, 2)
        assert test.events == 4

    def test_at_most_the_sample_is_ranked_of_a_batch(self):
        learner = OnlineLearner(small())
        learn_all(learner, events(64))
        test = Prequential(learner, EventSampler(time_share=None, max_events=10))
        ranked_by(learner, events(64, seed=1), test)
        ranked_by(learner, events(5, seed=2), test)
        assert test.model.events == test.figure("most-popular").events == 15

    @pytest.mark.parametrize("items", [60, 600])
    def test_ranking_changes_nothing_that_is_learned(self, items):
        watched, alone = OnlineLearner(small()), OnlineLearner(small())
        test = Prequential(watched, EventSampler(time_share=None))
        stream = events(320, items=items)
        for start in range(0, 320, 32):
            ranked_by(watched, stream[start : start + 32], test)
            alone.learn_batch(micro_batch(stream[start : start + 32]))
        assert test.model.events > 200
        assert_same_learner(watched, alone)


class TestTowers:
    def test_what_the_ranker_hits_without_them_is_beside_what_it_hits_with_them(self):
        learner, stream = OnlineLearner(small(ranker_learning_rate=1.0)), events(1600)
        test = ranks_all(learner, k=2, window=1200)
        expected = 0

        def look(_: Batch, candidates: Candidates | None) -> None:
            nonlocal expected
            assert candidates is not None
            kept = candidates.features[:, TOWERS].copy()
            candidates.features[:, TOWERS] = 0
            scores = learner.state.ranker.scores(candidates)
            for k, target in enumerate(candidates.target):
                here = slice(candidates.first[k], candidates.first[k + 1])
                expected += target >= 0 and (scores[here] >= scores[target]).sum() <= 2
            candidates.features[:, TOWERS] = kept

        assert test.towers() is None
        for start in range(0, 1600, 100):
            ranked_by(learner, stream[start : start + 100], Watch(look, test))
        assert test.figure(WITHOUT_TOWERS).hits == expected
        assert test.figure(WITHOUT_TOWERS).hits != test.model.hits
        share = test.towers()
        assert share is not None
        assert (share.hit_rate, share.without) == (test.model.recent, test.figure(WITHOUT_TOWERS).recent)
        assert ("add nothing" in str(share)) == (share.without >= share.hit_rate)

    def test_a_ranker_that_does_not_read_them_has_no_influence_of_theirs_and_it_is_said_that_they_add_nothing(self):
        learner, stream = OnlineLearner(small(ranker_learning_rate=1e-9)), events(1200)
        for weights in learner.state.ranker.weights:
            weights.linear[:, TOWERS] = weights.hidden[:, TOWERS] = 0
        test = ranks_all(learner)
        for start in range(0, 1200, 100):
            ranked_by(learner, stream[start : start + 100], test)
        assert str(test.towers()).startswith("The towers add nothing on this stream: HR 0.")
        found = test.watch.influence[np.isfinite(test.watch.influence).all(1)]
        assert len(found) > 2
        np.testing.assert_allclose(found.sum(1), 1)
        assert found[:, -1].max() < 1e-6 < found[:, 0].max()


class TestBaselines:
    def test_the_search_for_candidates_counts_as_evaluation(self):
        learner, stream = OnlineLearner(small()), events(150)
        learn_all(learner, stream[:100])
        test = Prequential(learner, EventSampler(time_share=0.5, clock=Clock(0.0)))  # nothing else takes time
        ranked_by(learner, stream[100:], test)
        assert test.seconds == learner.candidates.evaluation_s > 0

    def test_baselines_see_events_of_batches_that_are_not_ranked(self):
        learner, clock = OnlineLearner(small()), Clock(0.0)
        test = Prequential(learner, EventSampler(time_share=0.01, clock=clock), Tally(k=1))
        ranked_by(learner, [("u", "a")] * 3, test)
        test.sampler._not_before = 1.0
        ranked_by(learner, [("u", "b")] * 5, test)
        assert test.model.events == 0
        clock.now = 1.0
        ranked_by(learner, [("v", "b")], test)
        assert (test.figure("most-popular").hits, test.figure("most-popular").events) == (1, 1)

    def test_the_best_baseline_is_that_of_the_window_or_of_all_events(self):
        learner = OnlineLearner(small())
        test = ranks_all(learner, k=1, window=10)
        assert test.best_baseline() is None
        ranked_by(learner, [(f"u{n}", "a") for n in range(30)], test)
        assert test.best_baseline()[:2] == ("most-popular", 29 / 30)
        ranked_by(learner, [(f"u{n}", f"b{n}") for n in range(10)], test)
        ranked_by(learner, [(f"u{n}", f"b{n}") for n in range(10)], test)
        assert test.best_baseline() == BestBaseline("last-items", 1.0, 0.0)
        overall = test.best_baseline(overall=True)
        assert overall[:2] == ("most-popular", 29 / 50)
        assert overall[2] == pytest.approx(math.sqrt(29 / 50 * 21 / 50 / 49), rel=0.02)

    def test_beside_training_they_find_what_they_find_in_the_line(self):
        learner, stream, clock = OnlineLearner(small()), events(400), Clock(0.0)
        tests = [Prequential(learner, EventSampler(share, None, clock)) for share in (None, 0.5)]
        learn_all(learner, stream[:40])
        for start in range(40, 400, 40):
            ranked_by(learner, stream[start : start + 40], Watch(lambda *_: None, *tests))
        in_line, beside = tests
        for name in in_line.names:
            for metric in METRICS:
                assert beside.figure(name, metric) == in_line.figure(name, metric)
        assert beside.model.events == 360


class TestTimeBudget:
    """Every ranking takes a second; a batch comes every so often. The first, which loads compiled loops, is free."""

    def ranked(self, time_share: float | None, every_s: float, batches: int, quiet_s: float = 0.0) -> list[int]:
        """The batches that are ranked."""
        clock = Clock(0.0)
        sampler = EventSampler(time_share, clock=clock)
        clock.now += quiet_s
        done = []
        for number in range(batches):
            chosen = sampler.choose(1, trained=True)
            if len(chosen):
                done.append(number)
                clock.now += 1.0
            sampler.spent(1.0 * len(chosen), ranked=bool(len(chosen)))
            clock.now += every_s
        return done

    def test_batches_are_passed_over_to_keep_to_the_share(self):
        ranked = self.ranked(time_share=0.1, every_s=1.0, batches=200)
        assert len(ranked) / (200 + len(ranked)) == pytest.approx(0.1, abs=0.01)
        assert ranked[:2] == [0, 1]

    def test_all_are_ranked_without_a_share(self):
        assert self.ranked(time_share=None, every_s=0.01, batches=20) == list(range(20))

    def test_a_quiet_hour_saves_nothing_up(self):
        assert len(self.ranked(time_share=0.5, every_s=0.1, batches=20, quiet_s=3600)) <= 3

    def test_what_ranking_takes_is_measured_and_spent(self, monkeypatch: pytest.MonkeyPatch):
        learner, clock = OnlineLearner(small(rerank=False)), Clock(0.0)
        learn_all(learner, events(32))
        test = Prequential(learner, EventSampler(0.5, clock=clock))
        rank = test.ranker.by_towers

        def slow_rank(batch: Batch, chosen: np.ndarray, *others: Any) -> Ranks:
            clock.now += bool(len(chosen))
            return rank(batch, chosen, *others)

        monkeypatch.setattr(test.ranker, "by_towers", slow_rank)
        for _ in range(3):
            ranked_by(learner, events(8), test)
        assert (test.seconds, test.model.events) == (2.0, 16)  # then time is up
