from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import sys
import threading
import urllib.request
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from commands import Command
from servers.process import free_ports

from streamer.evaluation import LINE_BASELINES, EventSampler, Prequential, Tally
from streamer.ingest.batcher import MicroBatch
from streamer.learner import OnlineLearner
from streamer.model.settings import LearnerSettings
from streamer.replay.cli.demo import DemoSettings, demo_plan, next_commands, summary
from streamer.replay.cli.parts import child
from streamer.replay.synthetic import SyntheticStream
from streamer.settings import RunSettings

pytestmark = pytest.mark.slow
EVENTS = 8_000


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, str]:
    """Exit code, output and errors of a short run, in an environment that asks for something else altogether."""
    directory = tmp_path_factory.mktemp("demo")
    arguments = ["demo", "--events", EVENTS, "--seconds", 3600, "--data-dir", directory, "--json"]
    other = {"BOOTSTRAP_SERVERS": "127.0.0.1:1", "BATCH_SIZE": "3", "LEARNING_RATE": "0.5"}
    with Command(arguments, directory / "said", **{f"STREAMER_{name}": value for name, value in other.items()}) as demo:
        code, out = demo.ended()
        return code, out, demo.said()


@pytest.fixture(scope="module")
def figures(ended: tuple[int, str, str]) -> dict[str, Any]:
    code, out, said = ended
    assert code == 0, said
    assert "\x1b" not in out + said, "in a pipe the log is plain"
    assert "learning from a made-up stream" in said
    found: dict[str, Any] = json.loads(out)
    return found


def test_every_event_is_learned_and_what_came_of_it_is_reported(figures: dict[str, Any]):
    """How many events are ranked depends on how fast the machine is: whose hit rate is higher is tested below."""
    assert figures["consumed"] == figures["trained"] + figures["filtered"] + figures["dead_lettered"]
    assert (figures["trained"], figures["ended_by"], figures["lag"]) == (EVENTS, "events", 0)
    assert 0 <= figures["hit_rate_at_10"] <= 1
    assert figures["best_baseline"] in LINE_BASELINES
    assert sum(figures["cache"].values()) == pytest.approx(1)
    answer = figures["answer"]
    assert answer["known"]
    assert answer["step"] == figures["steps"]
    assert len(answer["items"]) == 3
    assert not set(answer["recent"]) & {one["item"] for one in answer["items"]}
    assert Path(figures["checkpoint"]).is_file()
    assert Path(figures["checkpoint"]).parent == Path(figures["checkpoint_dir"])


def test_the_model_is_above_the_best_baseline_on_the_stream_of_the_demo(tmp_path: Path):
    """The learner of the demo, with as many events of each batch ranked on every machine."""
    settings = demo_plan(DemoSettings(events=512), tmp_path).trainer
    learner = OnlineLearner(settings.only(LearnerSettings))
    test = Prequential(learner, EventSampler(time_share=None), Tally(window=1000))
    chunks = iter(SyntheticStream())
    while test.events < 24_000:
        events = next(chunks)
        for start in range(0, len(events.users), settings.batch_size):
            part = slice(start, start + settings.batch_size)
            learner.learn_batch(MicroBatch(events.users[part], events.items[part], events.timestamps_s[part]), test)
    baseline, model = test.best_baseline(), test.model.recent
    assert baseline is not None
    assert model is not None
    assert model > baseline.hit_rate > 0


def test_the_summary_ends_with_what_the_server_answered(figures: dict[str, Any]):
    text = "\n".join(summary(figures))
    assert f"{EVENTS:,} = {EVENTS:,} trained + 0 filtered + 0 dead-lettered" in text
    assert f"The server at {figures['server']} answered" in text
    assert f"$ curl -s '{figures['server']}users/{figures['answer']['user']}/recommendations?k=3'" in text
    assert json.dumps(figures["answer"]) in text


def test_the_next_commands_work_as_they_are_printed(
    figures: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("shutil.which", lambda name: None)
    names = []
    for printed in next_commands(figures):
        *program, name = shlex.split(printed)[:4]
        assert program == [sys.executable, "-m", "streamer"]
        names.append(name)
        with Command(shlex.split(printed)[3:], tmp_path / "said", cwd=tmp_path) as command:
            assert command.ended()[0] == 0, (printed, command.said())
    assert names == ["inspect", "recommend", "export", "replay", "run"]


def test_ctrl_c_ends_it_with_the_summary(tmp_path: Path):
    with Command(["demo", "--data-dir", tmp_path, "--log-format", "json"], tmp_path / "said") as demo:
        demo.wait_until(lambda: re.search(r'"consumed": ?[1-9]', demo.said()))
        demo.signal(signal.SIGINT)
        code, out = demo.ended()
        assert code == 0, demo.said()
    assert "You stopped it." in out
    assert "Where to look next" in out


def test_with_a_server_it_goes_on_and_what_is_clicked_counts(tmp_path: Path):
    (port,) = free_ports(1)
    arguments = ["--serve", "--port", port, "--events", 3000, "--rate", 3000, "--no-open"]

    def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        content = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/{path}", content, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def learned() -> bool:
        with contextlib.suppress(OSError):
            return bool(ask("status")["items"]) and not ask("status")["events_not_learned"]
        return False

    with Command(["demo", "--data-dir", tmp_path, "--log-format", "json", *arguments], tmp_path / "said") as demo:
        demo.wait_until(learned)
        step, item = ask("status")["step"], ask("users/me/recommendations")["items"][0]["item"]
        ask("events", {"user": "me", "item": item})
        demo.wait_until(lambda: ask("users/me/recommendations")["recent"] == [item])
        demo.wait_until(lambda: learned() and ask("status")["step"] > step)  # the trainer learns it, too
        demo.signal(signal.SIGINT)
        code, out = demo.ended()
        assert code == 0, demo.said()
    assert "Where to look next" in out


def test_a_log_that_cannot_be_written_is_one_clear_line(tmp_path: Path):
    (tmp_path / "log.sqlite3").write_bytes(b"this is no database" * 100)
    with Command(["demo", "--data-dir", tmp_path], tmp_path / "said") as demo:
        assert demo.ended()[0] == 1
        said = demo.said()
    assert said.splitlines()[-1].startswith("streamer: ")
    assert "not a database" in said
    assert "Traceback" not in said


def test_the_trainer_has_the_defaults_of_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("STREAMER_BATCH_SIZE", "7")
    ours, defaults = demo_plan(DemoSettings(events=1000), tmp_path).trainer, RunSettings()
    changed = {name for name in RunSettings.all() if getattr(ours, name) != getattr(defaults, name)}
    assert changed == {"data_dir", "publish_dir", "checkpoint_every_s"}


def test_a_writer_that_fails_says_why(tmp_path: Path):
    ended: Queue[int] = Queue()
    (tmp_path / "file").touch()
    writer = demo_plan(DemoSettings(), tmp_path / "file" / "data").writer
    with child(writer, lambda code, _: ended.put(code)) as why:
        assert ended.get(timeout=60) == 1
    assert "streamer: " in why()


def test_a_writer_ends_with_the_block_and_that_is_no_failure(tmp_path: Path):
    ended: Queue[int] = Queue()
    with child(demo_plan(DemoSettings(rate=10.0), tmp_path).writer, lambda code, _: ended.put(code)):
        threads = [thread for thread in threading.enumerate() if thread.name == "replay"]
        assert len(threads) == 1
    assert not threads[0].is_alive()
    assert ended.empty()
