from __future__ import annotations

import io
import json
import logging
import threading
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from streamer.display.reporting import LogReporter, PanelReporter, described, make_reporter, summary_rows
from streamer.evaluation import BestBaseline, TowersShare
from streamer.metrics.composition import Composition
from streamer.metrics.sampler_report import SamplerReport
from streamer.metrics.status import Status
from streamer.sources.base import Partition

STATUS = Status(
    events_per_second=3987.6,
    loss=4.5613,
    hit_rate=0.4123,
    hit_rate_events=2500,
    hit_rate_error=0.0098,
    best_baseline=BestBaseline("counting", 0.0651),
    sampler=SamplerReport(cache_bands=Composition(0.2, 0.3, 0.5)),
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
    "hit_rate_events": 2500,
    "hit_rate_standard_error": 0.0098,
    "against_baseline": "above",
    "best_baseline": "counting",
    "best_baseline_hit_rate_at_10": 0.06,
    "cache": STATUS.sampler.cache_bands._asdict(),
    "checkpoint": "/data/checkpoints/ckpt-1",
}
FIGURES = (
    "speed 3,988 events/s",
    "lag 600; 248 in the queue",
    "loss 4.561",
    "consumed 72,707 = 72,704 trained + 1 filtered + 2 dead-lettered",
    "dead not_json 2",
    "known 3,522 users, 5,515 items, after 142 steps",
    "HR@10 0.412 ± 0.010 of 2,500 ranked events; best baseline counting 0.065: the model is above it",
    "cache head 20% torso 30% tail 50%",
    "checkpoint 8 s ago",
)
NOTHING_ADDED = TowersShare(0.41, 0.42, 5000)


# the panel ------------------------------------------------------------------------------------------------------------


def drawn(*statuses: Status, width: int = 110, note: str = "", source: str = "interactions") -> str:
    console = Console(file=io.StringIO(), record=True, width=width, height=40)
    reporter = PanelReporter(source, console)
    for status in statuses:
        reporter.update(status)
    reporter.note(note)
    console.print(reporter.panel())
    return console.export_text()


def test_the_panel_shows_everything_a_person_wants_to_know():
    text = " ".join(drawn(STATUS, note="stopping: saving").split())
    for figure in (*FIGURES, "stopping: saving", "0:00:0", "interactions"):
        assert figure in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_panel_fits_the_terminal(width: int):
    lines = drawn(STATUS, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 14


def test_before_the_first_step_the_panel_says_what_it_waits_for():
    assert "waiting for the first events" in drawn()
    assert "waiting for the first events" in drawn(Status())
    assert "waiting for the first events" in described(Status())


def test_names_with_brackets_are_no_markup():
    assert "[bold]x[/bold]" in drawn(STATUS, source="[bold]x[/bold] \\[red]")


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
    assert ", ".join(FIGURES) in text.err
    assert "/data/checkpoints/ckpt-1" in text.err


@pytest.mark.parametrize(("every_s", "lines"), [(1000, 1), (0, 10)])
def test_lines_come_now_and_then_a_note_once_and_no_summary_that_is_shown_elsewhere(capsys, every_s, lines):
    with LogReporter("interactions", every_s=every_s) as reporter:
        reporter.note("stopping")
        for _ in range(10):
            reporter.update(STATUS)
        reporter.finish(None)
    said = capsys.readouterr().err
    assert (said.count("72,707 = "), said.count("stopping")) == (lines, 1)
    assert len(said.splitlines()) == lines + 2


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


def test_what_is_not_known_yet_is_not_said_and_what_is_wrong_is():
    text = described(replace(STATUS, hit_rate=None, best_baseline=None, loss=None, checkpoint_age_s=None))
    assert "checkpoint none yet" in text
    assert not any(word in text for word in ("HR@10", "loss", "warning"))
    text = described(replace(STATUS, towers=NOTHING_ADDED, backpressure_reason="33 MB wait", hit_rate=0.01))
    assert "warning The towers add nothing on this stream: HR 0.410 with them, 0.420 without" in text
    assert "warning paused: 33 MB wait" in text
    assert "counting 0.065: the model is below it" in text
    assert "towers" not in described(replace(STATUS, towers=NOTHING_ADDED._replace(without=0.4)))


@pytest.mark.parametrize(
    ("hit_rate", "said"),
    [(0.4, "the model is above it"), (0.315, "no difference beyond the standard error"), (0.29, "no difference"),
     (0.28, "the model is below it")],
)  # fmt: skip
def test_above_the_baseline_is_not_said_within_the_standard_error(hit_rate, said):
    """0.3 +- 0.004 beside a model with +- 0.015: their difference has 0.0155."""
    baseline = BestBaseline("counting", 0.3, 0.004)
    status = replace(STATUS, hit_rate=hit_rate, hit_rate_error=0.015, hit_rate_events=900, best_baseline=baseline)
    text = described(status)
    assert f"HR@10 {hit_rate:.3f} ± 0.015 of 900 ranked events; best baseline counting 0.300: {said}" in text
    figures = status.figures()
    assert (figures["hit_rate_events"], figures["hit_rate_standard_error"]) == (900, 0.015)
    assert figures["against_baseline"] == said.split()[-2 if "the model" in said else 0].replace("no", "equal")


def test_a_summary_of_nothing_is_a_summary():
    nothing = dict.fromkeys(("head", "torso", "tail"), 0.0)
    summary = dict.fromkeys(SUMMARY, 0) | {"dead_letters": {}, "hit_rate_at_10": None, "cache": nothing}
    rows = dict(summary_rows(summary | {"checkpoint": None}))
    assert rows["checkpoint"] == "none"
    assert not rows.keys() & {"HR@10", "cache", "lost", "dead"}


class Loop:
    """A kernel that is compiled when a test says so."""

    signatures: tuple[str, ...] = ()


def test_progress_of_the_kernels_is_shown_until_the_first_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    loops = [Loop() for _ in range(4)]
    monkeypatch.setattr("streamer.model.jit.LOOPS", loops)
    console = Console(file=io.StringIO(), width=120)
    panel = PanelReporter("clicks", console)
    bars = []
    for ready in (0, 3):
        for loop in loops[:ready]:
            loop.signatures = ("compiled",)
        console.print(panel.panel())
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert f"{ready} of at most 4 kernels" in text
        bars.append(text.count("━"))
    assert 0 == bars[0] < bars[1]

    said: list[str] = []
    logged = threading.Event()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            if "kernels" in said[-1]:
                logged.set()

    reporter = LogReporter("clicks", every_s=0.01)
    reporter._handler = Lines()
    with reporter:
        assert logged.wait(60), "without a terminal it is logged, though no status comes"
        reporter.update(STATUS)
    assert sum("3 of at most 4 kernels" in line for line in said) == 1, "once while nothing changes"
