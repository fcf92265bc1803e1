"""What tests of comparisons share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from streamer.cli.main import cli
from streamer.replay.evaluation.results import Measure, Run

TINY = ["--set", "dim=8", "--set", "batch_size=64", "--threads", "1"]
SIZES = {"users": 3, "items": 4, "events": 5}


def streamer(*arguments: object) -> str:
    """What a command prints; it must succeed."""
    result = CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def compare(log: Path, *arguments: object) -> list[dict[str, Any]]:
    """The runs of a tiny comparison."""
    found: list[dict[str, Any]] = json.loads(streamer("compare", "--data", log, "--json", *TINY, *arguments))
    return found


def figures(runs: list[dict[str, Any]], *, baselines: bool = False) -> list[dict[str, Any]]:
    """What was measured, without times."""
    return [m for run in runs for m in run["measures"] if m["k"] and bool(m["baseline"]) >= baselines]


def run(method: str = "xir", seed: int = 0, value: float = 0.5, **more: object) -> Run:
    """A run that was never run."""
    measures = [
        Measure("recall", 10, "all", value),
        Measure("hr", 10, "second-half/all", value / 2, "most-popular"),
    ]
    base = {"data": "log", "protocol": "offline", "measures": measures, "about": SIZES | {"epochs": 2}}
    return Run(method=method, seed=seed, **(base | more))  # type: ignore[arg-type]
