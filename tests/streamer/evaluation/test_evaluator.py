"""Test, then train: what is ranked, against what, and how much time it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from clock import Clock
from line_harness import Event, Watch, assert_same_learner, events, learn_all, micro_batch, small

from streamer.errors import SettingsError
from streamer.evaluation import BASELINES, MODEL, RETRIEVED, SLICES, WITHOUT_TOWERS, BestBaseline, Prequential
from streamer.learner import Evaluator, Learner
from streamer.model.batch import Batch
from streamer.model.ranking.evidence import TOWERS, Candidates


def slow_hits(learner: Learner, batch: Batch, known: int, k: int, excluded: list[set[int]] | None = None) -> list[bool]:
    """One event after the other: score every known item, look where the event's item stands."""
    hits = []
    vectors = learner.retriever.items(known).vectors
    for n in range(len(batch)):
        recent = batch.recent[n : n + 1]
        scores = (learner.retriever.queries(batch.users[n : n + 1], recent) @ vectors.T)[0].double().numpy()
        item = int(batch.items[n])
        if excluded is not None:
            scores[[j for j in excluded[n] if j < known]] = -np.inf
        better = sum(score > scores[item] - 1e-6 for j, score in enumerate(scores) if j != item) if item < known else k
        hits.append(better < k)
    return hits


def had_before(batch: Batch, seen: dict[int, set[int]]) -> list[set[int]]:
    """What each event's user had before it; takes the events in."""
    found = []
    for user, item in zip(batch.users.tolist(), batch.items.tolist(), strict=True):
        found.append(set(seen.setdefault(user, set())))
        seen[user].add(item)
    return found


def ranked_by(learner: Learner, stream: list[Event], evaluator: Evaluator) -> None:
    learner.learn_batch(micro_batch(stream), evaluator)


class TestAgainstTheSlowRanking:
    @pytest.mark.parametrize("method", ["xir", "ssl-pop"])
    def test_every_event_is_ranked_against_all_items_known_before_its_batch(self, method):
        learner, stream = Learner(small(method, rerank=False)), events(480)
        learn_all(learner, stream[:320])
        test = Prequential(learner, k=5, time_share=None, sample=None)
        expected: list[bool] = []

        def look(batch: Batch, _: Candidates | None) -> None:
            expected.extend(slow_hits(learner, batch, learner.item_counts.size, k=5))

        for start in range(320, 480, 40):
            ranked_by(learner, stream[start : start + 40], Watch(look, test))
        assert test.model.events == len(expected) == 160
        assert test.model.hits == sum(expected)
        assert 0 < test.model.hits < 160
        assert test.model.overall == sum(expected) / 160

    def test_events_new_to_their_user_are_ranked_without_what_the_user_had(self):
        learner, stream = Learner(small(rerank=False)), events(400)
        test = Prequential(learner, k=5, time_share=None, sample=None, new_only=True)
        seen: dict[int, set[int]] = {}
        expected: list[bool] = []

        def look(batch: Batch, _: Candidates | None) -> None:
            known, before = learner.item_counts.size, had_before(batch, seen)
            hits = zip(slow_hits(learner, batch, known, 5, before), batch.items, before, strict=True)
            expected.extend(hit for hit, item, items in hits if item not in items)

        for start in range(0, 400, 40):
            ranked_by(learner, stream[start : start + 40], Watch(look, test))
        assert test.new.events == len(expected) == len(set(stream))
        assert test.new.hits == sum(expected)
        assert 0 < test.new.hits < test.new.events < test.model.events == 400


