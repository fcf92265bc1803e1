"""Runs of `streamer run` that are killed, and what is left of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from line_harness import NOON_MS, PATIENCE_S, events

from streamer.event import encode

TESTS = Path(__file__).parent

TINY = [
    *("--dim", "8", "--batch-size", "64", "--max-age", "0", "--cache-size", "64", "--set", "hash_slots=64"),
    *("--threads", "1", "--json", "--event-type", "buy"),
]
"""A run that is quick, and whose batches end at the same events whenever they come."""


def records(count: int) -> list[bytes]:
    """Events of which some are filtered and some are no events at all."""
    stream = events(count, users=300, items=200)
    values = [encode(user, item, NOON_MS / 1000, event_type="buy") for user, item in stream]
    for k in range(50, count, 101):
        values[k] = encode("u", "i", 1.0, event_type="view")
    for k in range(70, count, 997):
        values[k] = b"no event %d" % k
    return values


def trained_items(values: Sequence[bytes]) -> Counter[str]:
    """How often each item of such records is to be trained."""
    found = [json.loads(value) for value in values if value.startswith(b"{")]
    return Counter(event["item_id"] for event in found if event["event_type"] == "buy")


class Forker:
    """A process that has everything loaded, and forks for what it is asked to start: one line of JSON each way.

    Args:
        script: its name, in this folder.
    """

    def __init__(self, script: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(TESTS / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        assert self._answer() == "ready"

    def ask(self, job: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that starts others has died"
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


class Zygote(Forker):
    """Runs the command, each time in a process of its own, without the seconds that imports take."""

    def __init__(self, directory: Path) -> None:
        self._output = directory / "run"
        super().__init__("run_zygote.py")

    def run(self, arguments: Sequence[Any], kill_after_s: float | None = None) -> int:
        """Run to the end, or until SIGKILL; returns the return code."""
        job = {"output": str(self._output), "arguments": [str(a) for a in arguments], "kill_after_s": kill_after_s}
        return int(self.ask(job))

    def summary(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Run undisturbed; answers the summary that is printed at the end."""
        assert self.run(arguments) == 0, self.errors
        return self.last_summary

    def summary_after_kills(
        self, arguments: Sequence[Any], rng: random.Random, longest_s: float
    ) -> tuple[dict[str, Any], int]:
        """Start again after every SIGKILL, each at a random moment, until a run gets to the end.

        The first ones live shortly; each may live a little longer than the one before, so that this ends on the
        slowest machine.

        Returns:
            The summary of the last run, and how many were killed.
        """
        kills, deadline = 0, time.monotonic() + 4 * PATIENCE_S
        while (code := self.run(arguments, rng.uniform(0, longest_s) * min(1, 0.2 + kills / 4) * 1.03**kills)) != 0:
            assert code == -signal.SIGKILL, self.errors
            assert time.monotonic() < deadline, f"not at the end after {kills} kills"
            kills += 1
        return self.last_summary, kills

    @property
    def last_summary(self) -> dict[str, Any]:
        """What the last run printed at its end."""
        found: dict[str, Any] = json.loads(self.output)
        return found

    @property
    def output(self) -> str:
        """The last run's standard output."""
        return Path(f"{self._output}.out").read_text()

    @property
    def errors(self) -> str:
        """The last run's standard error."""
        return Path(f"{self._output}.err").read_text()


def environment(**more: str) -> dict[str, str]:
    """Our own, so that a child finds the code and the tests, and no settings of whoever runs them."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
    return clean | {"PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"} | more


def _hears_ctrl_c() -> None:
    """A shell starts what runs in the background deaf to Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Command:
    """The real command in a process of its own; in a `with` block, it does not outlive it.

    Args:
        arguments: of `streamer`.
        log: where its standard error goes.
        prelude: Python code that runs before it.
        env: further variables.
    """

    def __init__(self, arguments: Sequence[Any], log: Path, prelude: str = "", **env: str) -> None:
        self.log = log
        code = f"{prelude}\nimport sys\nfrom streamer.cli.main import main\nmain()"
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(**env),
                preexec_fn=_hears_ctrl_c,
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def said(self) -> str:
        """All of its standard error so far."""
        return self.log.read_text()

    def wait_until(self, done: Callable[[], Any]) -> None:
        """Wait until something has happened while it runs."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.said()}"
            assert time.monotonic() < deadline, f"it did not happen: {self.said()}"
            time.sleep(0.02)

    def ended(self, given: bytes | None = None) -> tuple[int, bytes]:
        """Its return code and standard output, once it has ended; `given` is its standard input."""
        out, _ = self.process.communicate(given, timeout=2 * PATIENCE_S)
        return self.process.returncode, out
