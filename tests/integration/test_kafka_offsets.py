"""Where training begins and resumes on a real Kafka: nothing is lost or trained twice, or it is said."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Command
from crash_harness import Zygote, records
from kafka import KafkaProducer
from kafka_harness import KafkaHarness, until
from kafka_runs import PATIENT, Topic

from streamer.sources.base import Partition

pytestmark = [pytest.mark.servers, pytest.mark.slow]

LIVE = ["--max-age", "0.1", "--checkpoint-every", "0.2"]

MakeTopic = Callable[[int], Topic]


@pytest.fixture
def make_topic(kafka: KafkaHarness, tmp_path: Path) -> MakeTopic:
    return lambda partitions: Topic(kafka, tmp_path, partitions)


def trained_up_to(kafka: KafkaHarness, topic: Topic) -> bool:
    return kafka.committed(topic.group) == topic.ends


def ended(run: Command, number: signal.Signals = signal.SIGTERM) -> dict[str, Any]:
    """End a run in good order; return its summary."""
    run.signal(number)
    code, out = run.ended()
    assert code == 0, run.said()
    summary: dict[str, Any] = json.loads(out)
    return summary


# a group --------------------------------------------------------------------------------------------------------------


def test_a_trainer_that_comes_back_begins_after_what_others_have_trained(
    kafka: KafkaHarness, zygote: Zygote, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(1)
    topic.append(records(2_000))
    with Command(topic.run("a", *LIVE), tmp_path / "a.log") as a:
        a.wait_until(lambda: trained_up_to(kafka, topic))
        with Command(topic.run("b", *LIVE), tmp_path / "b.log") as b:
            b.wait_until(lambda: kafka.members(topic.group, settled=True) == 2)
            assert ended(a)["consumed"] == 2_000
            topic.append(records(2_000))
            b.wait_until(lambda: trained_up_to(kafka, topic))
            assert ended(b)["consumed"] == 2_000
            assert "Assigned partitions: " in b.said()
    topic.append(records(1_000))
    again = zygote.summary(topic.run("a", "--until-end"))
    assert again["events_this_run"] == 1_000
    assert kafka.committed(topic.group) == topic.ends


def test_a_trainer_that_was_killed_gets_its_partitions_back_at_once(
    kafka: KafkaHarness, zygote: Zygote, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Its session lasts five minutes: a member that is not known again would have to wait for its end."""
    topic = make_topic(2)
    topic.append(records(2_000))
    with Command(topic.run("a", *LIVE, client=PATIENT), tmp_path / "a.log") as a:
        a.wait_until(lambda: trained_up_to(kafka, topic))
        a.kill()
    topic.append(records(1_000))
    summary = zygote.summary(topic.run("a", "--until-end", client=PATIENT))
    assert (summary["consumed"], summary["events_this_run"]) == (3_000, 1_000)
    assert kafka.members(topic.group) == 0, "who ends in good order leaves the group"


@pytest.mark.parametrize("in_transactions", [False, True])
def test_trainers_that_read_to_the_end_do_not_wait_for_a_session(
    kafka: KafkaHarness, make_topic: MakeTopic, tmp_path: Path, in_transactions: bool
) -> None:
    """Behind the last records stand marks of transactions, as `streamer replay` leaves them: nobody trains those."""
    topic = make_topic(2)
    topic.append(records(2_000))
    if in_transactions:
        _mark_ends(topic)
    slow = "import streamer.model.trainer as m; step = m.Trainer.step; import time\n"
    slow += "m.Trainer.step = lambda *a: (time.sleep(0.2), step(*a))[1]"
    arguments = [topic.run(name, "--until-end", "--set", "max_queued_events=64", client=PATIENT) for name in "ab"]
    with Command(arguments[0], tmp_path / "a.log", slow) as a, Command(arguments[1], tmp_path / "b.log", slow) as b:
        a.wait_until(lambda: kafka.members(topic.group) == 2)
        summaries = [json.loads(run.ended()[1]) for run in (a, b)]
    assert all(summary["consumed"] > 0 for summary in summaries)
    assert sum(summary["consumed"] for summary in summaries) == 2_000
    assert kafka.committed(topic.group) == topic.ends


def _mark_ends(topic: Topic) -> None:
    """End each partition with an aborted record and the mark of its transaction."""
    producer = KafkaProducer(bootstrap_servers=topic.kafka.server.bootstrap, transactional_id=f"tx-{topic.name}")
    producer.init_transactions()
    producer.begin_transaction()
    for partition in topic.values:
        producer.send(topic.name, b"aborted", partition=partition.number)
    producer.flush()
    producer.abort_transaction()
    producer.close()


