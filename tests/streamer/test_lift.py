"""Fields and features that stand elsewhere than the decoder looks for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.event import Decoded, EventDecoder, EventSettings
from streamer.event.lift import FeatureNames, Lift
from streamer.sources.base import Chunk, Partition

DEEP = {"item_id": "event.product.id", "user_id": "who.id"}
FEATURES = FeatureNames(("category", "price", "product.brand"), ("country",))


def decoded(*values: Any, features: FeatureNames | None = None, **settings: Any) -> Decoded:
    records = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    count = len(records)
    chunk = Chunk(Partition("t", 0), list(range(count)), [1000] * count, [None] * count, records)
    return EventDecoder(EventSettings(**settings), "catalogue", features).decode(chunk)


def test_a_name_with_dots_is_a_path_also_in_arrays():
    event = {"who": {"id": 7}, "event": {"product": {"id": "sku-1", "name": "x"}}}
    found = decoded(event, [event, event], fields=DEEP)
    assert (found.users, found.items) == (["7"] * 3, ["sku-1"] * 3)
    assert not found.letters


def test_a_member_of_just_that_name_wins_over_the_path():
    found = decoded({"who.id": "flat", "who": {"id": "deep"}, "item_id": 1}, fields={"user_id": "who.id"})
    assert found.users == ["flat"]


@pytest.mark.parametrize("who", [None, 3, "text", [1], {}, {"name": 1}])
def test_what_is_not_at_the_path_is_missing_and_the_letter_holds_the_record_as_it_came(who):
    value = json.dumps({"who": who, "item_id": 1}).encode()
    found = decoded(value, fields={"user_id": "who.id"})
    (letter,) = found.letters
    assert (letter.reason, letter.value) == ("missing_user_id", value)
    assert "'who.id'" in letter.detail


def test_features_are_found_beside_their_objects_and_those_inside_win():
    event = {"user_id": 1, "item_id": 2}
    found = decoded(
        event | {"category": "jazz", "price": 2.5, "country": "NL", "product": {"brand": "Blue"}, "other": 1},
        event | {"category": "jazz", "item_features": {"category": "rock", "price": 1.0}},
        event | {"category": ["a", "list"], "price": None, "country": {"an": "object"}},
        event | {"item_features": {"category": "folk"}},
        features=FEATURES,
    )
    assert found.item_features == [
        {"category": "jazz", "price": 2.5, "product.brand": "Blue"},
        {"category": "rock", "price": 1.0},
        None,
        {"category": "folk"},
    ]
    assert found.user_features == [{"country": "NL"}, None, None, None]
    assert not found.letters


def test_catalogue_events_have_them_too():
    item = {"item_id": 2, "category": "jazz", "title": "Kind of Blue", "kind": "item"}
    found = decoded(item, features=FEATURES, fields={"event_type": "kind"}, catalogue_types=("item",))
    assert found.item_features == [{"category": "jazz", "title": "Kind of Blue"}]


def test_a_feature_that_is_too_long_or_no_object_to_put_it_into_is_a_dead_letter():
    event = {"user_id": 1, "item_id": 2, "category": "x" * 300}
    found = decoded(event, event | {"item_features": [1], "category": "x"}, features=FEATURES)
    assert [letter.reason for letter in found.letters] == ["feature_too_long", "bad_features"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["who", "id", "event", "product", "category", "item_features"]), inner)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=20) | json_values.map(lambda value: json.dumps(value).encode()))
def test_nothing_that_a_record_holds_makes_it_raise_or_lose_what_was_there(value):
    lift = Lift(EventSettings(fields=DEEP), FEATURES)
    lifted = lift(value)
    if lifted != value:
        before, after = json.loads(value), json.loads(lifted)
        for name, content in before.items():
            if name != "item_features":
                assert after[name] == content
    decoded(value, fields=DEEP, features=FEATURES)


def test_a_name_that_json_must_escape_is_looked_for_only_where_features_are():
    names = FeatureNames(('say "so"', "ü", "category"))
    event = {"user_id": 1, "item_id": 2, "category": "jazz"}
    found = decoded(event | {"item_features": {'say "so"': "yes"}}, features=names)
    assert found.item_features == [{'say "so"': "yes", "category": "jazz"}]


def test_without_such_names_records_are_not_looked_at_twice():
    assert not Lift(EventSettings(fields={"user_id": "uid"}), FeatureNames()).is_needed
