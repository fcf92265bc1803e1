from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from streamer.cli.bench import bench
from streamer.replay.bench import features_by_hand, read_by_hand, write_csv, write_tmall
from streamer.replay.datasets import open_log


def test_both_ways_of_reading_find_the_same_events(tmp_path: Path):
    path = tmp_path / "log.csv"
    write_csv(path, 3_000)
    by_hand = read_by_hand(path)
    with open_log(path, "csv") as log:
        [ours] = log.batches()
    assert ours.timestamps_s == by_hand.timestamps_s
    rows = [sorted(zip(e.users, e.items, e.timestamps_s or (), strict=True)) for e in (ours, by_hand)]
    assert rows[0] == rows[1]


def test_both_ways_of_reading_find_the_same_features(tmp_path: Path):
    path = tmp_path / "user_log_format1.csv"
    write_tmall(path, 3_000)
    by_hand = features_by_hand(path)
    with open_log(path, "tmall") as log:
        [ours] = log.batches()
    assert ours.timestamps_s == by_hand.timestamps_s
    rows = [sorted(map(repr, zip(e.users, e.items, e.item_features or (), strict=True))) for e in (ours, by_hand)]
    assert rows[0] == rows[1]


def test_each_figure_stands_beside_a_named_alternative():
    result = CliRunner().invoke(bench, ["replay", "--events", "2000", "--rounds", "1", "--json"])
    assert result.exit_code == 0, repr(result.exception)
    found = json.loads(result.stdout)
    for part in ("read", "read_features", "embedded"):
        ratio = found[part]["events_per_second"] / found[part]["alternative_events_per_second"]
        assert found[part]["alternative"]
        assert abs(found[part]["ratio"] - ratio) < 0.02 + 0.01 * ratio
    assert "file to embedded" in CliRunner().invoke(bench, ["replay", "--events", "2000", "--rounds", "1"]).stdout
