from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.process import free_ports

from streamer.evaluation import LINE_BASELINES, EventSampler, Prequential, Tally
from streamer.ingest.batcher import MicroBatch
from streamer.learner import Learner
from streamer.model.settings import LearnerSettings
from streamer.replay.cli.demo import DemoSettings, child, children, demo_settings, summary
from streamer.replay.synthetic import SyntheticStream
from streamer.settings import RunSettings

pytestmark = pytest.mark.slow


def demo(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "streamer", "demo", *map(str, arguments)]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A short run, in an environment that asks for something else altogether."""
    directory = tmp_path_factory.mktemp("demo")
    environment = os.environ | {
        "STREAMER_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "STREAMER_BATCH_SIZE": "3",
        "STREAMER_LEARNING_RATE": "0.5",
    }
    return subprocess.run(
        demo("--events", 20_000, "--seconds", 3600, "--data-dir", directory, "--json"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def figures(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_every_event_is_learned_and_the_accounting_closes(figures: dict[str, Any]):
    assert figures["consumed"] == figures["trained"] + figures["filtered"] + figures["dead_lettered"]
    assert figures["trained"] == 20_000
    assert figures["ended_by"] == "events"
    assert figures["lag"] == 0


def test_hit_rates_of_the_model_and_the_best_baseline_are_reported(figures: dict[str, Any]):
    """How many events are ranked depends on how fast the machine is: which is higher is tested below."""
    assert 0 <= figures["hit_rate_at_10"] <= 1
    assert figures["best_baseline"] in LINE_BASELINES
    assert sum(figures["cache"].values()) == pytest.approx(1)


def test_the_model_is_above_the_best_baseline_on_the_stream_of_the_demo(tmp_path: Path):
    """The learner of the demo, with as many events of each batch ranked on every machine."""
    settings = demo_settings(DemoSettings(events=512), tmp_path)
    learner = Learner(settings.only(LearnerSettings))
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


def test_three_people_get_recommendations_that_they_did_not_have_lately(figures: dict[str, Any]):
    assert len(figures["recommendations"]) == 3
    for one in figures["recommendations"]:
        assert len(one["recent"]) == len(one["recommended"]) == 5
        assert not set(one["recent"]) & set(one["recommended"])


def test_what_is_named_is_there(figures: dict[str, Any]):
    assert Path(figures["checkpoint"]).is_file()
    assert Path(figures["checkpoint"]).parent == Path(figures["checkpoint_dir"])


def test_in_a_pipe_the_log_is_plain(ended: subprocess.CompletedProcess[str]):
    assert "\x1b" not in ended.stderr + ended.stdout
    assert "learning from a made-up stream" in ended.stderr


def test_the_summary_names_the_next_commands(figures: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/streamer", "demo"])
    monkeypatch.setenv("PATH", "")
    text = "\n".join(summary(figures))
    assert "20,000 = 20,000 trained + 0 filtered + 0 dead-lettered" in text
    for command in ("inspect", "recommend", "export"):
        assert f"/somewhere/bin/streamer {command} --checkpoint-dir {figures['checkpoint_dir']}" in text


def test_ctrl_c_ends_it_with_the_summary(tmp_path: Path):
    process = subprocess.Popen(
        demo("--data-dir", tmp_path, "--log-format", "json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for_events(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "You stopped it." in out
    assert "Where to look next" in out


def test_with_a_server_it_goes_on_and_what_is_clicked_counts(tmp_path: Path):
    (port,) = free_ports(1)
    arguments = ("--serve", "--serve-port", port, "--events", 3000, "--rate", 3000, "--no-open")
    process = subprocess.Popen(
        demo("--data-dir", tmp_path, "--log-format", "json", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )

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

    try:
        until(learned)
        step, item = ask("status")["step"], ask("users/me/recommendations")["items"][0]["item"]
        ask("events", {"user": "me", "item": item})
        until(lambda: ask("users/me/recommendations")["recent"] == [item])
        until(lambda: learned() and ask("status")["step"] > step)  # the trainer learns it, too
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Where to look next" in out


def until(done: Callable[[], bool], patience_s: float = 120.0) -> None:
    deadline = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_for_events(process: subprocess.Popen[str], patience_s: float = 120.0) -> None:
    deadline = time.monotonic() + patience_s
    assert process.stderr is not None
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        if json.loads(line).get("consumed"):
            return
    raise AssertionError("no events in time")


def test_a_log_that_cannot_be_written_is_one_clear_line(tmp_path: Path):
    (tmp_path / "log.sqlite3").write_bytes(b"this is no database" * 100)
    done = subprocess.run(demo("--data-dir", tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("streamer: ")
    assert "not a database" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_trainer_has_the_defaults_of_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("STREAMER_BATCH_SIZE", "7")
    ours, defaults = demo_settings(DemoSettings(events=1000), tmp_path), RunSettings()
    changed = {name for name in RunSettings.all() if getattr(ours, name) != getattr(defaults, name)}
    assert changed == {"data_dir", "max_events", "checkpoint_every_s"}


def test_a_writer_that_fails_says_why(tmp_path: Path):
    failed = threading.Event()
    (tmp_path / "file").touch()
    with child(children(DemoSettings(), tmp_path / "file" / "data")["writer"], failed.set) as why:
        assert failed.wait(60)
    assert "streamer: " in why()


def test_a_writer_ends_with_the_block_and_that_is_no_failure(tmp_path: Path):
    failed = threading.Event()
    with child(children(DemoSettings(rate=10.0), tmp_path)["writer"], failed.set):
        threads = [thread for thread in threading.enumerate() if thread.name == "replay"]
        assert len(threads) == 1
    assert not threads[0].is_alive()
    assert not failed.is_set()
