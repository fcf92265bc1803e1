"""`streamer run --trainers N`: starts N processes, and all of them again from the last
checkpoint when one dies.

No process outlives the launcher, however it ends: the kernel kills them
(PR_SET_PDEATHSIG). A start is all or nothing: trainers that lost one of theirs cannot
go on, so all are ended and started again.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

logger = logging.getLogger(__name__)

SETTINGS_ARE_WRONG = 2
QUICK_S = 30.0
MAX_QUICK_FAILURES = 3
"""Trainers that fail of themselves this soon and this often in a row are not started
again.
"""
END_S = 60.0
"""How long the others may take when one has ended well."""
_PR_SET_PDEATHSIG = 1


def is_rank() -> bool:
    """Whether this process is one rank of a group, started by the launcher or by
    torchrun.
    """
    return all(
        name in os.environ
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    )


def rank() -> int:
    """The rank of this process; 0 if it is alone."""
    return int(os.environ["RANK"]) if is_rank() else 0


class Launcher:
    """Runs a command as N ranks until it ends well, or fails of itself again and again.

    Args:
        trainers: N.
        command: what each rank runs, which finds its rank in the environment as under
            torchrun.
    """

    def __init__(self, trainers: int, command: Sequence[str]) -> None:
        self._trainers = trainers
        self._command = list(command)
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._stopping = False

    def run(self) -> int:
        """Start the ranks, as often as it takes; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._pass_on)
        signal.signal(
            signal.SIGINT, self._interrupted
        )  # the terminal sends it to the ranks, too
        failures = 0
        while True:
            started = time.monotonic()
            code = self._run_once()
            if code == 0 or self._stopping or code == SETTINGS_ARE_WRONG:
                return max(code, 0)
            was_quick = time.monotonic() - started < QUICK_S
            failures = failures + 1 if was_quick and code > 0 else 0
            if failures >= MAX_QUICK_FAILURES:
                return code
            what = (
                f"was killed by signal {-code}"
                if code < 0
                else f"failed with exit code {code}"
            )
            logger.warning(
                "A trainer %s: all %d start again from the last checkpoint",
                what,
                self._trainers,
            )

    def _run_once(self) -> int:
        """One start of all ranks; returns 0 if all ended well, else how the first that
        did not has ended.
        """
        port = _free_port()
        self._ranks = [
            _start(self._command, rank, self._trainers, port)
            for rank in range(self._trainers)
        ]
        code = None
        deadline = None
        try:
            while running := [
                process for process in self._ranks if process.poll() is None
            ]:
                ended = [p.returncode for p in self._ranks if p.returncode is not None]
                if bad := [c for c in ended if c != 0]:
                    code = min(bad) if code is None else code
                    if not self._stopping:
                        break
                if ended:
                    deadline = deadline or time.monotonic() + END_S
                    if time.monotonic() > deadline:
                        logger.warning(
                            "%d trainers did not end within %.0f s: they are killed",
                            len(running),
                            END_S,
                        )
                        break
                time.sleep(0.02)
        finally:
            self._kill()
        codes = [process.returncode for process in self._ranks]
        self._ranks = []
        return code if code is not None else next((c for c in codes if c != 0), 0)

    def _kill(self) -> None:
        """End what still runs; what they had saved is safe, and they could not go on
        without the others.
        """
        for process in self._ranks:
            if process.poll() is None:
                process.kill()
        for process in self._ranks:
            process.wait()

    def _pass_on(self, number: int, _: object) -> None:
        self._stopping = True
        for process in self._ranks:
            process.send_signal(number)

    def _interrupted(self, number: int, _: object) -> None:
        if self._stopping or not sys.stdin.isatty():
            self._pass_on(number, None)
        self._stopping = True


@contextlib.contextmanager
def other_ranks(trainers: int, command: Sequence[str]) -> Iterator[None]:
    """Makes this process rank 0 of a group, whose other ranks run a command; they end
    with the block.
    """
    port = _free_port()
    ranks = [_start(command, rank, trainers, port) for rank in range(1, trainers)]
    os.environ |= _environment(0, trainers, port)
    try:
        yield
        for process in ranks:
            process.wait(END_S)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        for name in _environment(0, trainers, port):
            del os.environ[name]


def _start(
    command: Sequence[str], rank: int, trainers: int, port: int
) -> subprocess.Popen[bytes]:
    environment = os.environ | _environment(rank, trainers, port)
    return subprocess.Popen(command, env=environment, preexec_fn=_die_with(os.getpid()))


def _environment(rank: int, trainers: int, port: int) -> dict[str, str]:
    own = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": trainers,
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in own.items()} | {
        "MASTER_ADDR": "127.0.0.1"
    }


def _die_with(parent: int) -> Callable[[], None]:
    """What a child does before it becomes the command: it is killed as soon as its
    parent is gone.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return prepare


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
