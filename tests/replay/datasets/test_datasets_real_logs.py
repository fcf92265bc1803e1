"""The real logs, where they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from streamer.replay.datasets import LogSettings, open_log

DATA = Path(__file__).parents[3].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real logs are not at {DATA}")


@pytest.mark.parametrize(
    ("file", "name", "users", "items", "events"),
    [
        ("gowalla.inter.gz", "recbole", 29_858, 40_988, 1_027_464),
        ("gowalla-time.inter.gz", "recbole", 13_998, 61_503, 153_563),
        ("tmall.inter.gz", "recbole", 32_542, 13_714, 217_620),
        ("tmall_user_log_format1.sample.csv.gz", "tmall", 358, 4_861, 10_000),
        ("ml-100k.inter.gz", "recbole", 943, 1_682, 100_000),
    ],
)
def test_real_log_has_all_its_users_items_and_events(file, name, users, items, events):
    with open_log(DATA / file) as log:
        told = log.describe()
        assert (log.name, told["users"], told["items"], told["events"]) == (name, users, items, events)
        assert log.malformed.total == 0


def test_tmall_sample_has_features_of_every_item_and_its_actions():
    with open_log(DATA / "tmall_user_log_format1.sample.csv.gz") as log:
        (events,) = log.batches()
    assert all(features.keys() >= {"cat_id", "seller_id"} for features in events.item_features)
    with open_log(DATA / "tmall_user_log_format1.sample.csv.gz", None, LogSettings(event_types=("purchase",))) as log:
        assert 0 < len(log) < 10_000


def test_ml_100k_features_come_from_the_files_beside_it():
    with open_log(DATA / "ml-100k.inter.gz") as log:
        (events, *_) = log.batches()
    assert {"gender", "occupation", "age"} == set().union(*map(dict.keys, events.user_features))
    assert {"release_year", "class"} == set().union(*(f for f in events.item_features if f))


def test_ml_100k_ten_core_of_good_ratings_is_one():
    options = LogSettings(min_rating=4, min_user_events=10, min_item_events=10)
    with open_log(DATA / "ml-100k.inter.gz", "recbole", options) as log:
        found = log.interactions()
    assert min(Counter(found.users.tolist()).values()) >= 10
    assert min(Counter(found.items.tolist()).values()) >= 10
    assert 40_000 < len(found) < 55_375
