"""What `make setup` installs: the commands that it gives to uv, where there is a GPU and where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


class Setup:
    """A virtual environment whose uv only writes down what it is asked to install, and what to leave out."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "bin").mkdir(parents=True)
        for name in ("uv", "python", "streamer"):
            program = directory / "bin" / name
            program.write_text(f'#!/bin/sh\necho "{name} $@" >> {directory}/asked\n')
            program.chmod(0o755)

    def make(self, **variables: str) -> str:
        given = [f"{name}={value}" for name, value in variables.items()]
        command = ["make", f"VENV={self.directory}", *given, "setup"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def installs(self) -> list[str]:
        lines = (self.directory / "asked").read_text().splitlines()
        return [line for line in lines if line.startswith("uv pip install")]

    @property
    def excluded(self) -> list[str]:
        return (self.directory / "excluded.txt").read_text().split()


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path / "venv")


def test_without_a_gpu_what_only_a_gpu_needs_is_left_out_and_the_rest_explained_once(setup: Setup):
    said = setup.make(GPU="")
    (install,) = setup.installs
    assert f"--excludes {setup.directory}/excluded.txt" in install
    assert {"triton", "nvidia-cusolver"} <= set(setup.excluded)
    assert set(setup.excluded) <= {line.partition("==")[0] for line in (ROOT / "constraints.txt").open()}
    assert said.count("no NVIDIA GPU") == said.count("TORCH_INDEX=URL") == 1
    assert f"Installed into {setup.directory}: " in said


def test_with_a_gpu_everything_is_installed_without_a_word(setup: Setup):
    said = setup.make(GPU="/dev/nvidiactl")
    assert setup.excluded == []
    assert "GPU" not in said.replace("GPU_ONLY", "")


def test_an_index_that_the_user_names_gives_torch_and_nothing_else(setup: Setup):
    said = setup.make(GPU="", TORCH_INDEX="file:///builds/cpu")
    torch, others = setup.installs
    (pinned,) = [line.strip() for line in (ROOT / "constraints.txt").open() if line.startswith("torch==")]
    assert torch.endswith(f"--no-deps --default-index file:///builds/cpu {pinned}")
    assert "--default-index" not in others
    assert "no NVIDIA GPU" not in said


def test_what_the_next_steps_of_the_demo_need_is_installed_and_compiled(setup: Setup):
    setup.make(GPU="")
    assert setup.installs[-1].endswith("--editable .[serve]")
    last = (setup.directory / "asked").read_text().splitlines()[-1]
    assert last.startswith("streamer demo --events 30000 ")