class TestWhatCounts:
    @pytest.mark.parametrize("rerank", [False, True])
    def test_an_item_that_nobody_had_is_no_hit_however_few_items_there_are(self, rerank):
        learner = Learner(small(rerank=rerank))
        learn_all(learner, [("u0", "i0"), ("u1", "i1")])
        test = Prequential(learner, k=10, time_share=None, sample=None, new_only=True)
        ranked_by(learner, [("u0", "never seen"), ("u1", "nor this"), ("u0", "never seen")], test)
        assert test.model.events == 3
        assert test.new.hits == 0
        assert test.model.hits == rerank  # the towers learn after the batch; evidence knows what its user had by then
        assert test.figure("most-popular").hits == 1  # a baseline learns from every event at once

    def test_a_known_item_among_fewer_than_k_is_always_a_hit(self):
        learner = Learner(small())
        learn_all(learner, [("u0", "i0"), ("u1", "i1")])
        test = Prequential(learner, k=10, time_share=None, sample=None)
        ranked_by(learner, [("u0", "i1"), ("new user", "i0")], test)
        assert test.model.hits == test.figure("most-popular").hits == 2

    def test_an_event_sees_its_users_earlier_events_of_the_same_batch(self):
        """After long training on alternating pairs, an item is foretold by its partner, and by nothing else."""
        pairs = [(f"u{k}", f"{side}{k % 8}") for k in range(400) for side in "ab"]
        learner = Learner(small("ssl-pop"))
        learn_all(learner, pairs, batch_size=40)
        test = Prequential(learner, k=1, time_share=None, sample=None)
        ranked_by(learner, [("somebody", "a3"), ("somebody", "b3")], test)
        assert (test.model.events, test.model.hits) == (2, 1)

    def test_before_the_first_item_is_known_a_sample_takes_nothing(self):
        learner = Learner(small())
        test = Prequential(learner, time_share=None, sample=2)
        ranked_by(learner, [("u", "i")], test)
        assert test.model.events == test.figure("most-popular").events == 0
        assert test.model.overall is test.model.recent is test.figure("most-popular").overall is None
        ranked_by(learner, [("u", "i")] * 3, test)
        assert (test.model.events, test.model.hits) == (2, 2)
        assert test.events == 4

    @pytest.mark.parametrize("rerank", [False, True])
    @pytest.mark.parametrize("more", [{}, {"new_only": True, "baselines": tuple(BASELINES)}], ids=["lean", "all"])
    def test_in_the_first_batch_the_towers_miss_and_whoever_counts_event_by_event_may_hit(self, more, rerank):
        learner = Learner(small(rerank=rerank))
        test = Prequential(learner, time_share=None, sample=None, **more)
        ranked_by(learner, [("u", "a"), ("u", "a"), ("v", "a"), ("v", "b"), ("w", "a"), ("w", "b")], test)
        hits = {name: (test.figure(name).events, test.figure(name).hits) for name in test.tallies}
        expected = {
            "model": (6, 2 if rerank else 0),  # as last items and co-visitation together
            "model-without-towers": (6, 2),
            "most-popular": (6, 4),  # all but the first a and the first b
            "recently-popular": (6, 4),
            "last-items": (6, 1),  # u's second a
            "co-visitation": (6, 1),  # w's b, as v had it after a
            "counting": (6, 4),  # as the most popular
            "counting-no-time": (6, 4),
        }
        assert hits == {name: expected[name] for name in test.tallies}
        assert test.model.overall == test.model.recent == (2 / 6 if rerank else 0.0)
        assert (test.new.events, test.new.hits) == ((5, int(rerank)) if more else (0, 0))
        ranked_by(learner, [("x", "a"), ("x", "b")], test)
        assert (test.model.events, test.model.hits) == (8, 4 if rerank else 2)

    def test_most_popular_is_the_share_of_events_among_the_most_counted_items(self):
        learner = Learner(small())
        learn_all(learner, [("u", item) for item in "aaaabbbccd"])
        test = Prequential(learner, k=2, time_share=None, sample=None)
        ranked_by(learner, [("v", item) for item in "abcdab"], test)
        assert test.figure("most-popular").hits == 4

    def test_at_most_the_sample_is_ranked_of_a_batch(self):
        learner = Learner(small())
        learn_all(learner, events(64))
        test = Prequential(learner, time_share=None, sample=10)
        ranked_by(learner, events(64, seed=1), test)
        ranked_by(learner, events(5, seed=2), test)
        assert test.model.events == test.figure("most-popular").events == 15

    @pytest.mark.parametrize("items", [60, 600])
    def test_ranking_changes_nothing_that_is_learned(self, items):
        watched, alone = Learner(small()), Learner(small())
        test = Prequential(watched, time_share=None, new_only=True)
        stream = events(320, items=items)
        for start in range(0, 320, 32):
            ranked_by(watched, stream[start : start + 32], test)
            alone.learn_batch(micro_batch(stream[start : start + 32]))
        assert test.model.events > 200
        assert_same_learner(watched, alone)


