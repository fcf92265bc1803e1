"""The line on a real Kafka: killed, rebalanced or cut off from its broker, no event is lost and none is doubled."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_harness import Command, Zygote, records, trained_items
from kafka_harness import KafkaHarness, letters_of, until
from kafka_runs import START_MS, Topic
from line_harness import assert_closed, assert_same_checkpoint, newest, popularity_counts

from streamer.event import EventDecoder
from streamer.ingest.batcher import Batcher
from streamer.ingest.ingest import Ingest
from streamer.ingest.reader import Reader
from streamer.learner import Learner
from streamer.snapshot import CheckpointStore
from streamer.sources.base import Partition
from streamer.sources.kafka.source import KafkaSource

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.fixture
def make_topic(kafka: KafkaHarness, tmp_path: Path) -> Any:
    return lambda partitions: Topic(kafka, tmp_path, partitions)


def positions_in(meta: dict[str, Any], key: str = "positions") -> dict[Partition, int]:
    return {Partition(topic, number): offset for topic, number, offset, *_ in meta[key]}


# killed ---------------------------------------------------------------------------------------------------------------


def test_killed_at_many_random_moments_it_ends_with_the_same_bits(
    kafka: KafkaHarness, zygote: Zygote, make_topic: Any, tmp_path: Path
) -> None:
    """One partition, so that there is one order only."""
    topic = make_topic(1)
    topic.append(records(30_000))
    undisturbed = zygote.summary(topic.run("undisturbed", "--until-end", group="another"))
    assert_closed(undisturbed)
    assert undisturbed["consumed"] == 30_000, zygote.errors
    killed = topic.run("killed", "--until-end", "--checkpoint-every-events", 640)
    disturbed, kills = zygote.summary_after_kills(killed, random.Random(1), longest_s=2.0)
    assert kills >= 3
    assert_closed(disturbed)
    assert disturbed["consumed"] == 30_000, zygote.errors
    assert_same_checkpoint(newest(tmp_path / "killed"), newest(tmp_path / "undisturbed"))
    assert kafka.committed(topic.group) == topic.ends, "the commits have followed"


def test_with_several_partitions_every_event_is_trained_once(
    kafka: KafkaHarness, zygote: Zygote, make_topic: Any, tmp_path: Path
) -> None:
    topic = make_topic(4)
    topic.append(records(30_000))
    arguments = topic.run("killed", "--until-end", "--checkpoint-every-events", 400)
    summary, kills = zygote.summary_after_kills(arguments, random.Random(2), longest_s=2.0)
    assert kills >= 2
    assert_closed(summary)
    assert summary["consumed"] == 30_000
    saved = newest(tmp_path / "killed")
    assert popularity_counts(Learner.from_checkpoint(saved)) == trained_items(topic.all_values)
    assert positions_in(saved.meta) == kafka.committed(topic.group) == topic.ends


def test_a_group_of_two_of_which_one_is_killed(kafka: KafkaHarness, make_topic: Any, tmp_path: Path) -> None:
    """What the survivor trains and what the victim saved is every event once, but for what the victim saved and could
    not commit any more: that the survivor trains too, and we know how much it is."""
    topic = make_topic(4)
    topic.append(records(8_000))
    often = [
        "--max-age",
        "0.1",
        "--checkpoint-every",
        "0.2",
        "--set",
        "max_queued_events=200",
        "--keep-checkpoints",
        "2",
    ]
    with (
        Command(topic.run("victim", *often), tmp_path / "victim.log") as victim,
        Command(topic.run("survivor", *often), tmp_path / "survivor.log") as survivor,
    ):
        stop = threading.Event()
        writer = threading.Thread(target=_keep_writing, args=(topic, stop))
        writer.start()
        both = [CheckpointStore(tmp_path / name, readonly=True) for name in ("victim", "survivor")]
        victim.wait_until(lambda: kafka.members(topic.group) == 2)
        victim.wait_until(lambda: all(_positions_of(store) for store in both))
        victim.process.kill()
        victim.ended()
        committed = kafka.committed(topic.group)
        theirs = newest(tmp_path / "victim")
        stop.set()
        writer.join()
        survivor.wait_until(lambda: kafka.committed(topic.group) == topic.ends)
        survivor.process.send_signal(signal.SIGTERM)
        code, out = survivor.ended()
        assert code == 0, survivor.said()

    assert_closed(json.loads(out))
    ours = newest(tmp_path / "survivor")
    assert positions_in(ours.meta) == topic.ends
    found: Counter[str] = Counter()
    for checkpoint in (theirs, ours):
        assert_closed(checkpoint.meta["accounting"])
        found += popularity_counts(Learner.from_checkpoint(checkpoint))
    saved = positions_in(theirs.meta)
    twice = [v for p, offset in saved.items() for v in topic.values[p][committed.get(p, 0) : offset]]
    assert found == trained_items([*topic.all_values, *twice])


def _is_trained(command: Command, at_least: int) -> bool:
    """Whether a run with JSON logs has told of so many events."""
    told = [json.loads(line).get("trained", 0) for line in command.said().splitlines() if line.startswith("{")]
    return max(told, default=0) >= at_least


def _keep_writing(topic: Topic, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        topic.append(records(400))


def _positions_of(store: CheckpointStore) -> dict[Partition, int]:
    checkpoint = store.load()
    return positions_in(checkpoint.meta) if checkpoint is not None else {}


def test_partitions_that_move_to_a_second_trainer_and_back_are_trained_once(
    kafka: KafkaHarness, make_topic: Any, tmp_path: Path
) -> None:
    """Nobody is killed, so there is nothing to forgive."""
    topic = make_topic(3)
    topic.append(records(6_000))
    often = ["--max-age", "0.1", "--checkpoint-every", "3600", "--set", "max_queued_events=200", "--log-format", "json"]
    stop = threading.Event()
    writer = threading.Thread(target=_keep_writing, args=(topic, stop))
    with Command(topic.run("first", *often), tmp_path / "first.log") as first:
        first.wait_until(lambda: kafka.members(topic.group) == 1)
        writer.start()
        with Command(topic.run("second", *often), tmp_path / "second.log") as second:
            second.wait_until(lambda: kafka.members(topic.group) == 2)
            second.wait_until(lambda: kafka.committed(topic.group))  # the first has handed over
            second.wait_until(lambda: _is_trained(second, at_least=1_000))
            second.process.send_signal(signal.SIGTERM)
            assert second.ended()[0] == 0, second.said()
        stop.set()
        writer.join()
        first.process.send_signal(signal.SIGTERM)
        code, out = first.ended()
        assert code == 0, first.said()
    assert_closed(json.loads(out))
    learners = [Learner.from_checkpoint(newest(tmp_path / name)) for name in ("first", "second")]
    assert all(popularity_counts(learner).total() > 0 for learner in learners)
    done = [v for p, offset in kafka.committed(topic.group).items() for v in topic.values[p][:offset]]
    assert popularity_counts(learners[0]) + popularity_counts(learners[1]) == trained_items(done)


# the broker -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def restartable(kafka: KafkaHarness) -> Iterator[KafkaHarness]:
    """A broker that may be killed; it runs again after the test."""
    if not kafka.server.can_restart:
        pytest.skip("this broker is not ours to kill")
    yield kafka
    if not kafka.server.running:
        kafka.server.restart()


def test_a_broker_that_is_killed_and_comes_back_changes_nothing(
    restartable: KafkaHarness, zygote: Zygote, make_topic: Any, tmp_path: Path
) -> None:
    topic = make_topic(1)
    topic.append(records(20_000))
    zygote.summary(topic.run("undisturbed", "--until-end", group="another"))
    small = ["--until-end", "--checkpoint-every-events", 320, "--set", "max_queued_events=400"]
    slow_down = "import streamer.model.trainer as m; step = m.Trainer.step; import time\n"
    slow_down += "m.Trainer.step = lambda *a: (time.sleep(0.01), step(*a))[1]"
    with Command(topic.run("cut off", *small), tmp_path / "log", slow_down) as run:
        store = CheckpointStore(tmp_path / "cut off", readonly=True)
        run.wait_until(lambda: len(store.paths()) >= 2)
        restartable.server.kill()
        run.wait_until(lambda: "does not respond" in run.said())
        restartable.server.restart()
        code, out = run.ended()
    assert code == 0, run.said()
    assert "responds again" in run.said()
    assert json.loads(out)["consumed"] == 20_000
    assert_same_checkpoint(newest(tmp_path / "cut off"), newest(tmp_path / "undisturbed"))


def test_a_broker_that_is_away_at_the_start_is_waited_for(
    restartable: KafkaHarness, make_topic: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    topic.append(records(1_000))
    restartable.server.stop()
    arguments = topic.run("late", "--until-end", "--kafka", "bootstrap_timeout_ms=500")
    with Command(arguments, tmp_path / "log") as run:
        run.wait_until(lambda: run.said().count("trying again in") >= 2)
        restartable.server.restart()
        code, out = run.ended()
    assert code == 0, run.said()
    assert "no Kafka broker responded at" in run.said()
    assert json.loads(out)["consumed"] == 1_000


# what else a topic has ------------------------------------------------------------------------------------------------


def test_it_leaves_the_group_in_good_order_when_it_is_asked_to_end(
    kafka: KafkaHarness, make_topic: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    topic.append(records(1_000))
    with Command(topic.run("run", "--max-age", "0.1", "--checkpoint-every-events", "300"), tmp_path / "log") as run:
        run.wait_until(lambda: CheckpointStore(tmp_path / "run", readonly=True).paths())
        run.process.send_signal(signal.SIGTERM)
        code, out = run.ended()
    assert code == 0, run.said()
    saved = newest(tmp_path / "run")
    assert json.loads(out)["consumed"] == saved.meta["accounting"]["consumed"]
    assert kafka.committed(topic.group) == positions_in(saved.meta)
    assert kafka.members(topic.group) == 0


def test_dead_letters_come_to_their_topic(kafka: KafkaHarness, zygote: Zygote, make_topic: Any, tmp_path: Path) -> None:
    topic = make_topic(2)
    topic.append(records(3_000))
    letters = kafka.make_topic(1)
    summary = zygote.summary(topic.run("run", "--until-end", "--dead-letters", letters))
    bad = {(p.number, k): v for p, written in topic.values.items() for k, v in enumerate(written) if v[:2] == b"no"}
    assert summary["dead_lettered"] == len(bad) > 2
    found = letters_of(kafka, letters, len(bad))
    assert {(int(h["partition"]), int(h["offset"])): value for _, value, h, _ in found} == bad
    assert {(h["reason"], h["topic"]) for _, _, h, _ in found} == {(b"not_json", topic.name.encode())}


def test_it_begins_at_a_time(kafka: KafkaHarness, zygote: Zygote, make_topic: Any, tmp_path: Path) -> None:
    topic = make_topic(2)
    topic.append(records(1_000))  # a millisecond apart on each partition
    start = (START_MS + 400) / 1000
    summary = zygote.summary(topic.run("run", "--until-end", "--start-timestamp", start))
    assert summary["consumed"] == 200
    again = zygote.summary(topic.run("run", "--until-end", "--start-timestamp", start))
    assert again["events_this_run"] == 0, "a time is for the beginning; the checkpoint rules"


@pytest.mark.parametrize("kind", ["gzip", "lz4", "zstd"])
def test_a_compressed_topic(zygote: Zygote, make_topic: Any, tmp_path: Path, kind: str) -> None:
    topic = make_topic(2)
    topic.append(records(3_000), compression=kind)
    summary = zygote.summary(topic.run("run", "--until-end"))
    assert_closed(summary)
    saved = Learner.from_checkpoint(newest(tmp_path / "run"))
    assert popularity_counts(saved) == trained_items(topic.all_values)


def test_lag_is_what_is_not_trained_yet(kafka: KafkaHarness, make_topic: Any) -> None:
    topic = make_topic(2)
    topic.append(records(1_000))
    settings = kafka.settings(topic.name)
    ingest = Ingest(Batcher(100))
    reader = Reader(lambda: KafkaSource(settings), EventDecoder(), ingest, max_queued_events=200)
    reader.start()
    try:
        until(lambda: sum(ingest.lag().values()) == 1_000)
        with ingest.batch(30) as batch:
            assert batch is not None
        assert sum(ingest.lag().values()) == 1_000 - batch.consumed
        topic.append(records(200))
        until(lambda: sum(ingest.lag().values()) == 1_200 - batch.consumed)
    finally:
        reader.stop()
