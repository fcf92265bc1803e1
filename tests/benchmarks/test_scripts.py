"""`benchmarks/`: every script runs at a tiny size, prints what it promises, and its figures fit together."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkpoint import Turn, lost
from benchmarks.replay import features_by_hand, read_by_hand, write_csv, write_tmall
from common import interleaved
from streamer.replay.datasets import open_log
from streamer.replay.events import Events

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def measured(capsys: pytest.CaptureFixture[str], name: str, options: str) -> dict[str, Any]:
    """What a script prints with `--json`."""
    importlib.import_module(f"benchmarks.{name}").main(["--json", *options.split()])
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def measure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], dict]:
    monkeypatch.setenv("STREAMER_BATCH_SIZE", "7")  # of a run: figures do not depend on it
    return lambda name, options: measured(capsys, name, options)


@pytest.mark.slow
def test_step(measure):
    small = "--batch-size 64 --cache-size 64 --dim 4 --items 500 --users 100 --many-items 1000 --rounds 1"
    found = measure("step", small)
    assert found.keys() == {"ms", "many_items_ms", "plain_ms", "ratios", "options"}
    assert found["ms"].keys() == {"ssl", "ssl-pop", "mns", "g-tower", "bir", "xir"}
    assert found["many_items_ms"].keys() == {"xir"}
    assert found["plain_ms"].keys() == {"ssl-pop", "bir", "xir"}
    assert found["ratios"].keys() == {
        "plain_xir_over_xir",
        "plain_bir_over_bir",
        "xir_over_plain_ssl_pop",
        "xir_over_plain_ssl_pop_with_row_adam",
        "xir_10m_items_over_41k",
    }
    ratio = found["plain_ms"]["xir"] / found["ms"]["xir"]
    assert found["ratios"]["plain_xir_over_xir"] == pytest.approx(ratio, rel=0.02)
    sizes = {"batch_size": 64, "cache_size": 64, "dim": 4, "items": 500, "users": 100, "many_items": 1000, "rounds": 1}
    assert found["options"].items() >= sizes.items()


@pytest.mark.slow
def test_ingest(measure):
    found = measure("ingest", "--events 2000 --rounds 1")
    embedded = found["embedded"]
    parts = {"ingest_only", "train_only", "whole_line", "whole_line_half_bad"}
    assert embedded.keys() == parts | {"whole_line_over_slower"}
    slower = min(embedded["ingest_only"], embedded["train_only"])
    assert embedded["whole_line_over_slower"] == pytest.approx(embedded["whole_line"] / slower, abs=0.01)
    assert (found["events"], found["rounds"]) == (2000, 1)


@pytest.mark.slow
def test_replay(measure):
    found = measure("replay", "--events 2000 --rounds 1")
    assert found.keys() == {"events", "rounds", "read", "read_features", "embedded", "file_to_embedded"}
    assert found["file_to_embedded"]["events_per_second"] > 0
    for part in ("read", "read_features", "embedded"):
        figures = found[part]
        assert figures["alternative"]
        ratio = figures["events_per_second"] / figures["alternative_events_per_second"]
        assert figures["ratio"] == pytest.approx(ratio, rel=0.01, abs=0.02)


@pytest.mark.slow
def test_metrics(measure):
    found = measure("metrics", "--steps 6 --batch-size 64 --items 500 --users 100")
    times = {"step_ms", "plain_step_ms", "metrics_us_a_step"}
    assert found.keys() == {"share", "ratio", "steps", "batch_size", "items"} | times
    assert 0 < found["share"] < 1
    assert found["ratio"] > 0
    assert (found["steps"], found["batch_size"], found["items"]) == (6, 64, 500)


@pytest.mark.slow
def test_checkpoint(measure):
    found = measure("checkpoint", "--ids 5000 --every 0.2 --rounds 1")
    (size,) = found["sizes"]
    assert 0 < size["delta"]["changed_share"] <= 1  # of the ids that are there
    assert 0 < size["delta"]["bytes"] < size["base"]["bytes"]
    assert found["delta_bytes_over_full"] == size["delta"]["bytes_over_full"] < 1
    assert found["longest_pause_ms"] >= size["base"]["longest_pause_ms"] > 0
    lost_share = size["delta"]["lost_s"] / 0.2
    assert found["throughput_over_without"] == pytest.approx(1 - lost_share, abs=0.01)
    assert found["peak_memory_over_without"] > 0
    assert size["restored_points"] == 2
    assert size["restart_s"] >= size["restored_s"] > 0


@pytest.mark.slow
def test_memory(measure):
    found = measure("memory", "--events 3000")
    assert found["bytes_per_user"] == pytest.approx(sum(found["by_part"]["user"].values()), abs=1)
    assert found["bytes_per_item"] == pytest.approx(sum(found["by_part"]["item"].values()), abs=1)
    assert found["users"] > found["items"] > 1000
    assert found["peak_rss_bytes"] > found["parts_bytes"] > found["fixed_bytes"] > 0
    assert "rss_over_parts" in found
    assert found["options"].keys() == {"events", "new_users", "new_items", "optimizer"}


@pytest.mark.slow
def test_scale(measure):
    found = measure("scale", "--batch-sizes 64 --items 300 --users 100 --steps 2 --rounds 1")
    rows = {(row["trainers"], row["negatives"]): row for row in found["table"]}
    assert set(rows) == {("plain", "global"), *((size, kind) for size in (1, 2) for kind in ("global", "local"))}
    assert rows["plain", "global"]["sent_bytes_a_step"] == rows[1, "local"]["sent_bytes_a_step"] == 0
    assert 0 < rows[2, "local"]["sent_bytes_a_step"] <= rows[2, "global"]["sent_bytes_a_step"]
    one, two = rows[1, "local"]["events_per_second"], rows[2, "local"]["events_per_second"]
    assert found["two_ranks_over_one"] == pytest.approx(two / one, abs=1e-3)
    assert found["two_ranks_over_one_on_cores"] > 0
    assert found["two_ranks_over_plain"] > 0
    assert 0 < found["communication_share"] < 1


@pytest.mark.slow
def test_serve(measure, monkeypatch):
    monkeypatch.setattr("benchmarks.serve.LEARNED_EVENTS", 3000)
    found = measure("serve", "--items 2500 --many-items 3000 --seconds 0.5 --rate 20 --connections 2")
    small, large = found["items"], found["many_items"]
    assert found["p99_ms_40k"] == small["beside_trainer"]["p99_ms"] >= small["beside_trainer"]["p50_ms"] > 0
    assert found["requests_per_second_40k"] == small["requests_per_second"] > 0
    over = large["requests_per_second"] / large["alternative_requests_per_second"]
    assert found["throughput_over_alternative_1m"] == pytest.approx(over, abs=0.01)
    assert large["alone"]["requests"] == 10
    assert found["p99_filtered_over_plain_1m"] == max(one["p99_over_plain"] for one in large["filtered"].values()) > 0
    assert min(large["cpu_ms_per_request"], large["alternative_cpu_ms_per_request"], large["memory_mb"]) > 0


@pytest.mark.slow
def test_freshness(measure):
    found = measure("freshness", "--seconds 2 --warm-up 1 --users 100 --items 200")
    for kind in ("recent_items_s", "new_item_s", "vectors_s"):
        assert found[kind].keys() == {"p50", "p99", "count"}
    assert found["source"] == "embedded"
    assert found["load"] >= 0


@pytest.mark.slow
def test_a_script_prints_tables_from_any_directory(tmp_path):
    command = [sys.executable, BENCHMARKS / "replay.py", "--events", "2000", "--rounds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "file to embedded" in done.stdout


def test_the_readme_names_every_script():
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    scripts = [path for path in BENCHMARKS.glob("*.py") if "def main(" in path.read_text(encoding="utf-8")]
    assert len(scripts) > 10
    missing = [path.name for path in scripts if path.name not in text]
    assert not missing


def test_every_part_has_its_turn_in_every_round_and_warming_up_does_not_count():
    calls: list[str] = []

    def part(name: str) -> list[int]:
        calls.append(name)
        return [len(calls)]

    found = interleaved({name: lambda name=name: part(name) for name in "ab"}, rounds=2, warm_up=1)
    assert "".join(calls) == "ababab"
    assert found == {"a": [3, 5], "b": [4, 6]}


def test_steps_that_become_slower_are_not_taken_for_the_cost_of_checkpoints():
    without = [Turn(100, seconds, 2 * seconds) for seconds in (1.0, 1.2, 1.4)]
    with_one = [Turn(100, 1.1 + 0.05, 2.2 + 0.08), Turn(100, 1.3 + 0.05, 2.6 + 0.08)]
    assert lost(with_one, without, "seconds") == pytest.approx(0.05)
    assert lost(with_one, without, "cpu_s") == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("name", "write", "by_hand"),
    [("csv", write_csv, read_by_hand), ("tmall", write_tmall, features_by_hand)],
)
def test_both_ways_of_reading_find_the_same(tmp_path: Path, name: str, write: Callable, by_hand: Callable):
    path = tmp_path / "log.csv"
    write(path, 3_000)
    expected = by_hand(path)
    with open_log(path, name) as log:
        [ours] = log.batches()
    assert ours.timestamps_s == expected.timestamps_s
    assert rows_of(ours) == rows_of(expected)


def rows_of(events: Events) -> list[str]:
    """In any order: equal times may stand in another."""
    about = events.item_features or [None] * len(events.items)
    return sorted(map(repr, zip(events.users, events.items, events.timestamps_s or (), about, strict=True)))
