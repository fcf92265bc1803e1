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
from group_harness import signal_at
from kafka_harness import KafkaHarness
from kafka_runs import Topic
from line_harness import assert_closed, assert_same_checkpoint, newest, popularity_counts

from streamer.learner import Learner
from streamer.snapshot import CheckpointStore
from streamer.sources.base import Partition

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.fixture
def make_topic(kafka: KafkaHarness, tmp_path: Path) -> Any:
    return lambda partitions: Topic(kafka, tmp_path, partitions)


def positions_in(meta: dict[str, Any], key: str = "positions") -> dict[Partition, int]:
    return {Partition(topic, number): offset for topic, number, offset, *_ in meta[key]}


# killed ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("partitions", "min_kills"), [(1, 3), (4, 2)])
def test_killed_at_many_random_moments_it_ends_with_every_event_trained_once(
    kafka: KafkaHarness, zygote: Zygote, make_topic: Any, tmp_path: Path, partitions: int, min_kills: int
) -> None:
    """With one partition there is one order only: then also with the same bits."""
    topic = make_topic(partitions)
    topic.append(records(30_000))
    arguments = topic.run("killed", "--until-end", "--checkpoint-every-events", 640)
    summary, kills = zygote.summary_after_kills(arguments, random.Random(partitions), longest_s=2.0)
    assert kills >= min_kills
    assert_closed(summary)
    assert summary["consumed"] == 30_000, zygote.errors
    saved = newest(tmp_path / "killed")
    assert popularity_counts(Learner.from_checkpoint(saved)) == trained_items(topic.all_values)
    assert positions_in(saved.meta) == kafka.committed(topic.group) == topic.ends, "the commits have followed"
    if partitions == 1:
        zygote.summary(topic.run("undisturbed", "--until-end", group="another"))
        assert_same_checkpoint(saved, newest(tmp_path / "undisturbed"))


def test_a_group_of_two_of_which_one_is_killed(kafka: KafkaHarness, make_topic: Any, tmp_path: Path) -> None:
    """What the survivor trains and what the victim saved is every event once, but for what the victim saved and could
    not commit any more: that the survivor trains too, and we know how much it is."""
    topic = make_topic(4)
    topic.append(records(8_000))
    often = ["--max-age", "0.1", "--checkpoint-every", "0.2", "--keep-checkpoints", "2"]
    often += ["--set", "max_queued_events=200"]
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


def test_a_trainer_that_slept_longer_than_its_session_drops_what_it_has_fetched_and_joins_again(
    kafka: KafkaHarness, make_topic: Any, tmp_path: Path
) -> None:
    """It sleeps in its third step, with the rest of the topic queued; its successor trains all of it."""
    topic = make_topic(1)
    topic.append(records(4_000))
    often = ["--max-age", "0.1", "--checkpoint-every", "0.2"]
    sleeps = signal_at("streamer.pipeline:Pipeline:_learn", 3, "SIGSTOP")
    with Command(topic.run("sleeper", "--checkpoint-every", "3600"), tmp_path / "sleeper.log", sleeps) as sleeper:
        state = Path(f"/proc/{sleeper.process.pid}/stat")
        sleeper.wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
        with Command(topic.run("successor", *often), tmp_path / "successor.log") as successor:
            successor.wait_until(lambda: kafka.committed(topic.group) == topic.ends)
            sleeper.process.send_signal(signal.SIGCONT)
            sleeper.wait_until(lambda: "Lost partitions" in sleeper.said())
            sleeper.wait_until(lambda: kafka.members(topic.group, settled=True) == 2)
            for command, trained in ((sleeper, 3 * 64), (successor, trained_items(topic.all_values).total())):
                command.process.send_signal(signal.SIGTERM)
                code, out = command.ended()
                assert code == 0, command.said()
                assert json.loads(out)["trained"] == trained, command.said()
    assert kafka.committed(topic.group) == topic.ends


def _keep_writing(topic: Topic, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        topic.append(records(400))


def _positions_of(store: CheckpointStore) -> dict[Partition, int]:
    checkpoint = store.load()
    return positions_in(checkpoint.meta) if checkpoint is not None else {}


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
