"""Commands of Streamer as processes beside a bench."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import streamer
from streamer.errors import StreamerError

PATIENCE_S = 180.0


@contextlib.contextmanager
def process(
    *arguments: object, module: str = "streamer"
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that ends with the block; what it logs is part of the error if it ends
    before.
    """
    package = str(Path(streamer.__file__).resolve().parents[1])
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STREAMER_")
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package, os.environ.get("PYTHONPATH")])
    )
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-P", "-m", module, *map(str, arguments)]
        started = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield started
        finally:
            ended = started.poll()
            started.terminate()
            started.wait(30)
            if ended:
                log.seek(0)
                said = log.read()[-2000:].decode(errors="replace")
                raise StreamerError(
                    f"{' '.join(command[3:])} ended with {ended}: {said}"
                )


def cpu_s(pid: int) -> float:
    """Time of all cores that a process has taken."""
    user, system = (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    )
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def others_cores(own: Sequence[int]) -> Iterator[list[float]]:
    """A list that holds, after the block, how many cores others than our `own`
    processes kept busy.
    """

    def busy_s() -> float:
        user, nice, system, _, _, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().split()[1:9]
        )
        return (user + nice + system + irq + softirq + steal) / os.sysconf(
            "SC_CLK_TCK"
        ) - sum(map(cpu_s, own))

    found: list[float] = []
    began = time.monotonic()
    before = busy_s()
    yield found
    found.append(max(0.0, busy_s() - before) / (time.monotonic() - began))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(url: str, *beside: subprocess.Popen[bytes]) -> Any:
    """What a server answers, as soon as it does with success.

    Raises:
        StreamerError: it does not in time, or a process beside has ended.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.loads(answer.read())
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline or any(
                one.poll() is not None for one in beside
            ):
                raise StreamerError(f"{url} does not answer: {error}") from error
            time.sleep(0.1)
