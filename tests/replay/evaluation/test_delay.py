"""Feedback that comes late: who learns what, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from line_harness import Watch, events, micro_batch, small

from streamer.learner import OnlineLearner
from streamer.model.batch import Batch
from streamer.recommender import Recommender
from streamer.replay.evaluation.delay import Delay, DelayedLearner
from streamer.replay.evaluation.settings import PrequentialSettings
from streamer.replay.evaluation.slices import SlicedPrequential


def slow_due(times: list[float], t: int, seconds: float) -> int:
    """How many of the first events are due when event t is ranked, all before it having been."""
    latest = np.maximum.accumulate(times)
    due = 0
    while due < t and latest[t] - latest[due] >= seconds:
        due += 1
    return due


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=10), min_size=1, max_size=6),
    st.integers(1, 15),
)
def test_an_event_is_due_after_further_seconds(batches, wait_seconds):
    delay, times = Delay(wait_seconds), [float(t) for batch in batches for t in batch]
    start = 0
    for batch in batches:
        end = start + len(batch)
        due = delay.due([float(t) for t in batch])
        assert due.tolist() == [slow_due(times, t, wait_seconds) for t in range(start, end)]
        start = end


class Ranked(Watch):
    """Notes what was trained when each batch was ranked."""

    def __init__(self, learner: OnlineLearner) -> None:
        super().__init__(self.note)
        self.learner, self.trained, self.recent = learner, [], []

    def note(self, batch: Batch, _: object) -> None:
        self.trained.append(self.learner.state.item_counts.total)
        self.recent.append(batch.recent)


def fed(learner: OnlineLearner, look: Any, count: int = 320, size: int = 32, seconds: float = 1.0) -> None:
    stream = events(320)
    for start in range(0, count, size):
        times = [seconds * t for t in range(start, start + size)]
        learner.learn_batch(micro_batch(stream[start : start + size], timestamps_s=times), look)


class TestDelayedLearner:
    def test_a_batch_is_ranked_when_the_last_two_batches_are_not_trained_yet(self):
        learner = DelayedLearner(small(), Delay(64))
        look = Ranked(learner)
        fed(learner, look)
        assert look.trained == [0, 0, 0, 32, 64, 96, 128, 160, 192, 224]
        assert learner.state.item_counts.total == 320 - 64

    def test_recent_items_are_those_of_the_event_however_late_it_is_trained(self):
        late, at_once = DelayedLearner(small(), Delay(100)), OnlineLearner(small())
        looks = Ranked(late), Ranked(at_once)
        for learner, look in zip((late, at_once), looks, strict=True):
            fed(learner, look)
        for ours, theirs in zip(looks[0].recent, looks[1].recent, strict=True):
            np.testing.assert_array_equal(ours, theirs)

    def test_what_a_user_did_since_is_described_as_a_server_describes_it(self):
        learner = DelayedLearner(small(), Delay(50.0))
        fed(learner, None)
        user, item = events(320)[7]
        compared = 0

        def look(batch: Batch, candidates: Any) -> None:
            nonlocal compared
            scores = learner.state.ranker.scores(candidates)
            part = slice(candidates.first[-2], candidates.first[-1])
            ranked = dict(zip(candidates.items[part].tolist(), scores[part].tolist(), strict=True))
            recommender = Recommender(learner)
            since = [*waiting, (item, 1000.0), ("i3", 1001.0)]
            for served in recommender.recommend([recommender.user(user, since)], 20)[0]:
                row = learner.state.items.row_of(served.item)
                assert ranked[row] == pytest.approx(served.score, abs=0.02)
                compared += 1

        stream = events(320)[int(learner.state.item_counts.total) :]
        waiting = [(i, 320.0 - len(stream) + n) for n, (u, i) in enumerate(stream) if u == user]
        mine = [(user, item), (user, "i3"), (user, "i5")]
        learner.learn_batch(micro_batch(mine, timestamps_s=[1000.0, 1001.0, 1001.0]), Watch(look))
        assert compared > 5

    def test_what_is_learned_is_the_same_as_from_the_events_that_are_due(self):
        late, at_once = DelayedLearner(small("ssl-pop"), Delay(64)), OnlineLearner(small("ssl-pop"))
        fed(late, None, count=320)
        fed(at_once, None, count=256)
        late_weights = late.state.trainer.model.item.tables["item.id"].weight[: len(at_once.state.items)]
        weights = at_once.state.trainer.model.item.tables["item.id"].weight[: len(at_once.state.items)]
        np.testing.assert_array_equal(late_weights.numpy(), weights.numpy())

    def test_baselines_learn_as_late_as_the_model(self):
        """An item that comes in turn with others is the most popular once its events are due, not before."""
        learner, test = late_test()
        stream = [("u", "a")] * 8 + [("u", "b")] * 20
        hits = []
        for start in range(0, 28, 4):
            batch = micro_batch(stream[start : start + 4], timestamps_s=range(start, start + 4))
            learner.learn_batch(batch, test)
            hits.append(test.tally.figure("most-popular", k=1).hits)
        # a: 8 events before; b overtakes when 9 of its events are due, which is when the last four are ranked
        assert hits == [0, 0, 0, 0, 0, 0, 4]
        assert test.figure("most-popular").events == 28

    @pytest.mark.parametrize("rerank", [False, True])
    def test_until_events_are_learned_the_towers_miss_them(self, rerank):
        """Everybody foretells the only item there is as soon as it is known."""
        learner, test = late_test(rerank=rerank)
        for start in range(0, 24, 4):
            times_s = range(start, start + 4)
            learner.learn_batch(micro_batch([("u", "a")] * 4, timestamps_s=times_s), test)
        found = {name: test.tally.figure(name, k=1).hits for name in test.names}
        assert found.pop("model-without-towers", found["model"]) == found["model"]
        # the model learns whole batches, baselines event by event; last items are known at once
        assert found == {"model": 23 if rerank else 12, "most-popular": 16, "last-items": 23}
        assert test.model.events == 24


def late_test(**changes: Any) -> tuple[DelayedLearner, SlicedPrequential]:
    """A learner that learns eight seconds late, and its evaluation; events come each second."""
    learner = DelayedLearner(small(**changes), Delay(8))
    settings = PrequentialSettings(ks=(1,), baselines=("last-items",), retrieve_every=0)
    return learner, SlicedPrequential(learner, settings, 0)