class TestTowers:
    def test_every_nth_event_is_looked_for_in_the_towers_own_list(self):
        learner, stream, (short, _) = Learner(small()), events(900, items=300), RETRIEVED
        test = Prequential(learner, time_share=None, sample=None, new_only=True, retrieve_every=3)
        seen: dict[int, set[int]] = {}
        expected: dict[str, list[bool]] = {"all": [], "new": []}

        def look(batch: Batch, _: Candidates | None) -> None:
            known, before, begin = learner.item_counts.size, had_before(batch, seen), test.events
            hits = slow_hits(learner, batch, known, short)
            hits_of_new = slow_hits(learner, batch, known, short, before)
            for n in range(-begin % 3, len(batch), 3):
                expected["all"].append(hits[n])
                expected["new"] += [hits_of_new[n]] if batch.items[n] not in before[n] else []

        for start in range(0, 900, 100):
            ranked_by(learner, stream[start : start + 100], Watch(look, test))
        assert test.retrieved.events("all") == 300
        for slice_, hits in expected.items():
            assert 0 < sum(hits) < len(hits)
            assert test.retrieved.overall(slice_, "hr", short) == pytest.approx(np.mean(hits))

    def test_what_the_ranker_hits_without_them_is_beside_what_it_hits_with_them(self):
        learner, stream = Learner(small(ranker_learning_rate=1.0)), events(1600)
        test = Prequential(learner, k=2, time_share=None, sample=None, window=1200)
        expected = 0

        def look(_: Batch, candidates: Candidates | None) -> None:
            nonlocal expected
            assert candidates is not None
            kept = candidates.features[:, TOWERS].copy()
            candidates.features[:, TOWERS] = 0
            scores = learner.ranker.scores(candidates)
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
        learner, stream = Learner(small(ranker_learning_rate=1e-9)), events(1200)
        for weights in learner.ranker.weights:
            weights.linear[:, TOWERS] = weights.hidden[:, TOWERS] = 0
        test = Prequential(learner, time_share=None, sample=None)
        for start in range(0, 1200, 100):
            ranked_by(learner, stream[start : start + 100], test)
        assert str(test.towers()).startswith("The towers add nothing on this stream: HR 0.")
        found = test.influence[np.isfinite(test.influence).all(1)]
        assert len(found) > 2
        np.testing.assert_allclose(found.sum(1), 1)
        assert found[:, -1].max() < 1e-6 < found[:, 0].max()


