"""What a scrape sees after a real run, and of every state that a line can be in."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from line_harness import TOPIC, append, assert_same_learner, events, memory_log, micro_batch, small, until
from prometheus_client import CollectorRegistry, generate_latest

from streamer.cache_store.store import StoreStatus
from streamer.evaluation import Prequential
from streamer.event import EventSettings, encode
from streamer.learner import OnlineLearner
from streamer.metrics.catalogue import CATALOGUE, EVIDENCE
from streamer.metrics.monitor import KEPT_LETTERS, Monitor
from streamer.metrics.observer import Observer
from streamer.metrics.sampler_report import SamplerReport
from streamer.metrics.status import Member, Status
from streamer.snapshot.checkpointer import SaveStats
from streamer.snapshot.publisher import PublishStatus
from streamer.sources.base import Partition
from tests.streamer.test_pipeline import Line

EVENT_S = 1_700_000_000.0


def records(count: int) -> list[bytes]:
    """Purchases, of which every seventh is a view and every eleventh no event."""
    values = [encode(user, item, EVENT_S, event_type="buy") for user, item in events(count)]
    values[::7] = [encode("u", "i", EVENT_S, event_type="view")] * len(values[::7])
    values[3::11] = [b"no event"] * len(values[3::11])
    return values


class WatchedLine(Line):
    """A line on records in memory, and a monitor of it."""

    def __init__(self, values: list[bytes], directory: Any = None, partitions: int = 2, **settings: Any) -> None:
        purchases = EventSettings(event_types=("buy",))
        super().__init__(memory_log(values, partitions), directory, events=purchases, evaluate=True, **settings)
        self.monitor = Monitor(CollectorRegistry(), "a log in memory")
        self.pipeline.watch(self.monitor)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> WatchedLine:
    """A run to the end of 600 records."""
    line = WatchedLine(records(600), tmp_path_factory.mktemp("run"), checkpoint_every_events=200)
    line.run()
    return line


def value(line: WatchedLine, name: str, **labels: str) -> float:
    found = line.monitor.instruments.value(name, **labels)
    assert found is not None, (name, labels)
    return found


class TestAfterARun:
    def test_events_are_accounted_for_as_the_summary_says(self, ended):
        summary = ended.pipeline.summary()
        assert summary["filtered"] > 0
        for name in ("consumed", "trained", "filtered"):
            assert value(ended, f"streamer_events_{name}_total") == summary[name]
        assert value(ended, "streamer_dead_letters_total", reason="not_json") == summary["dead_lettered"] > 0
        assert value(ended, "streamer_model_events") == summary["consumed"] == 600

    def test_nothing_waits_any_more_and_all_is_counted(self, ended):
        for partition in ("0", "1"):
            assert value(ended, "streamer_lag_records", topic=TOPIC, partition=partition) == 0
        steps, trained = ended.learner.state.trainer.steps, ended.pipeline.accounting.trained
        expected = {"partitions": 2, "queued_events": 0, "rebalances_total": 1, "alive": 0, "ready": 0}
        expected |= {"steps_total": steps, "batch_events_sum": trained}
        assert {name: value(ended, f"streamer_{name}") for name in expected} == expected
        assert value(ended, "streamer_batch_age_seconds_count") == value(ended, "streamer_batch_events_count")
        assert value(ended, "streamer_batch_age_seconds_sum") > 0

    def test_delays_are_those_of_the_events_own_time(self, ended):
        assert value(ended, "streamer_event_delay_seconds") > 1e6
        mean = value(ended, "streamer_event_to_trained_seconds_sum") / value(
            ended, "streamer_event_to_trained_seconds_count"
        )
        assert mean == pytest.approx(value(ended, "streamer_event_delay_seconds"), rel=1e-3)

    def test_each_phase_was_timed(self, ended):
        steps = ended.learner.state.trainer.steps
        counts = {p: value(ended, "streamer_phase_seconds_count", phase=p) for p in ("rank", "step")}
        assert counts == {"rank": steps, "step": steps}
        for phase in ("poll", "decode", "checkpoint"):
            assert value(ended, "streamer_phase_seconds_count", phase=phase) > 0
        assert value(ended, "streamer_phase_seconds_count", phase="store") >= 2 * steps
        ranked = value(ended, "streamer_phase_seconds_sum", phase="rank")
        assert ranked == pytest.approx(ended.pipeline._prequential.seconds, abs=1e-6)

    def test_learning_is_what_the_line_says(self, ended):
        status = ended.pipeline.status
        assert value(ended, "streamer_loss") == pytest.approx(status.loss)
        for side in ("users", "items"):
            count = len(getattr(ended.learner.state, side))
            assert value(ended, f"streamer_{side}") == value(ended, f"streamer_new_{side}_total") == count
        for name in ("model", "most-popular"):
            figure = ended.pipeline._prequential.figure(name).recent
            assert value(ended, "streamer_prequential_hit_rate", recommender=name, k="10") == figure
            assert figure > 0
        name, hit_rate, _ = ended.pipeline._prequential.best_baseline()
        assert value(ended, "streamer_prequential_best_baseline_hit_rate", baseline=name, k="10") == hit_rate > 0
        assert value(ended, "streamer_prequential_events_total") == ended.pipeline._prequential.model.events

    def test_what_decides_the_ranking_is_told_by_history_and_evidence(self, ended):
        found = {
            history: [value(ended, "streamer_ranker_influence_share", history=history, evidence=e) for e in EVIDENCE]
            for history in ended.monitor.status.influence
        }
        assert found
        for history, shares in ended.monitor.status.influence.items():
            assert found[history] == list(shares.values())
            assert sum(found[history]) == pytest.approx(1)

    def test_no_id_of_a_user_or_item_is_in_the_exposition(self, ended):
        text = generate_latest(ended.monitor.registry).decode()
        assert all(f'"{name}"' not in text for name in [*ended.learner.state.users.ids, *ended.learner.state.items.ids])


def test_every_metric_is_set_with_labels_that_the_catalogue_knows(tmp_path):
    line = WatchedLine(records(120), tmp_path)
    line.run()
    members = [Member([Partition("t", 0)], 1, 2, 3, 4, 5)]
    publishing = PublishStatus(at_s=1.0)
    store = StoreStatus(errors={"slow": 1})
    line.monitor.refreshed(
        dataclasses.replace(line.pipeline.status, store=store, members=members, publishing=publishing)
    )
    found = {name for name, metric in CATALOGUE.items() if metric.kind == "histogram"}
    for values in line.monitor.instruments._values.values():
        for key in values:
            name, *labels = (key,) if isinstance(key, str) else key
            found.add(name)
            for label, given in zip(CATALOGUE[name].labels, labels, strict=True):
                assert given in label.values or not label.values
    assert found == set(CATALOGUE)


def test_counters_start_at_zero_where_a_model_goes_on(tmp_path):
    WatchedLine(records(300), tmp_path).run()
    again = WatchedLine(records(400), tmp_path)
    again.run()
    assert value(again, "streamer_events_consumed_total") == 100
    assert value(again, "streamer_model_events") == 400


def test_watching_changes_nothing_that_is_learned(tmp_path):
    watched, plain = WatchedLine(records(300)), WatchedLine(records(300))
    plain.pipeline.watch(Observer())
    watched.run()
    plain.run()
    assert_same_learner(watched.learner, plain.learner)


class TestStates:
    """Of a monitor that is told one thing after another."""

    @pytest.fixture
    def monitor(self) -> Monitor:
        found = Monitor(CollectorRegistry())
        found.begin(OnlineLearner(small()), None)
        return found

    def test_lag_is_by_partition_and_goes_with_it(self, monitor):
        first, second = Partition("a", 0), Partition("b", 1)
        monitor.refreshed(Status(partitions={first: 3, second: None}, lag={first: 7, second: 9}))
        assert monitor.instruments.value("streamer_lag_records", topic="b", partition="1") == 9
        monitor.refreshed(Status(partitions={first: 3}, lag={first: 5}))
        assert monitor.instruments.value("streamer_lag_records", topic="a", partition="0") == 5
        assert monitor.instruments.value("streamer_lag_records", topic="b", partition="1") is None
        assert monitor.instruments.value("streamer_partitions") == 1

    def test_each_figure_of_the_status_has_its_metric(self, monitor):
        numbers = itertools.count(1)

        def filled(part: Any) -> Any:
            """The same with another number in each field that has one."""
            values = {}
            for field in dataclasses.fields(part):
                if isinstance(getattr(part, field.name), int | float):
                    values[field.name] = next(numbers)
            return dataclasses.replace(part, **values)

        saves = filled(SaveStats(seconds=0.0, size_bytes=0))
        sampler = filled(SamplerReport())
        status = filled(
            Status(loss=0.0, store=filled(StoreStatus()), saves=saves, sampler=sampler, publishing=PublishStatus())
        )
        status.store.errors |= {"slow": 11, "never heard of": 12, "nor of this": 1}
        monitor.refreshed(status)
        value = monitor.instruments.value
        metrics = [metric for metric in CATALOGUE.values() if metric.path]
        assert len(metrics) > 30
        for metric in metrics:
            part, _, name = metric.path.rpartition(".")
            of = getattr(status, part) if part else status
            assert value(metric.name) == (of[name] if isinstance(of, dict) else getattr(of, name))
        assert value("streamer_checkpoints_total", result="failed") == status.saves.failed
        assert value("streamer_store_errors_total", reason="slow") == 11
        assert value("streamer_store_errors_total", reason="other") == 13

    def test_the_parts_of_the_loss_make_the_loss(self, monitor):
        learner = OnlineLearner(small())
        for _ in range(2):
            step = learner.learn_batch(micro_batch(events(16))).step
        monitor.refreshed(Status(draws=step.parts))
        batch, cache = (monitor.instruments.value("streamer_loss_part", part=part) for part in ("batch", "cache"))
        weight = learner.settings.cache_weight
        assert float(step.loss) == pytest.approx((1 - weight) * batch + weight * cache, rel=1e-4)

    def test_the_age_of_a_checkpoint_goes_on_while_nothing_moves(self):
        clock, wall = [50.0], [1000.0]
        monitor = Monitor(CollectorRegistry(), clock=lambda: clock[0], wall=lambda: wall[0])
        wall[0] += 12
        assert monitor.instruments.value("streamer_checkpoint_age_seconds") == 12
        monitor.begin(OnlineLearner(small()), None)
        monitor.refreshed(Status(checkpoint_age_s=3.0, at_s=50.0))
        clock[0] += 7
        assert monitor.instruments.value("streamer_checkpoint_age_seconds") == 10

    def test_the_latest_dead_letters_are_kept_and_no_more(self):
        line = WatchedLine([b"bad %d" % k for k in range(50)], partitions=1)
        line.run()
        letters = [letter for _, letter in line.monitor.letters()]
        assert [letter.offset for letter in letters] == list(range(49, 49 - KEPT_LETTERS, -1))

    def test_four_events_of_a_batch_are_timed_however_large_it_is(self, monitor):
        for size in (1, 2, 3, 4, 5, 7, 100):
            before = monitor.instruments.value("streamer_event_to_trained_seconds_count")
            monitor.trained(micro_batch(events(size), timestamps_s=[1.0] * size))
            assert monitor.instruments.value("streamer_event_to_trained_seconds_count") - before <= 4

    def test_clocks_that_are_ahead_give_a_negative_delay_but_no_negative_age(self):
        monitor = Monitor(CollectorRegistry(), wall=lambda: 100.0)
        monitor.begin(OnlineLearner(small()), None)
        monitor.trained(micro_batch(events(1), timestamps_s=[130.0]))
        monitor.refreshed(Status())
        assert monitor.instruments.value("streamer_event_delay_seconds") == -30
        assert monitor.instruments.value("streamer_event_to_trained_seconds_sum") == 0

    def test_what_ranking_takes_is_no_part_of_the_step(self):
        monitor, learner = Monitor(CollectorRegistry()), OnlineLearner(small())
        prequential = Prequential(learner)
        prequential.seconds = 5.0  # before it was watched
        monitor.begin(learner, prequential)
        for ranked_s, step_s in ((0.25, 1.0), (0.0, 2.0)):
            prequential.seconds += ranked_s
            monitor.timed("step", ranked_s + step_s)
        assert monitor.instruments.value("streamer_phase_seconds_sum", phase="rank") == pytest.approx(0.25)
        assert monitor.instruments.value("streamer_phase_seconds_sum", phase="step") == pytest.approx(3.0)


def test_a_line_without_checkpoints_and_evaluation_can_be_watched():
    line = WatchedLine(records(64))
    line.pipeline._prequential = None
    line.pipeline.watch(line.monitor)
    line.run()
    assert value(line, "streamer_events_consumed_total") == 64
    assert line.monitor.instruments.value("streamer_prequential_hit_rate", recommender="model", k="10") is None


def test_ready_follows_a_line_that_waits_and_trains():
    line = WatchedLine([], partitions=1, until_end=False, max_age_s=0.0)
    line.pipeline.start()
    health = line.monitor.health
    assert not health.ready().ok
    until(lambda: health.ready().ok, step=lambda: line.pipeline.step(0.01))
    assert health.ready().reason == "caught up"
    append(line.log, records(40))
    until(lambda: line.learner.state.trainer.steps > 0, step=lambda: line.pipeline.step(0.05))
    assert health.ready().ok
    line.pipeline.close()
    assert not health.ready().ok
