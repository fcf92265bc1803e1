"""`streamer run --trainers N` as a person starts it: one process that starts the ranks, and answers for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.checkpoint import CheckpointStore
from streamer.event import encode
from streamer.sources.embedded.log import EmbeddedLog

PATIENCE_S = 90.0


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_killed_rank_is_replaced_and_no_rank_outlives_the_launcher(tmp_path):
    records = [(b"u%d" % (k % 50), encode(f"u{k % 50}", f"i{k % 30}", 1_700_000_000 + k), k) for k in range(2000)]
    with EmbeddedLog(tmp_path) as log:
        log.create_topic("interactions", 4)
        log.append("interactions", records)
    settings = [
        "--data-dir",
        tmp_path,
        "--trainers",
        "2",
        "--dim",
        "8",
        "--batch-size",
        "128",
        "--evaluation-share",
        "0",
    ]
    every = ["--checkpoint-every-events", "500", "--log-format", "plain"]
    errors = (tmp_path / "errors").open("w")
    launcher = subprocess.Popen([sys.executable, "-m", "streamer", "run", *settings, *every], stderr=errors)
    store = CheckpointStore(tmp_path / "checkpoints", readonly=True)
    try:
        until(lambda: len(store.points()) and len(children(launcher.pid)) == 2, "nothing was trained")
        first = children(launcher.pid)
        # 1. a rank is killed: both are started again, and go on where the manifest is
        os.kill(first[1], signal.SIGKILL)
        with EmbeddedLog(tmp_path) as log:
            log.append("interactions", records)
        until(lambda: _consumed(store) >= 3500, "training did not go on")
        second = children(launcher.pid)
        assert not set(first) & set(second)
        assert "start again from the last checkpoint" in (tmp_path / "errors").read_text()
        # 2. the launcher is killed: nobody is left
        launcher.kill()
        launcher.wait()
        until(lambda: not any(map(is_running, second)), "a rank outlived the launcher")
    finally:
        launcher.kill()
        launcher.wait()
        errors.close()


def _consumed(store: CheckpointStore) -> int:
    found = store.load()
    return found.meta["accounting"]["consumed"] if found is not None else 0


@pytest.mark.parametrize("code", [0, 2])
def test_ranks_that_ended_well_or_with_wrong_settings_are_not_started_again(code, tmp_path):
    script = f"import os, sys; open(sys.argv[1] + os.environ['RANK'], 'a').write('started '); sys.exit({code})"
    command = [sys.executable, "-c", script, str(tmp_path / "rank")]
    launch = f"import sys; from streamer.group.launcher import Launcher; sys.exit(Launcher(3, {command!r}).run())"
    assert subprocess.run([sys.executable, "-c", launch], check=False).returncode == code
    found = [(tmp_path / f"rank{rank}").read_text() for rank in range(3) if (tmp_path / f"rank{rank}").exists()]
    assert max(text.count("started") for text in found) == 1  # one that is stopped may not have come to write it


def test_ranks_that_fail_of_themselves_are_given_up(tmp_path):
    script = "import sys; open(sys.argv[1], 'a').write('x'); sys.exit(1)"
    command = [sys.executable, "-c", script, str(tmp_path / "started")]
    launch = f"import sys; from streamer.group.launcher import Launcher; sys.exit(Launcher(1, {command!r}).run())"
    assert subprocess.run([sys.executable, "-c", launch], check=False).returncode == 1
    assert (tmp_path / "started").read_text() == "xxx"
