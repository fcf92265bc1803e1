"""Features of many events at once are those of each of them."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from streamer.replay.datasets.base import SEPARATOR, FeatureColumn
from streamer.replay.datasets.features import LONGEST_FEATURE, FeatureReader

NAMES = ("brand", "seller")
plain = st.text("ab1", min_size=1, max_size=3)
odd = st.sampled_from(["", " ", "a b", ' a"', '"a"', "a" * (LONGEST_FEATURE + 1), f"a{SEPARATOR}b", "\u2003"])
texts = st.lists(st.tuples(plain, plain | odd).map(SEPARATOR.join), max_size=5)


def read(texts: list[str]) -> list[object]:
    found = np.empty(len(texts), object)
    found[:] = texts
    reader = FeatureReader([FeatureColumn(name, name) for name in NAMES], found, {})
    return reader.read(["i"] * len(texts), np.arange(len(texts))) or [None] * len(texts)


@given(texts)
@example([f"a{SEPARATOR}b", f"a{SEPARATOR}b{SEPARATOR}c"])
def test_together_they_are_what_they_are_one_by_one(texts):
    assert read(texts) == [features for text in texts for features in read([text])]


@given(plain, plain)
def test_plain_values_stay_as_they_are(brand, seller):
    assert read([f"{brand}{SEPARATOR}{seller}"]) == [{"brand": brand, "seller": seller}]


def test_odd_ones_are_unpadded_unquoted_cut_and_left_out():
    odd = [f"{SEPARATOR} ", f" a {SEPARATOR}", f'"a b"{SEPARATOR}x', f"a{SEPARATOR}{'b' * (LONGEST_FEATURE + 1)}"]
    assert read(odd) == [
        None,
        {"brand": "a"},
        {"brand": "a b", "seller": "x"},
        {"brand": "a", "seller": "b" * LONGEST_FEATURE},
    ]
