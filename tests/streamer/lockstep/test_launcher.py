"""`streamer run --trainers N` as a person starts it: one process that starts the ranks, and answers for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Command
from group_harness import TINY, assert_same_model
from line_harness import until
from servers.process import is_running

from streamer.event import encode
from streamer.snapshot import SnapshotDirectory
from streamer.sources.embedded.log import EmbeddedLog


def ranks_of(pid: int) -> list[int]:
    """The ranks that a launcher has started, without the helpers of multiprocessing."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    except FileNotFoundError:
        return []


def listening_on(pid: int) -> set[str]:
    """The addresses on which a process listens, as the kernel writes them."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.add(str(path.readlink()))
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    sockets = [line.split() for table in tables for line in table]
    return {s[1].split(":")[0] for s in sockets if s[3] == "0A" and f"socket:[{s[9]}]" in inodes}


@pytest.mark.slow
def test_a_rank_and_the_launcher_are_killed_nobody_is_left_and_the_model_is_the_same(tmp_path):
    records = [(b"u%d" % (k % 50), encode(f"u{k % 50}", f"i{k % 30}", 1_700_000_000 + k), k) for k in range(8000)]
    with EmbeddedLog(tmp_path) as log:
        log.create_topic("interactions", 4)
        log.append("interactions", records)

    def start(name: str, trainers: int, *more: str) -> Command:
        where = ("--data-dir", tmp_path, "--checkpoint-dir", tmp_path / name)
        letters = ("--dead-letters", tmp_path / f"{name}.jsonl")
        settings = [*TINY, "--trainers", trainers, "--threads", 1, "--checkpoint-every-events", 500]
        return Command(["run", *where, *letters, *settings, *more], tmp_path / f"{name}.log")

    with start("one", 1) as undisturbed:
        assert undisturbed.ended()[0] == 0, undisturbed.said()
    store = SnapshotDirectory(tmp_path / "two")
    with start("two", 2, "--no-until-end") as launcher:
        pid = launcher.pid
        launcher.wait_until(lambda: store.numbers() and len(ranks_of(pid)) == 2)
        first = ranks_of(pid)
        launcher.wait_until(lambda: all(map(listening_on, first)))
        found = set().union(*map(listening_on, [pid, *first]))
        assert found == {"0100007F"}, "whoever can reach it could join: 127.0.0.1 alone"
        # 1. a rank is killed: both are started again, and go on where the manifest is
        os.kill(first[1], signal.SIGKILL)
        consumed = _consumed(store)
        launcher.wait_until(lambda: len(ranks_of(pid)) == 2 and not set(first) & set(ranks_of(pid)))
        second = ranks_of(pid)
        launcher.wait_until(lambda: _consumed(store) > min(consumed, len(records) - 1))
        assert "start again from the last checkpoint" in launcher.said()
        # 2. the launcher is killed: nobody is left
        launcher.kill()
        until(lambda: not any(map(is_running, second)), what="all ranks end with the launcher")
    # 3. a new start goes on where the manifest is
    with start("two", 2) as last:
        assert last.ended()[0] == 0, last.said()
    assert_same_model(tmp_path / "two", tmp_path / "one")


def _consumed(store: SnapshotDirectory) -> int:
    found = store.load()
    return found.meta["accounting"]["consumed"] if found is not None else 0


def launched(tmp_path: Path, trainers: int, script: str) -> tuple[int, list[str]]:
    """The exit code of a launcher whose ranks run a script, and what each rank has written to its `file`."""
    main = tmp_path / "launching.py"
    main.write_text(
        "import os, sys\n"
        "def entry(path):\n"
        "    file = open(path + os.environ['RANK'], 'a', buffering=1)\n"
        f"    {script}\n"
        "if __name__ == '__main__':\n"
        "    from streamer.lockstep import launch\n"
        "    launch.MAX_QUICK_FAILURES = 2\n"
        f"    sys.exit(launch.launch_ranks({trainers}, entry, {str(tmp_path / 'rank')!r}))\n"
    )
    code = subprocess.run([sys.executable, main], check=False).returncode
    return code, [path.read_text() for path in sorted(tmp_path.glob("rank?"))]


@pytest.mark.slow
def test_ranks_that_ended_with_wrong_settings_are_not_started_again(tmp_path):
    code, written = launched(tmp_path, 2, "file.write('started '); sys.exit(2)")
    assert code == 2
    assert max(text.count("started") for text in written) == 1  # one that is stopped may not have come to write it


@pytest.mark.slow
def test_ranks_that_fail_of_themselves_are_given_up(tmp_path):
    assert launched(tmp_path, 1, "file.write('x'); sys.exit(1)") == (1, ["xx"])


@pytest.mark.slow
def test_signals_reach_all_ranks_and_the_run_ends_well_after_the_last_checkpoint(tmp_path):
    with EmbeddedLog(tmp_path) as log:
        log.create_topic("interactions", 2)
        log.append("interactions", [(b"u", encode(f"u{k % 9}", f"i{k % 7}", 1.0 + k), k) for k in range(500)])
    where = ("--data-dir", tmp_path, "--checkpoint-dir", tmp_path / "checkpoints")
    command = ["run", *where, *TINY, "--trainers", 2, "--max-age", 0.1, "--no-until-end"]
    store = SnapshotDirectory(tmp_path / "checkpoints")
    with Command(command, tmp_path / "log") as launcher:
        launcher.wait_until(lambda: "events" in launcher.said() and "lag 0" in launcher.said())
        launcher.signal(signal.SIGTERM)
        code, *_ = launcher.ended()
        assert code == 0, launcher.said()
    assert _consumed(store) == 500
