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
from streamer.event import encode_item
from streamer.model.settings import LearnerSettings
from streamer.replay.datasets.log import CATALOGUE_TYPE
from streamer.replay.evaluation.baselines import BASELINES
from streamer.replay.evaluation.delay import Delay, DelayedLearner
from streamer.replay.evaluation.events_source import EventsSource
from streamer.replay.evaluation.prequential import PrequentialRun
from streamer.replay.evaluation.record import Measure, RunResult
from streamer.replay.evaluation.settings import PrequentialSettings
from streamer.replay.evaluation.sliced import RETRIEVED, SlicedPrequential
from streamer.replay.evaluation.slices import BANDS, SLICES
from streamer.replay.events import Events
from streamer.sources.base import Partition

KS = (1, 5, 10, 20, 50)
STREAM = events(900, users=60, items=80)
LOG = Events([u for u, _ in STREAM], [i for _, i in STREAM], [1_000_000.0 + 10 * n for n in range(len(STREAM))])


def cut(log: Events, size: int) -> Iterator[Events]:
    for start in range(0, len(log), size):
        yield log[start : start + size]


def run(log: Events = LOG, chunk: int = 100, method: str = "xir", **changes: Any) -> RunResult:
    return PrequentialRun(cut(log, chunk), len(log), prequential(small(method), **changes)).run()


def prequential(learner: LearnerSettings, **changes: Any) -> PrequentialSettings:
    return PrequentialSettings(**(vars(learner) | {"batch_size": 32, "window": 200, "points": 10} | changes))


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

    def test_every_baseline_stands_beside_the_method(self, result):
        assert {m.baseline for m in result.measures} == {None, *BASELINES}
        assert result.value("hr", 10, "all", "last-items") > 0
        assert result.value("hr", 10, "new", "last-items") == 0

    def test_only_the_baselines_that_are_asked_for_are_measured(self):
        found = run(LOG[:200], baselines=("co-visitation",))
        assert {m.baseline for m in found.measures} == {None, "co-visitation"}
        assert "most-popular/all/recent" not in found.curve[-1]

    def test_a_slice_without_events_has_no_figure(self):
        found = run(Events(["u"] * 64, ["a", "b"] * 32, None))
        assert found.about["slices"]["second-half/new"] == 0
        assert found.value("hr", 10, "second-half/new") is None
        assert found.value("hr", 10, "second-half/all") == 1.0

    @pytest.mark.parametrize(("rerank", "hits"), [(False, 32), (True, 62)])
    def test_the_first_batch_is_missed_by_the_towers_and_not_by_those_who_know_last_items(self, rerank, hits):
        found = run(Events(["u"] * 64, ["a", "b"] * 32, None), rerank=rerank)
        assert (found.about["slices"]["all"], found.about["slices"]["new"]) == (64, 2)
        assert found.value("hr", 10, "all") == hits / 64
        assert found.value("hr", 10, "new") == 0.0
        for baseline in ("most-popular", "recently-popular", "last-items"):
            assert found.value("hr", 10, "all", baseline) == 62 / 64, "all but the first events of a and b"

    @pytest.mark.parametrize("changes", [{"batch_size": 300}, {"delay_events": 400}, {"delay_seconds": 1e9}])
    def test_figures_are_over_the_same_events_whatever_the_batch_size_and_the_delay(self, result, changes):
        found = run(**changes)
        for name in SLICES:
            if not name.endswith(BANDS):  # those are by what was learned before the batch
                assert found.about["slices"][name] == result.about["slices"][name], name
        assert found.value("hr", 10, "all", "last-items") == pytest.approx(result.value("hr", 10, "all", "last-items"))

    def test_baselines_do_not_depend_on_the_batch_size(self, result):
        found = run(batch_size=300)
        for m in result.measures:
            if m.baseline is not None and m.k and not m.slice.endswith(BANDS):
                assert found.value(m.metric, m.k, m.slice, m.baseline) == pytest.approx(m.value), m

    def test_towers_that_never_learn_miss_everything(self):
        found = run(delay_seconds=1e9, rerank=False)
        ours = [m.value for m in figures(found) if m.baseline is None]
        assert len(ours) > 100
        assert set(ours) == {0.0}
        assert found.popularity.sum() == 0

    def test_a_ranker_that_never_learns_knows_nothing_but_the_users_last_items(self):
        found = run(delay_seconds=1e9)
        assert {m.value for m in figures(found) if m.baseline is None and "new" in m.slice.split("/")} == {0.0}
        assert 0 < found.value("hr", 10, "all") <= found.value("hr", 10, "all", "last-items")
        assert found.popularity.sum() == 0

    def test_how_the_log_is_cut_changes_nothing(self, result):
        assert figures(run(chunk=7)) == figures(result)


