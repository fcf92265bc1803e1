"""Whole logs, with everything that real ones have: nothing is lost, nothing is added, the order is that of time."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from contracts.dataset_contract import events_of, rows_of
from generated_logs import LOGS, feature_of, write_log

from streamer.replay.datasets import open_log


@pytest.mark.parametrize("name", LOGS)
def test_log_has_all_its_users_items_and_events_in_the_order_of_time(tmp_path: Path, name: str):
    known = write_log(name, tmp_path)
    in_file = [(row.user, row.item, row.time_s) for row in known.rows]
    with open_log(known.path) as log:
        about, events = log.describe(), rows_of(log, chunk=1000)
        assert (log.name, log.malformed.total) == (known.kind, 0)
    assert (about["users"], about["items"], about["events"]) == (len(known.users), len(known.items), len(known.rows))
    assert Counter(events) == Counter(in_file)
    assert events == sorted(events, key=lambda event: event[2] or 0)
    assert events != in_file, "what has no order is shuffled"


def test_events_of_one_user_and_day_do_not_stand_together_any_more(tmp_path: Path):
    known = write_log("days", tmp_path)
    in_file = sum(a.user == b.user for a, b in pairwise(known.rows))
    in_stream = sum(a == b for a, b in pairwise(events_of(known.path).users))
    assert in_file > 2000 > 20 * in_stream


def test_raw_days_have_features_of_every_item_and_actions_by_name(tmp_path: Path):
    known = write_log("raw-days", tmp_path)
    events = events_of(known.path)
    for item, features in zip(events.items, events.item_features, strict=True):
        brand = {"brand_id": feature_of(item, 30)} if int(item) % 10 else {}
        assert features == {"cat_id": feature_of(item, 20), "seller_id": feature_of(item, 50)} | brand
    purchases = events_of(known.path, event_types=("purchase",))
    assert len(purchases) == sum(row.action == 2 for row in known.rows) > 0


def test_features_of_ratings_come_from_the_files_beside_them_without_names_of_single_things(tmp_path: Path):
    events = events_of(write_log("ratings", tmp_path).path)
    user, item = int(events.users[0]), int(events.items[0])
    assert events.user_features[0] == {"age": str(18 + user % 50), "gender": "FM"[user % 2], "occupation": "other"}
    assert events.item_features[0] == {
        "release_year": str(1960 + item % 40),
        "class": "Drama Comedy" if item % 2 else "Drama",
    }
