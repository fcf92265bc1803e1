"""Killed at any moment, a run on the embedded log ends as if nothing had happened: the same bits, every event once."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import Command
from crash_harness import TINY, records, trained_items
from line_harness import (
    NOON_MS,
    TOPIC,
    assert_closed,
    assert_same_checkpoint,
    committed_positions,
    newest,
    popularity_counts,
)

from streamer.learner import OnlineLearner
from streamer.snapshot import SnapshotDirectory
from streamer.sources.base import Partition
from streamer.sources.embedded.log import EmbeddedLog

pytestmark = pytest.mark.slow


def write_log(directory: Path, partitions: int, values: Sequence[bytes]) -> None:
    rows = [(b"%d" % (k % 89), value, NOON_MS) for k, value in enumerate(values)]
    with EmbeddedLog(directory) as log:
        log.create_topic(TOPIC, partitions)
        for start in range(0, len(rows), 50):
            log.append(TOPIC, rows[start : start + 50])


def run_in(directory: Path, name: str, *more: Any) -> list[Any]:
    """A run with a name of its own on the log in a directory."""
    kept = ("--checkpoint-dir", directory / name, "--dead-letters", directory / f"{name}.jsonl")
    return ["run", "--data-dir", directory, *kept, *TINY, "--until-end", *more]


def letters_in(path: Path) -> list[tuple[int, int]]:
    """Partition and offset of each dead letter."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(letter["partition"], letter["offset"]) for letter in found]


# killed ---------------------------------------------------------------------------------------------------------------


def test_killed_at_many_random_moments_it_ends_with_the_same_bits_and_every_event_once(zygote, tmp_path):
    values = records(10_000)
    write_log(tmp_path, 3, values)
    undisturbed = zygote.summary(run_in(tmp_path, "undisturbed", "--group-id", "another"))
    killed = run_in(tmp_path, "killed", "--checkpoint-every-events", 640)
    disturbed, kills = zygote.summary_after_kills(killed, random.Random(3), longest_s=0.4)
    assert kills >= 5

    expected, found = newest(tmp_path / "undisturbed"), newest(tmp_path / "killed")
    assert_same_checkpoint(found, expected)
    assert popularity_counts(OnlineLearner.from_checkpoint(found)) == trained_items(values)
    positions = {Partition(topic, number): offset for topic, number, offset, *_ in found.meta["positions"]}
    assert committed_positions(tmp_path) == positions
    assert sum(positions.values()) == len(values)
    for summary in (undisturbed, disturbed):
        assert_closed(summary)
        assert summary["consumed"] == len(values)
        assert summary["trained"] == sum(trained_items(values).values())
    letters = letters_in(tmp_path / "undisturbed.jsonl")
    assert len(set(letters)) == len(letters) == disturbed["dead_lettered"]
    assert set(letters_in(tmp_path / "killed.jsonl")) == set(letters), "some may have come twice, none is missing"


def test_the_real_command_with_all_its_threads(tmp_path):
    """As users run it: a new interpreter each time, and as many threads as there are cores."""
    write_log(tmp_path, 1, records(12_000))
    many = ["--threads", "2", "--checkpoint-every-events", 256, "--keep-checkpoints", 100]
    with Command(run_in(tmp_path, "undisturbed", *many[:2]), tmp_path / "log") as whole:
        assert whole.ended()[0] == 0, whole.said()
    store = SnapshotDirectory(tmp_path / "killed")
    with Command(run_in(tmp_path, "killed", *many), tmp_path / "log") as victim:
        victim.wait_until(lambda: len(store.paths()) > 2)
        victim.kill()
        assert victim.ended()[0] == -signal.SIGKILL
    with Command(run_in(tmp_path, "killed", *many), tmp_path / "log") as last:
        code, out = last.ended()
        assert code == 0, last.said()
    assert json.loads(out)["consumed"] == 12_000
    assert_same_checkpoint(newest(tmp_path / "killed"), newest(tmp_path / "undisturbed"))


# ended on purpose -----------------------------------------------------------------------------------------------------

FOLLOW = [*TINY, "--checkpoint-every-events", "300"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_well_when_it_is_asked_to(tmp_path, number):
    write_log(tmp_path, 1, records(500))
    store = SnapshotDirectory(tmp_path / "checkpoints")
    with Command(["run", "--data-dir", tmp_path, *FOLLOW], tmp_path / "log") as run:
        run.wait_until(store.paths)
        run.signal(number)
        code, out = run.ended()
    assert code == 0, run.said()
    summary = json.loads(out)
    assert_closed(summary)
    saved = newest(tmp_path / "checkpoints")
    assert saved.meta["accounting"]["consumed"] == summary["consumed"] >= 300
    assert summary["checkpoint"] == str(saved.path)
    assert committed_positions(tmp_path) == {Partition(TOPIC, 0): saved.meta["positions"][0][2]}


SLOW_TO_SAVE = """
import sys, time
from streamer.snapshot import CheckpointStore, SnapshotDirectory
def save(*_, **__):
    print("saving", file=sys.stderr, flush=True)
    time.sleep(3600)
CheckpointStore.save = save
"""


def test_a_second_ctrl_c_ends_it_at_once(tmp_path):
    write_log(tmp_path, 1, records(500))
    with Command(["run", "--data-dir", tmp_path, *TINY], tmp_path / "log", SLOW_TO_SAVE) as run:
        run.wait_until(lambda: "events/s" in run.said() or "loss" in run.said())
        run.signal(signal.SIGINT)
        run.wait_until(lambda: "saving" in run.said())
        run.signal(signal.SIGINT)
        assert run.ended()[0] == 130
    assert SnapshotDirectory(tmp_path / "checkpoints").load() is None
