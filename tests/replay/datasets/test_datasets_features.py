"""Features of events, from columns of the log: trimmed and cut."""

from __future__ import annotations

import pytest
from contracts.dataset_contract import events_of

from streamer.replay.datasets import LogSettings, open_log


@pytest.mark.parametrize(
    ("cells", "features"),
    [
        ("tea,12", {"a": "tea", "b": "12"}),
        (" tea , 1 2 ", {"a": "tea", "b": "1 2"}),
        ("green tea,", {"a": "green tea"}),
        (",12", {"b": "12"}),
        (" ,", None),
        ('"""tea""",12', {"a": '"tea"', "b": "12"}),
        (f"tea,{'b' * 300}", {"a": "tea", "b": "b" * 256}),
    ],
)
def test_features_are_without_padding_and_empty_ones_are_left_out(write, cells, features):
    path = write("log.csv", f"user_id,item_id,a,b\nann,x,{cells}\n")
    assert (events_of(path, "csv", item_features=("a", "b")).item_features or [None]) == [features]


def test_features_are_cut_to_what_events_may_have(write):
    write("x.item", f"item_id:token\tstory:token\n7\t{'s' * 300}\n")
    events = events_of(write("x.inter", f"user_id:token\titem_id:token\tnote:token\n1\t7\t{'n' * 300}\n"), "recbole")
    assert events.item_features == [{"story": "s" * 256, "note": "n" * 256}]
    line = '{"user_id": 1, "item_id": 2, "item_features": {"a": "%s", "b": [1], "c": null, "d": true}}' % ("a" * 300)
    assert events_of(write("log.jsonl", line), "jsonl").item_features == [{"a": "a" * 256, "d": "true"}]


@pytest.mark.parametrize("most_shared", [1_000_000, 5])
def test_features_of_events_are_right_in_every_chunk_and_pass(write, monkeypatch, most_shared):
    monkeypatch.setattr("streamer.replay.datasets.log.MAX_SHARED", most_shared)
    rows = [f"u{n % 3},i{n % 5},{n % 4},c{n % 7},{'' if n % 2 else n}" for n in range(100)]
    path = write("log.csv", "user_id,item_id,timestamp,colour,size\n" + "\n".join(rows))
    options = LogSettings(item_features=("colour",), user_features=("size:float",))
    expected = [(f"i{n % 5}", f"c{n % 7}", None if n % 2 else float(n)) for n in range(100)]
    with open_log(path, "csv", options) as log:
        for pass_seed in (None, 1):
            found = [
                (item, of_item["colour"], (of_user or {}).get("size"))
                for e in log.batches(7, pass_seed)
                for item, of_item, of_user in zip(e.items, e.item_features, e.user_features or [None] * 7, strict=False)
            ]
            assert sorted(found, key=str) == sorted(expected, key=str)
