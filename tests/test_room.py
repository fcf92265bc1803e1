"""A trainer alone needs nothing of `streamer/lockstep`: without that room, everything else works."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("streamer", "model", "cache_store", "replay", "benchmarks", "tests", "pyproject.toml")
QUICK = (
    "tests/streamer/test_pipeline.py::TestAccounting",
    "tests/streamer/test_pipeline.py::TestStatus",
    "tests/streamer/ingest/test_batcher.py",
    "tests/streamer/ingest/test_offsets.py",
    "tests/streamer/test_learner.py",
    "tests/streamer/snapshot/test_checkpoint.py",
    "tests/streamer/metrics/test_metrics_monitor.py",
    "tests/streamer/test_reporting.py",
)
WITHOUT_A_GROUP = """
import importlib, pkgutil, sys, pytest, streamer
from streamer.cli.main import cli

*quick, where = sys.argv[1:]
assert streamer.__file__.startswith(where), streamer.__file__
for module in pkgutil.walk_packages(streamer.__path__, "streamer."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
cli.main("replay synthetic --events 600 --data-dir data".split(), standalone_mode=False)
cli.main("run --until-end --dim 8 --cache-size 16 --json --data-dir data".split(), standalone_mode=False)
sys.exit(pytest.main(["-q", "-x", "-m", "not slow and not servers", "-p", "no:cacheprovider", *quick]))
"""


def rename_compiled(copy: Path) -> None:
    """Let numba find the copy's compiled loops: it looks for them by a hash of the path of their sources."""
    for name, _, _ in os.walk(ROOT / "streamer", followlinks=True):
        path = copy / Path(name).relative_to(ROOT)
        old, new = (f"{path.name}_{hashlib.sha1(str(of).encode()).hexdigest()}" for of in (name, path))
        for compiled in (copy / "model" / "__pycache__").glob(f"loops-*/{old}"):
            compiled.rename(compiled.with_name(new))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_the_room_of_a_group_everything_else_works(tmp_path):
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, symlinks=True)
        else:
            shutil.copy(source, tmp_path / name)
    rename_compiled(tmp_path)
    shutil.rmtree(tmp_path / "streamer/lockstep")
    shutil.rmtree(tmp_path / "tests/streamer/lockstep")
    command = [sys.executable, "-c", WITHOUT_A_GROUP, *QUICK, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