def test_a_new_directory_does_not_begin_where_a_trainer_that_is_gone_has_stopped(
    zygote: Zygote, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    topic.append(records(1_000))
    zygote.summary(topic.run("old", "--until-end"))
    assert zygote.run(topic.run("new", "--until-end")) == 1
    for part in (f"{topic.name}[0] at offset 1,000", "--checkpoint-dir", "--group-id", topic.group):
        assert part in zygote.errors
    assert zygote.summary(topic.run("new", "--until-end", group=f"{topic.group}-2"))["consumed"] == 1_000


# where it begins ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_latest_means_the_first_start(
    kafka: KafkaHarness, zygote: Zygote, make_topic: MakeTopic, tmp_path: Path, number: signal.Signals
) -> None:
    topic = make_topic(2)
    topic.append(records(100))
    arguments = topic.run("a", "--start", "latest", "--checkpoint-every", "3600")
    with Command(arguments, tmp_path / "a.log") as a:
        a.wait_until(lambda: trained_up_to(kafka, topic))
        topic.append(records(500))
        a.signal(number)
        a.ended()
    summary = zygote.summary([*arguments, "--until-end"])
    assert summary["consumed"] == 500


def test_new_partitions_are_read_from_their_beginning_also_after_a_restart(
    kafka: KafkaHarness, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A static member that comes back does not know that it leads the group, and would not look for new partitions."""
    topic = make_topic(1)
    topic.append(records(100))
    arguments = topic.run("a", *LIVE, "--start", "latest", client=[*PATIENT, "metadata_max_age_ms=500"])
    with Command(arguments, tmp_path / "first.log") as a:
        a.wait_until(lambda: trained_up_to(kafka, topic))
        a.kill()
    with Command(arguments, tmp_path / "second.log") as a:
        a.wait_until(lambda: "Assigned partitions: " in a.said())
        with kafka.server.admin() as admin:
            admin.create_partitions({topic.name: 2})
            admin.wait_for_topics([topic.name])
        new = Partition(topic.name, 1)
        topic.values[new] = records(300)
        kafka.forget_producers()
        kafka.append(topic.name, 1, topic.values[new])
        a.wait_until(lambda: trained_up_to(kafka, topic))
        assert f"{new} is new" in a.said()
        assert ended(a)["consumed"] == 300


# logs that are not what they were -------------------------------------------------------------------------------------


def recreate(kafka: KafkaHarness, topic: str) -> None:
    kafka.forget_producers()
    kafka.server.delete_topic(topic)
    with kafka.server.admin() as admin:
        until(lambda: topic not in admin.list_topics())
    kafka.server.create_topic(topic)


def test_a_topic_that_was_recreated_is_another_source(
    kafka: KafkaHarness, zygote: Zygote, make_topic: MakeTopic
) -> None:
    """It is longer than our position: offsets alone do not tell it from the old one. The model may go on with it."""
    topic = make_topic(1)
    topic.append(records(300))
    zygote.summary(topic.run("a", "--until-end"))
    recreate(kafka, topic.name)
    topic.append(records(500))
    assert zygote.run(topic.run("a", "--until-end")) == 1
    assert "another log of that name" in zygote.errors
    moves = zygote.summary(["reset", *topic.run("a", "--to-beginning", "--yes")[1:]])["moves"]
    assert moves[0]["events"] == "a run begins there"
    summary = zygote.summary(topic.run("a", "--until-end"))
    assert (summary["events_this_run"], summary["consumed"]) == (500, 800)


def test_a_topic_that_is_deleted_while_it_is_read_is_an_error(
    kafka: KafkaHarness, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(1)
    topic.append(records(300))
    with Command(topic.run("a", *LIVE), tmp_path / "a.log") as a:
        a.wait_until(lambda: trained_up_to(kafka, topic))
        kafka.forget_producers()
        kafka.server.delete_topic(topic.name)
        assert a.ended()[0] == 1
    assert "was deleted while it was read" in a.said()


def test_a_broker_that_is_away_at_the_start_is_waited_for(
    restartable: KafkaHarness, make_topic: MakeTopic, tmp_path: Path
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


@pytest.mark.parametrize("regrown", [0, 200])
def test_a_log_that_lost_its_end_is_read_on_from_there(
    restartable: KafkaHarness, zygote: Zygote, make_topic: MakeTopic, tmp_path: Path, regrown: int
) -> None:
    """If it has grown beyond our position since, only the leader epoch tells that its records are others."""
    kafka, topic = restartable, make_topic(1)
    log = kafka.server._local.home / "logs" / f"{topic.name}-0" / f"{0:020d}.log"
    topic.append(records(1_000))
    size = log.stat().st_size
    topic.append(records(100))
    assert zygote.summary(topic.run("a", "--until-end"))["consumed"] == 1_100
    kafka.server.kill()
    with log.open("r+b") as file:
        file.truncate(size)
    kafka.server.restart()
    kafka.forget_producers()
    kafka.append(topic.name, 0, records(regrown))
    summary = zygote.summary(topic.run("a", "--until-end"))
    assert summary["events_this_run"] == regrown, zygote.errors
    assert ("a new leader has truncated its log" if regrown else "its last records were lost") in zygote.errors
    kafka.append(topic.name, 0, records(50))
    assert zygote.summary(topic.run("a", "--until-end"))["events_this_run"] == 50
    assert kafka.committed(topic.group) == {Partition(topic.name, 0): 1_050 + regrown}
