from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from streamer.cli.bench import bench
from streamer.replay.bench import features_by_hand, read_by_hand, write_csv, write_tmall
from streamer.replay.datasets import open_log
from streamer.replay.events import Events


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


@pytest.mark.slow
def test_each_figure_stands_beside_a_named_alternative():
    result = CliRunner().invoke(bench, ["replay", "--events", "2000", "--rounds", "1", "--json"])
    assert result.exit_code == 0, repr(result.exception)
    found = json.loads(result.stdout)
    for part in ("read", "read_features", "embedded"):
        ratio = found[part]["events_per_second"] / found[part]["alternative_events_per_second"]
        assert found[part]["alternative"]
        assert abs(found[part]["ratio"] - ratio) < 0.02 + 0.01 * ratio
    assert "file to embedded" in CliRunner().invoke(bench, ["replay", "--events", "2000", "--rounds", "1"]).stdout
