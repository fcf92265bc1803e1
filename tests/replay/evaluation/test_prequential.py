"""A method on a log, test then train, on the production line."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from line_harness import events, micro_batch, small

from streamer.errors import SettingsError
from streamer.evaluation import MODEL, WITHOUT_TOWERS
from streamer.evaluation.tally import METRICS
from streamer.event import encode
from streamer.model.settings import LearnerSettings
from streamer.replay.datasets.log import CATALOGUE_TYPE
from streamer.replay.evaluation.baselines import BASELINES
from streamer.replay.evaluation.delay import Delay, DelayedLearner
from streamer.replay.evaluation.prequential import PrequentialRun
from streamer.replay.evaluation.results import Measure, RunResult
from streamer.replay.evaluation.settings import PrequentialSettings
from streamer.replay.evaluation.slices import BANDS, RETRIEVED, SLICES, SlicedPrequential
from streamer.replay.events import Events

KS = (1, 5, 10, 20, 50)
STREAM = events(900, users=60, items=80)
LOG = Events([u for u, _ in STREAM], [i for _, i in STREAM], [1_000_000.0 + 10 * n for n in range(len(STREAM))])


def part(log: Events, start: int, stop: int) -> Events:
    times_s, features = log.timestamps_s, log.item_features
    return Events(
        log.users[start:stop],
        log.items[start:stop],
        times_s and times_s[start:stop],
        item_features=features and features[start:stop],
    )


def cut(log: Events, size: int) -> Iterator[Events]:
    for start in range(0, len(log), size):
        yield part(log, start, start + size)


def run(log: Events = LOG, chunk: int = 100, method: str = "xir", **changes: Any) -> RunResult:
    made = PrequentialRun(cut(log, chunk), len(log), prequential(small(method), **changes))
    result = made.run()
    result.about["learned"] = made.learner.state.item_counts.total
    return result


def prequential(learner: LearnerSettings, **changes: Any) -> PrequentialSettings:
    return PrequentialSettings(**(vars(learner) | {"batch_size": 32} | changes))


def figures(result: RunResult) -> list[Measure]:
    """Without those that measure time."""
    return [m for m in result.measures if m.k]


@pytest.fixture(scope="module")
def result() -> RunResult:
    return run()


class TestMeasures:
    def test_they_are_those_of_learning_batch_by_batch_with_every_event_ranked(self, result):
        learner = DelayedLearner(small(), Delay())
        test = SlicedPrequential(learner, prequential(small()), 450)
        for start in range(0, 900, 32):
            times_s = LOG.timestamps_s[start : start + 32]
            learner.learn_batch(micro_batch(STREAM[start : start + 32], timestamps_s=times_s), test)
        wanted = {(MODEL, metric): (metric, KS, test.tally, None) for metric in METRICS}
        wanted |= {(name, metric): (metric, KS, test.tally, name) for name in BASELINES for metric in METRICS}
        wanted[WITHOUT_TOWERS, "hr"] = ("hr-without-towers", KS, test.tally, None)
        wanted["retrieved", "hr"] = ("towers-recall", RETRIEVED, test.retrieved, None)
        expected = {}
        for (name, metric), (called, ks, tally, baseline) in wanted.items():
            for slice_, k in itertools.product(SLICES, ks):
                value = tally.figure(MODEL if name == "retrieved" else name, slice_, metric, k).overall
                if value is not None:
                    expected[called, k, slice_, baseline] = value
        assert {(m.metric, m.k, m.slice, m.baseline): m.value for m in figures(result)} == expected
        assert result.value("hr", 10, "all") == test.model.overall
        assert result.about["slices"]["all"] == 900  # those of the first batch too, of which nobody has learned an item
        assert result.about["slices"]["new"] == len(set(STREAM))
        assert result.about["slices"]["second-half/all"] == 450

    def test_only_the_baselines_that_are_asked_for_are_measured(self):
        found = run(part(LOG, 0, 200), baselines=("co-visitation",))
        assert {m.baseline for m in found.measures} == {None, "co-visitation"}

    def test_a_slice_without_events_has_no_figure(self):
        found = run(Events(["u"] * 64, ["a", "b"] * 32, None))
        assert found.about["slices"]["second-half/new"] == 0
        assert found.value("hr", 10, "second-half/new") is None
        assert found.value("hr", 10, "second-half/all") == 1.0

    def test_events_of_slices_and_figures_of_baselines_do_not_depend_on_the_batch_size(self, result):
        found = run(batch_size=300)
        self.assert_same_events(found, result)
        for m in result.measures:
            if m.baseline is not None and m.k and not m.slice.endswith(BANDS):
                assert found.value(m.metric, m.k, m.slice, m.baseline) == pytest.approx(m.value), m

    def assert_same_events(self, found: RunResult, wanted: RunResult) -> None:
        for name in SLICES:
            if not name.endswith(BANDS):  # those are by what was learned before the batch
                assert found.about["slices"][name] == wanted.about["slices"][name], name

    def test_towers_that_never_learn_miss_everything(self):
        found = run(delay_seconds=1e9, rerank=False)
        ours = [m.value for m in figures(found) if m.baseline is None]
        assert len(ours) > 100
        assert set(ours) == {0.0}
        assert found.about["learned"] == 0

    def test_a_ranker_that_never_learns_knows_nothing_but_the_users_last_items(self, result):
        found = run(delay_seconds=1e9)
        self.assert_same_events(found, result)
        assert found.value("hr", 10, "all", "last-items") == pytest.approx(result.value("hr", 10, "all", "last-items"))
        assert {m.value for m in figures(found) if m.baseline is None and "new" in m.slice.split("/")} == {0.0}
        assert 0 < found.value("hr", 10, "all") <= found.value("hr", 10, "all", "last-items")
        assert found.about["learned"] == 0

    def test_how_the_log_is_cut_changes_nothing(self, result):
        assert figures(run(chunk=7)) == figures(result)


class TestEnd:
    def test_progress_is_reported_after_every_batch(self):
        progress: list[tuple[float, str]] = []
        PrequentialRun(cut(LOG, 50), 900, prequential(small(), batch_size=300)).run(
            lambda share, text: progress.append((share, text))
        )
        assert progress == [(1 / 3, "300 events"), (2 / 3, "600 events"), (1, "900 events")]

    def test_what_the_line_refuses_is_counted_and_not_ranked(self):
        broken = Events([*LOG.users[:100], ""], [*LOG.items[:100], "x"], [*LOG.timestamps_s[:100], 0.0])
        found = run(broken)
        accounting = found.about["accounting"]
        assert (accounting["trained"], accounting["dead_lettered"]) == (100, 1)
        assert found.about["slices"]["all"] == 100

    def test_steps_are_measured(self, result):
        assert result.value("step-ms", 0) > 0


class TestDelay:
    def test_events_are_learned_only_after_the_delay(self):
        found = run(rerank=False, delay_seconds=3199.0)
        assert found.about["learned"] == (900 - 320) // 32 * 32
        assert found.about["slices"]["all"] == 900
        short = run(part(LOG, 0, 352), rerank=False, delay_seconds=3199.0)
        assert short.about["learned"] == 32
        assert short.value("hr", 10) == 0.0, "the first batch is learned when all are ranked"


def test_wrong_settings_are_all_reported():
    wrong = prequential(
        dataclasses.replace(small(), cache_size=-1),
        batch_size=0,
        ks=(0, 10),
        baselines=("nobody",),
        delay_seconds=-1.0,
    )
    with pytest.raises(SettingsError) as caught:
        PrequentialRun([], 0, wrong)
    assert len(caught.value.problems) == 5


def test_an_empty_log_gives_an_empty_result():
    found = run(Events([], []))
    assert figures(found) == []
    assert found.about["learned"] == 0


class TestCatalogue:
    """Users keep to a brand, and every second event is the first of its item: only the catalogue can foretell it."""

    BRANDS = 4
    COUNT = 1200

    def stream(self) -> tuple[Events, list[tuple[bytes, bytes, int]]]:
        rng, users, items, new = np.random.default_rng(0), [], [], 0
        for k in range(self.COUNT):
            brand = int(rng.integers(self.BRANDS))
            is_new = k % 2 == 1
            new += is_new
            users.append(f"u{brand}-{rng.integers(5)}")
            items.append(f"n{brand}-{new}" if is_new else f"i{brand}-{rng.integers(200)}")
        times = [1_000_000.0 + 10 * n for n in range(self.COUNT)]
        features = [{"brand": item[1 : item.index("-")]} for item in items]
        described = dict(zip(items, features, strict=True))
        catalogue = [
            (item.encode(), encode(None, item, item_features=said, event_type=CATALOGUE_TYPE), 0)
            for item, said in described.items()
        ]
        return Events(users, items, times, item_features=features), catalogue

    def run(self, *, catalogue: bool) -> RunResult:
        log, records = self.stream()
        learner = dataclasses.replace(small(item_features=("brand",)), retrieved_items=50)
        settings = prequential(learner, baselines=("most-popular",), ks=(10,))
        return PrequentialRun(cut(log, 100), len(log), settings, records if catalogue else ()).run()

    def test_first_events_of_items_are_hit_with_it_and_never_without(self):
        with_it, without = self.run(catalogue=True), self.run(catalogue=False)
        first = with_it.about["slices"]["new-items"]
        assert first == without.about["slices"]["new-items"] > self.COUNT / 2
        assert without.value("hr", 10, "new-items") == 0
        assert with_it.value("hr", 10, "new-items") > 0
        assert with_it.value("hr", 10, "new-items", "most-popular") == 0
        assert with_it.value("cold-share", 10) > 0
        assert without.value("cold-share", 10) is None
        assert with_it.about["accounting"]["trained"] == without.about["accounting"]["trained"] == self.COUNT
        assert with_it.about["accounting"]["catalogue"] == len(self.stream()[1])
