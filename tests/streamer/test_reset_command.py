"""`streamer reset` without a broker: what it shows, what it refuses, and where the next run reads on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from crash_harness import TINY, Zygote
from line_harness import NOON_MS, TOPIC, events, newest, popularity_counts, values_of

from streamer.learner import OnlineLearner
from streamer.snapshot import CheckpointStore
from streamer.sources.embedded.log import EmbeddedLog

QUICK = [part for part in TINY if part not in ("--event-type", "buy")]
EVENTS = 200


@pytest.fixture
def trained(zygote: Zygote, tmp_path: Path) -> list[Any]:
    """The options of a run that has trained a topic of two partitions, an event a second."""
    with EmbeddedLog(tmp_path) as log:
        log.create_topic(TOPIC, 2)
        values = values_of(events(EVENTS))
        for k in range(2):
            log.append(TOPIC, [(None, v, NOON_MS + 1000 * n) for n, v in enumerate(values[k::2])], partition=k)
    options = ["--data-dir", tmp_path, *QUICK]
    assert zygote.summary(["run", *options, "--until-end"])["consumed"] == EVENTS
    return options


def reset(zygote: Zygote, options: list[Any], *to: Any) -> list[dict[str, Any]]:
    """What was moved."""
    return zygote.summary(["reset", *[part for part in options if part != "--json"], *to, "--yes", "--json"])["moves"]


def test_reading_resumes_elsewhere_with_the_model_that_is_there(zygote: Zygote, trained: list[Any], tmp_path: Path):
    half = EVENTS // 2
    for to, events_read in ((["--to-offset", 60], 2 * (half - 60)), (["--to-beginning"], EVENTS)):
        moves = reset(zygote, trained, *to)
        assert [(m["partition"], m["from"], m["to"]) for m in moves] == [(k, half, moves[0]["to"]) for k in (0, 1)]
        assert {m["events"] for m in moves} == {f"{events_read // 2} read again"}
        assert zygote.summary(["run", *trained, "--until-end"])["events_this_run"] == events_read
    learner = OnlineLearner.from_checkpoint(newest(tmp_path / "checkpoints"))
    assert popularity_counts(learner).total() == EVENTS + 80 + EVENTS

    reset(zygote, trained, "--to-beginning")
    moves = reset(zygote, trained, "--to-timestamp", (NOON_MS + 40_000) / 1000)
    assert [m["events"] for m in moves] == ["40 skipped"] * 2
    assert zygote.summary(["run", *trained, "--until-end"])["events_this_run"] == EVENTS - 80


def test_a_model_may_go_on_with_another_source(zygote: Zygote, trained: list[Any], tmp_path: Path):
    path = tmp_path / "more.jsonl"
    path.write_bytes(b"\n".join(values_of(events(70, seed=1))) + b"\n")
    options = [*trained, "--source", path]
    assert zygote.run(["run", *options]) == 1
    (move,) = reset(zygote, options, "--to-beginning")
    assert (move["from"], move["to"], move["events"]) == (None, 0, "a run begins there")
    assert zygote.summary(["run", *options])["consumed"] == EVENTS + 70


@pytest.mark.slow
def test_the_checkpoint_of_a_group_moves_as_a_whole(zygote: Zygote, trained: list[Any]):
    group = [*trained, "--checkpoint-dir", trained[1] / "of-group", "--trainers", 2]
    first = zygote.summary(["run", *group, "--until-end"])
    reset(zygote, group, "--to-beginning")
    again = zygote.summary(["run", *group, "--until-end"])
    assert (again["events_this_run"], again["consumed"]) == (EVENTS, 2 * EVENTS)
    assert (again["users"], again["items"]) == (first["users"], first["items"])


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ([], 2, "give one of --to-beginning, --to-offset, --to-timestamp"),
        (["--to-beginning", "--to-offset", "3"], 2, "give one of"),
        (["--to-offset", "101"], 1, r"interactions\[0\] has offsets 0 to 100, not 101: nothing was moved"),
        (["--to-timestamp", "soon"], 2, "--to-timestamp"),
        (["--to-beginning", "--topic", "absent"], 1, "there is no topic 'absent'"),
        (["--to-beginning"], 1, "no terminal to ask at: give --yes"),
        (["--to-beginning", "--checkpoint-dir", "elsewhere"], 1, "there is no directory elsewhere"),
        (["--source", "-", "--to-beginning"], 2, "standard input"),
    ],
)
def test_what_cannot_be_moved_is_refused_and_nothing_moves(
    zygote: Zygote, trained: list[Any], tmp_path: Path, more: list[Any], code: int, said: str
):
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert zygote.run(["reset", *trained, *more]) == code
    assert re.search(said, zygote.errors)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before
    assert not Path("elsewhere").exists()


def test_a_trainer_that_runs_is_not_moved(zygote: Zygote, trained: list[Any], tmp_path: Path):
    with CheckpointStore(tmp_path / "checkpoints"):
        assert zygote.run(["reset", *trained, "--to-beginning", "--yes"]) == 1
    assert "another process (pid " in zygote.errors


def test_it_shows_what_it_would_do(zygote: Zygote, trained: list[Any]):
    zygote.run(["reset", *[part for part in trained if part != "--json"], "--to-offset", "60"])
    assert "40 read again" in zygote._last.printed()