class TestCurves:
    def test_points_lie_along_the_whole_stream(self, result):
        done = [point["events"] for point in result.curve]
        assert done == sorted(set(done))
        assert done[-1] == 900
        assert 8 <= len(done) <= 12
        assert [point["events"] for point in result.composition] == done

    def test_the_last_point_holds_the_overall_figures(self, result):
        last = result.curve[-1]
        for name in (None, *BASELINES):
            for slice_ in ("all", "new"):
                assert last[f"{name or MODEL}/{slice_}/overall"] == result.value("hr", 10, slice_, name)
        assert last["time"] == 1_000_000.0 + 10 * 899
        assert last["loss"] > 0

    def test_they_begin_with_the_misses_of_the_first_batch(self):
        first = run(Events(["u"] * 64, ["a", "b"] * 32, None), rerank=False).curve[0]
        assert first["events"] == 32
        for kind in ("recent", "overall"):
            assert first[f"model/all/{kind}"] == first[f"model/new/{kind}"] == 0.0
            assert first[f"last-items/all/{kind}"] == 30 / 32

    def test_where_the_window_has_no_event_of_a_slice_there_is_no_figure(self):
        last = run(Events(["u"] * 64, ["a", "b"] * 32, None), window=32).curve[-1]
        assert last["model/new/recent"] is None
        assert last["model/new/overall"] == 0.0
        assert last["model/all/recent"] == 1.0

    def test_the_cache_is_made_of_three_bands(self, result):
        assert sum(result.composition[-1][band] for band in ("head", "torso", "tail")) == pytest.approx(1)

    def test_windowed_figures_are_of_the_last_events(self):
        """In the second half of this stream everybody repeats one item; the window knows, the mean does not."""
        users = [f"u{n % 10}" for n in range(1200)]
        items = [f"i{n}" for n in range(600)] + [f"j{n % 10}" for n in range(600)]
        last = run(Events(users, items, None)).curve[-1]
        assert last["last-items/all/recent"] == 1.0
        assert last["last-items/all/overall"] == pytest.approx(590 / 1200)


class TestEnd:
    def test_occurrence_and_popularity_are_by_item(self, result):
        assert result.popularity.sum() == 900
        assert result.occurrence.shape == result.popularity.shape == (len({i for _, i in STREAM}),)
        assert result.occurrence.sum() > 0

    def test_progress_is_reported_after_every_batch(self):
        progress: list[tuple[float, str]] = []
        PrequentialRun(cut(LOG, 50), 900, prequential(small(), batch_size=300, window=5000, points=200)).run(
            lambda share, text: progress.append((share, text))
        )
        assert progress == [(1 / 3, "300 events"), (2 / 3, "600 events"), (1, "900 events")]

    def test_what_the_line_refuses_is_counted_and_not_ranked(self):
        broken = Events([*LOG.users[:100], ""], [*LOG.items[:100], "x"], [*LOG.timestamps_s[:100], 0.0])
        found = run(broken)
        accounting = found.about["accounting"]
        assert (accounting["trained"], accounting["dead_lettered"]) == (100, 1)
        assert found.about["slices"]["all"] == 100

    def test_speed_is_measured_with_and_without_ranking(self, result):
        assert 0 < result.about["events_per_second"] < result.about["train_events_per_second"]
        assert result.value("step-ms", 0) > 0


