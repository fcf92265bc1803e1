"""The commands of pages that promise it are run as they stand, in order, and print what the page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import environment, until
from servers.process import free_ports

DOCS = Path(__file__).parents[1] / "docs"
PROMISE = "<!-- The commands of this page are run by tests/test_pages.py. -->"
BLOCK = re.compile(
    r"(?P<stop><!-- Ctrl-C -->)"
    r"|(?:<!-- (?P<how>not run: .+?|runs on) -->\n)?"
    r'```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)```',
    re.S,
)
BROKER = "broker:9092"
PORT = "8080"
SERVER = re.compile(r"^Recommendations: http://127.0.0.1:(\d+)/", re.M)
"""What `streamer up` prints, which takes another port if that one is taken."""
PAGES = [page for page in sorted(DOCS.glob("*.md")) if PROMISE in page.read_text(encoding="utf-8")]


class Step(NamedTuple):
    """A command of a page, and what the page shows of its output."""

    command: str
    shown: str


def steps(text: str) -> Iterator[Step]:
    """The commands of a console block: a line after `$ `, which `\\` continues; what follows is its output."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        lines = part.splitlines()
        length = 1
        while lines[length - 1].endswith("\\"):
            length += 1
        yield Step("\n".join(lines[:length]), "\n".join(lines[length:]).strip())


def is_shown(shown: str, printed: str) -> bool:
    """Whether a command has printed what a page shows; `...` stands for anything, blanks count as one."""
    words = [re.escape(part) for part in re.split(r"\.\.\.", " ".join(shown.split()))]
    return re.search(".*?".join(words), " ".join(printed.split()), re.S) is not None


class Terminal:
    """Runs the steps of a page in one directory.

    Args:
        ours: what stands here for addresses that a page names.
    """

    def __init__(self, directory: Path, ours: dict[str, str]) -> None:
        self._directory = directory
        self._ours = ours
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, step: Step, runs_on: bool) -> None:
        """Run a command until it ends; one that runs on, until it has printed what is shown."""
        output = self._directory / f".output-{len(self._started)}"
        command = step.command
        for named, address in self._ours.items():
            command = command.replace(named, address)
        program = Path(sys.executable).parent
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self._directory,
                env=environment(PATH=f"{program}{os.pathsep}{os.environ['PATH']}"),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)

        def printed() -> str:
            text = output.read_text(errors="replace")
            if chosen := SERVER.search(text):
                self._ours[PORT] = chosen[1]
            for named, address in self._ours.items():
                text = text.replace(address, named)
            return text

        def is_done() -> bool:
            return process.poll() is not None or (runs_on and is_shown(step.shown, printed()))

        until(is_done, f"$ {step.command}")
        if not runs_on:
            assert process.returncode == 0, printed()
        assert is_shown(step.shown, printed()), f"$ {step.command}\n{printed()}\nThe page shows:\n{step.shown}"

    def close(self) -> None:
        """Ctrl-C for all commands that run on."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        for process in self._started:
            process.wait()


@pytest.fixture
def ours(request: pytest.FixtureRequest, page: Path) -> dict[str, str]:
    """What a page names, and its address here: a free port, and a real broker if the page uses one."""
    found = {PORT: str(free_ports(1)[0])}
    if BROKER in page.read_text(encoding="utf-8"):
        found[BROKER] = request.getfixturevalue("kafka_server").bootstrap
    return found


@pytest.mark.servers
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, ours: dict[str, str], tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ours)
    try:
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            if block["stop"]:
                terminal.close()
            elif block["title"]:
                (tmp_path / block["title"]).write_text(block["text"])
            elif block["kind"] == "console" and not str(block["how"]).startswith("not run"):
                for step in steps(block["text"]):
                    terminal.run(step, runs_on=block["how"] == "runs on")
    finally:
        terminal.close()


def test_what_a_page_shows_is_compared():
    assert is_shown("a ... c", "x a\n b  c y")
    assert not is_shown("a ... d", "a b c")
    assert list(steps("$ one \\\n  two\nout\n$ three\n")) == [
        Step("one \\\n  two", "out"),
        Step("three", ""),
    ]
