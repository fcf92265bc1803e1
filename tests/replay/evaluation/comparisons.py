"""What tests of comparisons share."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from streamer.cli.main import cli
from streamer.replay.evaluation.record import Measure, Record

TINY = ["--set", "dim=8", "--set", "batch_size=64", "--threads", "1"]


def streamer(*arguments: object) -> str:
    """What a command prints; it must succeed."""
    result = CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_in(out: Path, timed: bool = True) -> list[dict[str, object]]:
    """Rows of results.json, with or without those that measure time."""
    rows = json.loads((out / "results.json").read_text())
    return [row for row in rows if timed or row["k"]]


def record(method: str = "xir", seed: int = 0, value: float = 0.5, **more: object) -> Record:
    """A run that was never run."""
    measures = [
        Measure("recall", 10, "all", value),
        Measure("hr", 10, "second-half/all", value / 2, "most-popular"),
    ]
    about = {"users": 3, "items": 4, "events": 5, "epochs": 2}
    base = {"data": "log", "protocol": "offline", "settings": {}, "log": {}, "measures": measures, "about": about}
    return Record(method=method, seed=seed, **(base | more))  # type: ignore[arg-type]
