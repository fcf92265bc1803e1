"""A server's process, which never outlives the tests, its folder, and how to get its program."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Self

import pytest


class ServerUnavailable(Exception):  # noqa: N818  (reads as a state)
    """The server can neither be found nor started here; the text says what was tried."""


def skip_or_fail(reason: str) -> NoReturn:
    """Skip loudly on a developer's machine; fail under CI, where a skipped server would hide broken code."""
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, so this must not be skipped: {reason}", pytrace=False)
    pytest.skip(f"NOT TESTED: {reason}")


def cache_dir() -> Path:
    """The folder for downloads that later runs use again."""
    given = os.environ.get("STREAMER_TEST_CACHE")
    path = Path(given) if given else Path.home() / ".cache" / "streamer-tests"
    path.mkdir(parents=True, exist_ok=True)
    return path


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1 that nobody uses now, all different, and below those that connections are given."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.SystemRandom().randrange(10_000, 32_768)  # a seed would be that of other processes, too
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found


def program(*names: str, package: str) -> str:
    """The first of these programs that is on the PATH. If there is none, Debian's package is installed.

    Raises:
        ServerUnavailable: it cannot be installed.
    """
    if not _first(names):
        with alone():
            if not _first(names):  # another process may have been quicker
                apt_install(package)
    found = _first(names)
    if not found:
        raise ServerUnavailable(f"there is no {' or '.join(names)} on the PATH, though {package} is installed")
    return found


def _first(names: Sequence[str]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Of all tests that run on this machine, only one at a time installs something."""
    with (cache_dir() / "installing.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def apt_install(*packages: str) -> None:
    """Install Debian packages if we may; no service that they bring is started.

    Raises:
        ServerUnavailable: we are not root, there is no apt-get, or it failed.
    """
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ServerUnavailable(f"cannot install {' '.join(packages)}: that needs root and apt-get")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    with _no_services():
        for command in (install, ["apt-get", "update", "-qq"], install):
            done = _apt(command)
            if command is install and done.returncode == 0:
                return
    raise ServerUnavailable(f"`{' '.join(install)}` failed: {done.stderr.strip()[-500:]}")


def _apt(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Debian asks this script whether a package may start its service; if there is none yet, ours says no."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def is_running(pid: int) -> bool:
    """A zombie that nobody waited for does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Process:
    """A server process in a process group of its own, with its output in a file.

    It is stopped by `stop` or `kill`, at the latest when Python exits; where `setpriv` exists, the kernel kills
    it even if Python is killed. (The kernel watches the thread that started it: start it from one that stays.)
    """

    def __init__(self, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        setpriv = shutil.which("setpriv")
        guard = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                [*guard, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        return self._child.pid

    def running(self) -> bool:
        return self._child.poll() is None

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `ready()`; if it takes too long or the process ends, kill it and raise with its last words."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running() or time.monotonic() > deadline:
                state = "did not get ready" if self.running() else f"ended with {self._child.returncode}"
                self.kill()
                raise ServerUnavailable(f"{Path(str(self._child.args[0])).name} {state}:\n{self.tail()}")  # type: ignore[index]
            time.sleep(0.05)

    def tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, timeout_s: float = 20) -> None:
        """SIGTERM, then SIGKILL if it does not end in time."""
        self._signal(signal.SIGTERM)
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        atexit.unregister(self.kill)

    def kill(self) -> None:
        """SIGKILL to the whole group, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._child.wait()
        atexit.unregister(self.kill)

    def _signal(self, number: int) -> None:
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)


class LocalServer:
    """A server that runs as a process of this machine, with a folder of its own. A `with` block removes both.

    Args:
        name: what it is, for the name of its folder.
        address: where clients find it.
    """

    def __init__(self, name: str, address: str) -> None:
        self.address = address
        self.home = Path(tempfile.mkdtemp(prefix=f"streamer-{name}-"))
        self.log = self.home / "server.log"
        self._process: Process | None = None

    def start(self) -> None:
        """Start it, also again after `stop` or `kill`, and wait until it can be used.

        Raises:
            ServerUnavailable: it does not start; with its last words.
        """
        raise NotImplementedError

    def _run(self, command: Sequence[str | Path], ready: Callable[[], bool]) -> None:
        self.log.write_bytes(b"")
        self._process = Process(command, self.log)
        self._process.wait_until(ready, timeout_s=60)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running()

    def stop(self) -> None:
        """Shut it down in good order."""
        if self._process:
            self._process.stop()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process:
            self._process.kill()

    def delete(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.delete()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()
