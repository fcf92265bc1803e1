from __future__ import annotations

import io
import json
import logging
import threading
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from streamer.display.panel import RunPanel
from streamer.display.reporting import (
    PREPARING,
    LogReporter,
    PanelReporter,
    described,
    make_reporter,
    summary_rows,
)
from streamer.evaluation import BestBaseline, TowersShare
from streamer.metrics.composition import Composition
from streamer.metrics.status import Status
from streamer.sources.base import Partition

STATUS = Status(
    events_per_second=3987.6,
    loss=4.5613,
    hit_rate=0.4123,
    best_baseline=BestBaseline("counting", 0.0651),
    cache=Composition(0.2, 0.3, 0.5),
    lag={Partition("interactions", number): 100 * number for number in range(4)},
    queued_events=248,
    steps=142,
    users=3522,
    items=5515,
    checkpoint_age_s=8.2,
    accounting={
        "consumed": 72_707,
        "trained": 72_704,
        "filtered": 1,
        "dead_lettered": 2,
        "lost": 0,
        "dead_letters": {"not_json": 2},
    },
)
SUMMARY: dict[str, Any] = {
    **STATUS.accounting,
    "events_this_run": 72_707,
    "seconds": 18.25,
    "events_per_second": 3983.9,
    "steps": 142,
    "users": 3522,
    "items": 5515,
    "loss": 4.56,
    "hit_rate_at_10": 0.4,
    "best_baseline": "counting",
    "best_baseline_hit_rate_at_10": 0.06,
    "cache": STATUS.cache._asdict(),
    "checkpoint": "/data/checkpoints/ckpt-1",
}


# the panel ------------------------------------------------------------------------------------------------------------


def drawn(panel: RunPanel, width: int = 110, height: int = 40, **settings: Any) -> str:
    console = Console(file=io.StringIO(), record=True, width=width, height=height, **settings)
    console.print(panel)
    return console.export_text()


def panel_of(*statuses: Status) -> RunPanel:
    panel = RunPanel("interactions", clock=iter(range(0, 10_000, 65)).__next__)
    for status in statuses:
        panel.update(status)
    return panel


def test_the_panel_shows_everything_a_person_wants_to_know():
    text = drawn(panel_of(*[STATUS] * 30))
    for figure in (
        "3,988 events/s",
        "4.561",
        "model 0.412",
        "baseline counting 0.065 6.33x",
        "head 20%",
        "torso 30%",
        "tail 50%",
        "3,522 users, 5,515 items",
        "8 s ago",
        "72,707 = 72,704 trained + 1 filtered + 2 dead-lettered",
        "not_json 2",
        "600 events  [0] 0 [1] 100 [2] 200 [3] 300; 248 in the queue",
        "1:05",
    ):
        assert figure in text


def test_the_panel_says_so_if_the_towers_add_nothing():
    for share, said in ((TowersShare(0.41, 0.42, 5000), True), (TowersShare(0.42, 0.41, 5000), False)):
        text = drawn(panel_of(replace(STATUS, towers=share)))
        assert ("The towers add nothing on this stream: HR 0.410 with them, 0.420 without" in text) == said


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 200])
@pytest.mark.parametrize("height", [10, 40])
def test_the_panel_fits_the_terminal(width: int, height: int):
    text = drawn(panel_of(*[STATUS] * 300), width, height)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= (22 if width >= 80 and height >= 22 else 14)
    assert "events/s" in text or width < 40


def test_a_small_terminal_has_lines_instead_of_charts():
    text = drawn(panel_of(*[STATUS] * 30), width=60)
    assert "HR@10  model 0.412" in text
    assert "cache  head 20%" in text
    assert "█" in text


@pytest.mark.parametrize("settings", [{"no_color": True}, {"color_system": None}])
def test_without_colours_shares_are_shaded(settings: dict[str, Any]):
    text = drawn(panel_of(*[STATUS] * 30), force_terminal=True, **settings)
    assert "░░░" in text
    assert "▒▒▒" in text


def test_of_many_partitions_the_worst_are_listed():
    lag = {Partition("t", number): number for number in range(50)}
    text = drawn(panel_of(replace(STATUS, lag=lag)))
    assert "1,225 events  [44] 44 [45] 45 [46] 46 [47] 47 [48] 48 [49] 49 and 44 more" in text


def test_partitions_of_several_topics_are_told_apart():
    lag = {Partition("a", 0): 1, Partition("b", 0): 2}
    assert "a[0] 1 b[0] 2" in drawn(panel_of(replace(STATUS, lag=lag)))


def test_before_the_first_step_the_panel_says_what_it_waits_for():
    assert "waiting for the first events" in drawn(panel_of())
    assert "waiting for the first events" in drawn(panel_of(Status()))


def test_what_is_not_known_yet_is_not_shown():
    text = drawn(panel_of(replace(STATUS, hit_rate=None, best_baseline=None, loss=None, checkpoint_age_s=None)))
    assert "nothing ranked yet" in text
    assert "none yet" in text
    assert "loss" not in text


def test_names_with_brackets_are_no_markup():
    panel = RunPanel("[bold]x[/bold] \\[red]")
    panel.update(STATUS)
    assert "[bold]x[/bold]" in drawn(panel)