class TestDelay:
    @pytest.mark.parametrize("delay", [{"delay_events": 320}, {"delay_seconds": 3199.0}])
    def test_events_are_learned_only_after_the_delay(self, delay):
        found = run(points=900, rerank=False, **delay)
        assert found.popularity.sum() == (900 - 320) // 32 * 32
        assert found.about["slices"]["all"] == 900
        first = 352  # events that have come when the first batch is learned, after the last of them is ranked
        without_loss = [p["events"] for p in found.curve if p["loss"] is None]
        assert without_loss == [*range(32, first, 32), 900]  # after the last four, no further batch is due
        hit_rates = {p["events"]: p["model/all/overall"] for p in found.curve}
        assert {rate for came, rate in hit_rates.items() if came <= first} == {0.0}
        assert hit_rates[first + 32] > 0

    def test_baselines_that_need_not_learn_hit_within_the_delay(self, result):
        late = run(delay_events=320)
        for ours, at_once in zip(late.curve, result.curve, strict=True):
            assert ours["events"] == at_once["events"]
            assert ours["last-items/all/overall"] == pytest.approx(at_once["last-items/all/overall"])
        assert late.curve[2]["events"] < 320
        assert late.curve[2]["last-items/all/overall"] > 0

    def test_late_feedback_costs_hits_of_those_who_learn_and_none_of_last_items(self, result):
        late = run(delay_events=400)
        for metric in ("hr", "mrr"):
            for slice_ in ("all", "second-half/all"):
                at_once = result.value(metric, 10, slice_, "last-items")
                assert late.value(metric, 10, slice_, "last-items") == pytest.approx(at_once)
        for baseline in ("co-visitation", "recently-popular"):
            assert late.value("hr", 10, "second-half/all", baseline) != result.value(
                "hr", 10, "second-half/all", baseline
            )
        assert late.value("hr", 10, "second-half/all") != result.value("hr", 10, "second-half/all")


def test_wrong_settings_are_all_reported():
    wrong = prequential(
        dataclasses.replace(small(), cache_size=-1),
        batch_size=0,
        ks=(0, 10),
        window=0,
        baselines=("nobody",),
        delay_events=-1,
        points=0,
    )
    with pytest.raises(SettingsError) as caught:
        PrequentialRun([], 0, wrong)
    assert len(caught.value.problems) == 7


class TestSource:
    class Listener:
        def on_assigned(self, partitions: Any) -> dict[Partition, int]:
            return {}

        def on_revoked(self, partitions: Any) -> None: ...

    def test_it_serves_every_event_once_in_order_and_ends(self):
        source = EventsSource(cut(LOG, 64), len(LOG))
        source.open(self.Listener())
        values, offsets = [], []
        while not source.at_end:
            for chunk in source.poll(50, 0.0):
                assert len(chunk) <= 50
                values += chunk.values
                offsets += chunk.offsets
        assert values == [value for _, value, _ in LOG.records()]
        assert offsets == list(range(900))
        assert source.positions() == source.end_offsets() == {Partition("events", 0): 900}

    def test_a_poll_for_nothing_takes_nothing(self):
        source = EventsSource(cut(LOG, 64), len(LOG))
        assert source.poll(0, 0.0) == []
        assert source.poll(3, 0.0)[0].offsets == [0, 1, 2]

    def test_an_empty_chunk_is_not_the_end(self):
        source = EventsSource([Events([], []), LOG[:2], Events([], []), LOG[2:5]], 5)
        assert source.poll(4, 0.0)[0].offsets == [0, 1, 2, 3]
        assert not source.at_end
        assert source.poll(4, 0.0)[0].offsets == [4]
        assert source.poll(0, 0.0) == []
        assert source.at_end


def test_an_empty_log_gives_an_empty_result():
    found = run(Events([], []))
    assert figures(found) == found.curve == []
    assert np.array_equal(found.popularity, [])


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
            (item.encode(), encode_item(item, item_features=said, event_type=CATALOGUE_TYPE), 0)
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