class TestSlices:
    def test_new_users_and_items_are_those_of_first_events_within_a_batch_too(self):
        learner = Learner(small())
        test = Prequential(learner, time_share=None, sample=None, new_only=True)
        ranked_by(learner, [("u0", "a"), ("u1", "b")], test)
        ranked_by(learner, [("u0", "a"), ("u2", "c"), ("u2", "c"), ("u1", "a"), ("u3", "c")], test)
        counts = {name: test.tallies[MODEL].events(name) for name in SLICES}
        assert counts["all"] == 7
        assert (counts["new-users"], counts["returning-users"]) == (4, 3)
        assert (counts["new-items"], counts["returning-items"]) == (3, 4)
        assert counts["new"] == 5  # u0 a, u1 b; u2 c, u1 a, u3 c
        assert counts["new/new-users"] == 4
        assert counts["head"] + counts["torso"] + counts["tail"] == 4

    def test_in_the_first_batch_nothing_is_popular_yet(self):
        learner = Learner(small())
        test = Prequential(learner, time_share=None, sample=None)
        ranked_by(learner, [("u0", "a")] * 5, test)
        counts = {name: test.tallies[MODEL].events(name) for name in SLICES}
        assert (counts["new-items"], counts["head"], counts["torso"], counts["tail"]) == (1, 0, 0, 4)
        ranked_by(learner, [("u0", "a")] * 5, test)
        assert test.tallies[MODEL].events("head") == 5

    def test_nobody_foretells_an_item_that_was_never_seen(self):
        learner, stream = Learner(small()), events(400, items=200)
        test = Prequential(learner, time_share=None, sample=None, new_only=True, baselines=tuple(BASELINES), ks=(50,))
        for start in range(0, 400, 40):
            ranked_by(learner, stream[start : start + 40], test)
        for name, tally in test.tallies.items():
            assert tally.events("new-items") > 10
            assert tally.overall("new-items", "hr", 50) == 0, name

    def test_the_second_half_begins_at_its_event(self):
        learner, stream = Learner(small()), events(200)
        test = Prequential(learner, time_share=None, sample=None, half=110)
        for start in range(0, 200, 20):
            ranked_by(learner, stream[start : start + 20], test)
        assert test.tallies[MODEL].events("all") == 200
        assert test.tallies[MODEL].events("second-half/all") == 90

    def test_a_learner_that_goes_on_from_a_checkpoint_knows_its_users_and_counts(self):
        learner = Learner(small())
        learn_all(learner, [("u", item) for item in "aaaabbbccd"])
        test = Prequential(learner, k=2, time_share=None, sample=None)
        ranked_by(learner, [("u", "a"), ("u", "new")], test)
        assert test.figure("most-popular").hits == 1
        assert test.tallies[MODEL].events("new-users") == 0
        assert test.tallies[MODEL].events("new-items") == 1
        assert test.tallies[MODEL].events("head") == 1


class TestBaselines:
    def test_baselines_see_events_of_batches_that_are_not_ranked(self):
        learner, clock = Learner(small()), Clock(0.0)
        test = Prequential(learner, k=1, time_share=0.01, clock=clock)
        ranked_by(learner, [("u", "a")] * 3, test)
        test._not_before = 1.0
        ranked_by(learner, [("u", "b")] * 5, test)
        assert test.model.events == 0
        clock.now = 1.0
        ranked_by(learner, [("v", "b")], test)
        assert (test.figure("most-popular").hits, test.figure("most-popular").events) == (1, 1)

    def test_users_of_batches_that_are_not_ranked_are_no_new_ones(self):
        learner, clock = Learner(small()), Clock(0.0)
        test = Prequential(learner, time_share=0.01, clock=clock)
        test._not_before = 1.0
        ranked_by(learner, [("u", "a"), ("v", "b")], test)
        clock.now = 1.0
        ranked_by(learner, [("v", "b"), ("w", "c")], test)
        assert test.tallies[MODEL].events("returning-users") == 1
        assert test.tallies[MODEL].events("new-users") == 1
        assert test.tallies[MODEL].events("new-items") == 1

    def test_a_stream_of_returning_users_is_foretold_by_their_last_items(self):
        learner = Learner(small())
        test = Prequential(learner, time_share=None, sample=None, baselines=("last-items",))
        for _ in range(5):
            ranked_by(learner, [(f"u{n}", f"i{n}") for n in range(20)], test)
        for metric in ("hr", "mrr"):
            assert test.figure("last-items", "returning-users", metric).overall == 1.0
            assert test.figure("last-items", "new-users", metric).overall == 0.0
            assert test.figure("last-items", metric=metric).overall == 80 / 100

    def test_the_best_baseline_is_that_of_the_window_or_of_all_events(self):
        learner = Learner(small())
        test = Prequential(learner, k=1, time_share=None, sample=None, window=10, baselines=("last-items",))
        assert test.best_floor() is None
        ranked_by(learner, [(f"u{n}", "a") for n in range(30)], test)
        assert test.best_floor() == BestBaseline("most-popular", 29 / 30)
        ranked_by(learner, [(f"u{n}", f"b{n}") for n in range(10)], test)
        ranked_by(learner, [(f"u{n}", f"b{n}") for n in range(10)], test)
        assert test.best_floor() == BestBaseline("last-items", 1.0)
        assert test.best_floor(overall=True) == BestBaseline("most-popular", 29 / 50)

    def test_beside_training_they_find_what_they_find_in_the_line(self):
        learner, stream, clock = Learner(small()), events(400), Clock(0.0)
        tests = [
            Prequential(learner, sample=None, baselines=tuple(BASELINES), time_share=s, clock=clock)
            for s in (None, 0.5)
        ]
        learn_all(learner, stream[:40])
        for start in range(40, 400, 40):
            ranked_by(learner, stream[start : start + 40], Watch(lambda *_: None, *tests))
        for name in tests[0].tallies:
            in_line, beside = (test.tallies[name] for test in tests)
            assert beside.events("all") == in_line.events("all") == 360
            np.testing.assert_array_equal(beside._sums, in_line._sums)

    def test_observing_ranks_nothing_and_forgets_nothing(self):
        learner, stream = Learner(small()), events(200)
        tests = [
            Prequential(learner, time_share=None, sample=None, new_only=True, baselines=tuple(BASELINES))
            for _ in range(2)
        ]

        def look(batch: Batch, _: Candidates | None) -> None:
            tests[1].observe(batch)

        for start in range(0, 160, 40):
            ranked_by(learner, stream[start : start + 40], Watch(look, tests[0]))
        assert tests[1].model.events == 0
        before = {name: [tally.events(s) for s in SLICES] for name, tally in tests[0].tallies.items()}
        sums = {name: tally._sums.copy() for name, tally in tests[0].tallies.items()}
        ranked_by(learner, stream[160:], Watch(lambda *_: None, *tests))
        for name, tally in tests[1].tallies.items():
            first = tests[0].tallies[name]
            gained = [first.events(s) - n for s, n in zip(SLICES, before[name], strict=True)]
            assert [tally.events(s) for s in SLICES] == gained
            np.testing.assert_allclose(tally._sums, first._sums - sums[name], atol=1e-9)


