"""A trainer alone needs nothing of `streamer/lockstep`: without that room, everything else works."""

from __future__ import annotations

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
IMPORT_ALL = """
import importlib, pkgutil, streamer
for module in pkgutil.walk_packages(streamer.__path__, "streamer."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
RUN = ("run", "--until-end", "--dim", "8", "--cache-size", "16", "--json")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_the_room_of_a_group_everything_else_works(tmp_path):
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, symlinks=True)  # with what was compiled, which takes minutes
        else:
            shutil.copy(source, tmp_path / name)
    shutil.rmtree(tmp_path / "streamer/lockstep")
    shutil.rmtree(tmp_path / "tests/streamer/lockstep")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    def python(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    python("-c", f"import streamer; assert streamer.__file__.startswith({str(tmp_path)!r}), streamer.__file__")
    python("-c", IMPORT_ALL)
    python("-m", "streamer", "replay", "synthetic", "--events", "600", "--data-dir", "data")
    python("-m", "streamer", *RUN, "--data-dir", "data")
    python("-m", "pytest", "-q", "-x", "-m", "not slow and not servers", "-p", "no:cacheprovider", *QUICK)
