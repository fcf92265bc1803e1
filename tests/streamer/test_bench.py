"""`streamer bench`: what all benches have in common, and small runs of those without tests of their own."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from streamer.bench.base import interleaved
from streamer.bench.catalogue import BENCHES
from streamer.bench.checkpoint import Turn, lost
from streamer.cli.bench import bench


def measured(*arguments: str) -> dict:
    result = CliRunner().invoke(bench, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_part_has_its_turn_in_every_round_and_warming_up_does_not_count():
    calls: list[str] = []

    def part(name: str) -> list[int]:
        calls.append(name)
        return [len(calls)]

    found = interleaved({name: lambda name=name: part(name) for name in "ab"}, rounds=2, warm_up=1)
    assert "".join(calls) == "ababab"
    assert found == {"a": [3, 5], "b": [4, 6]}


@pytest.mark.parametrize("kind", BENCHES, ids=lambda kind: kind.name)
def test_every_bench_is_a_command_with_the_defaults_of_its_settings(kind, monkeypatch):
    monkeypatch.setenv("STREAMER_BATCH_SIZE", "7")  # of a run: figures do not depend on it
    monkeypatch.setenv("STREAMER_REDIS_URL", "redis://in-production")
    with bench.commands[kind.name].make_context(kind.name, []) as context:
        assert kind(**{name: context.params[name] for name in kind.all()}) == kind()
    assert callable(importlib.import_module(kind.module).measure)


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from streamer.cli.main import cli\n"
        "cli(['bench', 'step', '--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'numba', 'kafka', 'redis'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--many-items" in done.stdout


@pytest.mark.slow
def test_the_price_of_a_step_stands_beside_the_authors_way():
    small = ["--batch-size", "64", "--cache-size", "64", "--dim", "4", "--items", "500", "--users", "100"]
    found = measured("step", *small, "--many-items", "1000", "--rounds", "1")
    assert found.keys() == {"ms", "many_items_ms", "plain_ms", "ratios", "options"}
    assert found["ms"].keys() == {"ssl", "ssl-pop", "mns", "g-tower", "bir", "xir"}
    assert found["plain_ms"].keys() == {"ssl-pop", "bir", "xir"}
    assert found["ratios"]["plain_xir_over_xir"] == pytest.approx(
        found["plain_ms"]["xir"] / found["ms"]["xir"], rel=0.02
    )
    assert found["options"] | {"threads": None} == {
        "batch_size": 64,
        "cache_size": 64,
        "dim": 4,
        "items": 500,
        "users": 100,
        "many_items": 1000,
        "threads": None,
        "rounds": 1,
    }


@pytest.mark.slow
def test_the_whole_line_stands_beside_its_parts():
    found = measured("ingest", "--events", "2000", "--rounds", "1")
    embedded = found["embedded"]
    slower = min(embedded["ingest_only"], embedded["train_only"])
    assert embedded["whole_line_over_slower"] == pytest.approx(embedded["whole_line"] / slower, abs=0.01)
    assert (found["events"], found["rounds"]) == (2000, 1)


@pytest.mark.slow
def test_checkpoints_stand_beside_training_without():
    figures = measured("checkpoint", "--ids", "5000", "--every", "0.2", "--rounds", "1")
    (size,) = figures["sizes"]
    assert 0 < size["delta"]["changed_share"] <= 1  # of the ids that are there
    assert 0 < size["delta"]["bytes"] < size["base"]["bytes"]
    assert figures["delta_bytes_over_full"] == size["delta"]["bytes_over_full"] < 1
    assert figures["longest_pause_ms"] >= size["base"]["longest_pause_ms"] > 0
    assert figures["throughput_over_without"] == pytest.approx(1 - size["delta"]["lost_s"] / 0.2, abs=0.01)
    assert figures["peak_memory_over_without"] > 0
    assert size["restored_points"] == 2
    assert size["restart_s"] >= size["restored_s"] > 0


def test_steps_that_become_slower_are_not_taken_for_the_cost_of_checkpoints():
    without = [Turn(100, seconds, 2 * seconds) for seconds in (1.0, 1.2, 1.4)]
    with_one = [Turn(100, 1.1 + 0.05, 2.2 + 0.08), Turn(100, 1.3 + 0.05, 2.6 + 0.08)]
    assert lost(with_one, without, "seconds") == pytest.approx(0.05)
    assert lost(with_one, without, "cpu_s") == pytest.approx(0.08)


@pytest.mark.slow
def test_groups_of_trainers_stand_beside_a_plain_one():
    small = ["--batch-sizes", "64", "--items", "300", "--users", "100", "--steps", "2", "--rounds", "1"]
    found = measured("scale", *small)
    rows = {(row["trainers"], row["negatives"]): row for row in found["table"]}
    assert set(rows) == {("plain", "global"), *((size, kind) for size in (1, 2) for kind in ("global", "local"))}
    assert rows["plain", "global"]["sent_bytes_a_step"] == rows[1, "local"]["sent_bytes_a_step"] == 0
    assert 0 < rows[2, "local"]["sent_bytes_a_step"] <= rows[2, "global"]["sent_bytes_a_step"]
    one, two = rows[1, "local"]["events_per_second"], rows[2, "local"]["events_per_second"]
    assert found["two_ranks_over_one"] == pytest.approx(two / one, abs=1e-3)
    assert 0 < found["communication_share"] < 1
