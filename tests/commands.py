"""`streamer` in processes of their own, and what they said. Of the product nothing is used but the command line."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

TESTS = Path(__file__).parent
PATIENCE_S = 150.0
"""When to give up on what should happen; only a hang waits this long."""
LAST_LINES = 15


def environment(**more: str) -> dict[str, str]:
    """Our own, so that a child finds the code and the tests, and no settings of whoever runs them."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
    return clean | {"PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"} | more


def until(done: Callable[[], Any], what: str, every_s: float = 0.05) -> None:
    """Wait for a state."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, f"it did not happen: {what}"
        time.sleep(every_s)


class Runner:
    """The process that all commands are forks of: see `runner.py`."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(TESTS / "runner.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(),
            text=True,
        )
        self._lock = threading.Lock()
        self._read()

    def ask(self, job: dict[str, Any]) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"the runner has died: {self._errors.read().decode(errors='replace')[-4000:]}")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate(timeout=60)


@functools.cache
def runner() -> Runner:
    """The only one of this process."""
    found = Runner()
    atexit.register(found.close)
    return found


STARTED: list[Command] = []
"""All commands of a test, for what is printed if it fails; `conftest.py` empties it."""


class Command:
    """The command in a process of its own; in a `with` block, it does not outlive it.

    Args:
        arguments: of `streamer`.
        output: a path, to which `.out` and `.err` are appended.
        prelude: Python code that runs before it.
        cwd: its working directory.
        env: further variables.
    """

    def __init__(
        self, arguments: Sequence[Any], output: Path, prelude: str = "", cwd: Path | None = None, **env: str
    ) -> None:
        self.arguments = [str(argument) for argument in arguments]
        self._output = output
        job = {"start": self.arguments, "output": str(output), "prelude": prelude, "env": env}
        self._code: int | None = None
        self.pid: int = runner().ask(job | {"cwd": str(cwd) if cwd else None})
        STARTED.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __str__(self) -> str:
        return f"streamer {' '.join(self.arguments)}"

    @property
    def code(self) -> int | None:
        """Its return code; None while it runs."""
        if self._code is None:
            self._code = runner().ask({"ended": self.pid})
        return self._code

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.ended()

    def ended(self) -> tuple[int, str]:
        """Its return code and standard output, once it has ended."""
        until(lambda: self.code is not None, f"`{self}` ends", every_s=0.01)
        assert self.code is not None
        return self.code, self.printed()

    def wait_until(self, done: Callable[[], Any]) -> None:
        """Wait until something has happened while it runs."""

        def happened() -> Any:
            assert self.code is None, f"it ended with {self.code}: {self.said()}"
            return done()

        until(happened, f"while `{self}` runs", every_s=0.02)

    def said(self) -> str:
        """All of its standard error so far."""
        return self._read("err")

    def printed(self) -> str:
        """All of its standard output so far."""
        return self._read("out")

    def _read(self, stream: str) -> str:
        with suppress(FileNotFoundError):
            return Path(f"{self._output}.{stream}").read_text(errors="replace")
        return ""

    def describe(self) -> str:
        """What a person needs who looks for the reason of a failure."""
        lines = self.said().splitlines()[-LAST_LINES:]
        state = f"ended with {self.code}"
        if self.code is None:
            state = "still runs, here"
            before = len(self.said())
            self.signal(signal.SIGUSR1)
            time.sleep(1.0)
            lines += self.said()[before:].splitlines()
        return "\n".join([f"$ {self}", f"  {state}; its last lines:", *(f"  | {line}" for line in lines)])


FRESH = """
import os, sys
os.execv(sys.executable, [sys.executable, "-W", "ignore", "-m", "streamer", *sys.argv[1:]])
"""
"""A prelude of a command that begins again as a new interpreter, as a person starts it: what `ps` shows is its own."""


def signal_at(target: str, nth: int, name: str = "SIGKILL", when: str = "before") -> str:
    """A prelude of a command that sends itself a signal: see `runner.strike`."""
    return f"import runner\nrunner.strike({when!r}, {target!r}, {nth}, {name!r})"