def test_a_note_is_shown():
    panel = panel_of(STATUS)
    panel.note = "stopping: saving"
    assert "stopping: saving" in drawn(panel)


# reporters ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=30)


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_messages_appear_beside_the_panel(terminal: Console):
    with PanelReporter("interactions", terminal) as reporter:
        reporter.update(STATUS)
        logging.getLogger("streamer.x").warning("broker [b] away; trying again in %d s", 2)
        reporter.finish(SUMMARY)
    assert "broker [b] away; trying again in 2 s" in output(terminal)
    assert "72,707 = 72,704 trained" in output(terminal)


def test_nothing_is_left_behind_when_a_run_fails(terminal: Console):
    threads, handlers = set(threading.enumerate()), logging.getLogger().handlers[:]
    with pytest.raises(ValueError, match="oh"), PanelReporter("interactions", terminal):
        raise ValueError("oh")
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)
        assert not thread.is_alive()
    assert logging.getLogger().handlers == handlers
    assert output(terminal).rindex("\x1b[?25h") > output(terminal).rindex("\x1b[?25l")


def test_the_panel_draws_a_copy(terminal: Console):
    status = replace(STATUS)
    with PanelReporter("interactions", terminal) as reporter:
        reporter.update(status)
        status.steps = 0
        assert "waiting" not in drawn(reporter._panel)


def test_json_lines_parse_and_hold_the_figures(capsys: pytest.CaptureFixture[str]):
    with make_reporter("json", "interactions") as reporter:
        reporter.update(replace(STATUS, loss=float("nan")))
        logging.getLogger("streamer").warning('a "quoted" message')
        reporter.finish(SUMMARY)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["info", "info", "warning", "info"]
    assert lines[1]["consumed"] == 72_707
    assert lines[1]["loss"] is None
    assert lines[1]["cache"] == {"head": 0.2, "torso": 0.3, "tail": 0.5}
    assert lines[2]["message"] == 'a "quoted" message'
    assert lines[3]["checkpoint"] == "/data/checkpoints/ckpt-1"


def test_plain_lines_have_no_escape_codes(capsys: pytest.CaptureFixture[str]):
    with make_reporter("auto", "interactions") as reporter:  # standard error is no terminal here
        reporter.update(STATUS)
        reporter.finish(SUMMARY)
    text = capsys.readouterr()
    assert text.out == ""
    assert "\x1b" not in text.err
    assert "learning from interactions" in text.err
    assert "HR@10 0.412 (baseline counting 0.065)" in text.err
    assert "72,707 = 72,704 trained + 1 filtered + 2 dead-lettered" in text.err
    assert "/data/checkpoints/ckpt-1" in text.err


def test_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]):
    with LogReporter("interactions", every_s=1000) as reporter:
        for _ in range(10):
            reporter.update(STATUS)
    assert capsys.readouterr().err.count("events/s") == 0
    with LogReporter("interactions", every_s=0) as reporter:
        for _ in range(10):
            reporter.update(STATUS)
    assert capsys.readouterr().err.count("72,707 events") == 10


def test_a_note_is_logged_once(capsys: pytest.CaptureFixture[str]):
    with LogReporter("interactions") as reporter:
        reporter.note("stopping")
        reporter.update(STATUS)
        reporter.update(STATUS)
    assert capsys.readouterr().err.count("stopping") == 1


def test_logging_goes_on_as_before_after_a_run():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    with LogReporter("interactions"):
        assert root.handlers != before[0]
    assert (root.handlers, root.level) == before


def test_when_the_summary_is_shown_elsewhere_nothing_is_said(capsys: pytest.CaptureFixture[str]):
    with LogReporter("interactions") as reporter:
        reporter.finish(None)
    assert len(capsys.readouterr().err.splitlines()) == 1


class FakeTerminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "kind"), [("xterm-256color", PanelReporter), ("dumb", LogReporter)])
def test_a_person_at_a_terminal_gets_the_panel(monkeypatch: pytest.MonkeyPatch, term: str, kind: type):
    monkeypatch.setattr("sys.stderr", FakeTerminal())
    monkeypatch.setenv("TERM", term)
    assert isinstance(make_reporter("auto", "interactions"), kind)


# texts ----------------------------------------------------------------------------------------------------------------


def test_the_state_in_one_line():
    assert described(STATUS) == (
        "72,707 events, 3,988/s, lag 600, loss 4.561, HR@10 0.412 (baseline counting 0.065), "
        "cache head 20% torso 30% tail 50%, 2 dead letters, checkpoint 8 s ago"
    )
    assert described(Status()) == PREPARING


def test_a_summary_of_nothing_is_a_summary():
    nothing = dict.fromkeys(("head", "torso", "tail"), 0.0)
    summary = dict.fromkeys(SUMMARY, 0) | {"dead_letters": {}, "hit_rate_at_10": None, "cache": nothing}
    rows = dict(summary_rows(summary | {"checkpoint": None}))
    assert rows["checkpoint"] == "none"
    assert "HR@10" not in rows
    assert "cache" not in rows