def test_wrong_settings_are_all_reported():
    with pytest.raises(SettingsError) as caught:
        Prequential(Learner(small()), k=0, window=0, time_share=2.0)
    assert len(caught.value.problems) == 3


class TestTimeBudget:
    """Every ranking takes a second; a batch comes every so often. The first, which loads compiled loops, is free."""

    def slow_down(self, test: Prequential, clock: Clock) -> None:
        look = test._look

        def slow(batch: Batch, chosen: np.ndarray, candidates: Candidates | None, due: Any) -> None:
            look(batch, chosen, candidates, due)
            clock.now += 1.0 * bool(len(chosen))

        test._look = slow  # type: ignore[method-assign]

    def rank(self, test: Prequential) -> None:
        recent = test.learner.recent_items(test.learner.recent.of(np.array([0])))
        test(Batch(np.array([0]), np.array([0]), recent), test.choose(1), None)

    def ranked(self, time_share: float | None, every_s: float, batches: int) -> list[int]:
        learner, clock = Learner(small(rerank=False)), Clock(0.0)
        learn_all(learner, events(32))
        test = Prequential(learner, time_share=time_share, sample=None, clock=clock)
        self.slow_down(test, clock)
        done = []
        for number in range(batches):
            before = test.model.events
            self.rank(test)
            if test.model.events > before:
                done.append(number)
            clock.now += every_s
        return done

    def test_batches_are_passed_over_to_keep_to_the_share(self):
        ranked = self.ranked(time_share=0.1, every_s=1.0, batches=200)
        seconds = 200 + len(ranked)
        assert len(ranked) / seconds == pytest.approx(0.1, abs=0.01)
        assert ranked[:2] == [0, 1]

    def test_all_are_ranked_without_a_share(self):
        assert self.ranked(time_share=None, every_s=0.01, batches=20) == list(range(20))

    def test_a_quiet_hour_saves_nothing_up(self):
        learner, clock = Learner(small(rerank=False)), Clock(0.0)
        learn_all(learner, events(32))
        test = Prequential(learner, time_share=0.5, clock=clock)
        self.slow_down(test, clock)
        clock.now += 3600
        for _ in range(20):
            self.rank(test)
            clock.now += 0.1
        assert test.model.events <= 3
