"""Keys are documented as they are, and scripts touch what they are given."""

from __future__ import annotations

import re

import pytest

from streamer.cache_store.redis import schema
from streamer.cache_store.redis.schema import TYPES, Keys

SCRIPTS = {name: text for name, text in vars(schema).items() if name.isupper() and name != "TYPES"}


def test_the_table_lists_every_key_with_its_type() -> None:
    found, last = {}, ""
    for line in (schema.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4:
            last = cells[0] or last
            found[last] = found.get(last, "") + cells[1]
    del found["key"]
    found = {name.removeprefix("K:"): kind for name, kind in found.items() if name.startswith("K:")}
    assert found.pop("new:*") == "list,hash"
    assert found == TYPES


def test_all_keys_of_a_model_have_one_hash_tag() -> None:
    names = Keys("clicks", "shop")
    assert names.all() == [f"{{shop:clicks}}:{name}" for name in TYPES]
    assert names.new("items", "g1") == "{shop:clicks}:new:g1:items"
    assert names.models == "{shop}:models"


@pytest.mark.parametrize(("model", "namespace"), [("", "shop"), ("a{b", "shop"), ("a", ""), ("a", "}")])
def test_names_that_redis_would_misread_are_refused(model: str, namespace: str) -> None:
    with pytest.raises(ValueError, match="without braces"):
        Keys(model, namespace)


def test_a_namespace_without_colons_keeps_models_apart() -> None:
    assert Keys("b:c", "a").tag == "{a:b:c}"
    with pytest.raises(ValueError, match="namespace is 'a:b': give a name without colons"):
        Keys("c", "a:b")


def test_every_key_has_a_type_to_check() -> None:
    names = Keys("clicks", "shop")
    assert names.types().keys() == {*names.all(), names.models}
    assert names.types()[names.log] == "stream"


def test_other_attributes_are_none() -> None:
    with pytest.raises(AttributeError):
        _ = Keys("clicks").nothing


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_touches_only_keys_that_it_is_given_and_documents(name: str) -> None:
    calls = re.findall(r"redis\.call\('(\w+)'(?:,\s*([^,)]+))?", SCRIPTS[name])
    assert calls
    assert all(key.startswith("KEYS[") for command, key in calls if command != "TIME"), calls
    documented = re.search(r"-- KEYS: ([^.]+)\.", SCRIPTS[name])
    assert documented, "KEYS are not documented"
    used = [int(number) for number in re.findall(r"KEYS\[(\d+)\]", SCRIPTS[name])]
    assert max(used) <= len(documented[1].split(","))
    assert {word.strip() for word in documented[1].split(",")} <= {*TYPES, "new items", "new rows", "new snapshot"}


@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - {"HEARTBEAT"}))
def test_a_script_documents_what_it_returns(name: str) -> None:
    assert "-- Returns" in SCRIPTS[name]
