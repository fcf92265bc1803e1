"""Packed entries, snapshots and caches: what goes in comes out, and nothing else than ours is taken for ours."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.cache_store.codec import (
    FORMAT,
    MalformedEntry,
    StoreDelta,
    fingerprint,
    pack,
    pack_delta,
    pack_rows,
    unpack,
    unpack_delta,
    unpack_rows,
)
from streamer.cache_store.contribution import Increments, OffsetSpan
from streamer.cache_store.replica import LogPosition, StoreReplica

ITEMS = 1 << 63
"""More than any row."""
counts = st.one_of(st.integers(0, 10), st.integers(2**32 - 2, 2**32 + 2), st.integers(0, 2**63 - 1))
arrays = st.lists(counts, max_size=20).map(lambda numbers: np.array(numbers, np.int64))
pairs = st.dictionaries(st.integers(0, 2**40), st.integers(1, 2**40), max_size=10)
increments = pairs.map(
    lambda d: Increments(np.array(sorted(d), np.int64), np.array([d[row] for row in sorted(d)], np.int64))
)
spans = st.builds(OffsetSpan, st.text(max_size=5), st.integers(0, 2**53), st.integers(0, 2**53))
entries = st.builds(
    StoreDelta,
    trainer=st.text(max_size=10),
    last=st.integers(0, 2**53),
    events=st.integers(0, 2**53),
    spans=st.lists(spans, max_size=3).map(tuple),
    items=increments,
    drawn=increments,
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)


def equal(a: Increments, b: Increments) -> bool:
    return a.rows.tolist() == b.rows.tolist() and a.counts.tolist() == b.counts.tolist()


@given(st.lists(arrays, max_size=4), st.dictionaries(st.text(), st.integers(-(2**53), 2**53)))
def test_what_is_packed_comes_out(given_arrays: list[Any], meta: dict[str, int]) -> None:
    found_meta, found = unpack(pack(meta, given_arrays))
    assert found_meta == meta
    assert [a.tolist() for a in found] == [a.tolist() for a in given_arrays]
    assert all(a.dtype == np.int64 for a in found)


@given(entries)
def test_entries_come_out_as_they_went_in(entry: StoreDelta) -> None:
    found = unpack_delta(pack_delta(entry), ITEMS)
    assert (found.trainer, found.last, found.events) == (entry.trainer, entry.last, entry.events)
    assert found.spans == entry.spans
    assert equal(found.items, entry.items)
    assert equal(found.drawn, entry.drawn)


@given(st.lists(st.integers(0, 2**40), max_size=50))
def test_caches_come_out_as_they_went_in(rows: list[int]) -> None:
    assert unpack_rows(pack_rows(np.array(rows, np.int64)), ITEMS).tolist() == rows


@given(st.lists(entries, max_size=3))
def test_replicas_come_out_as_they_went_in(given_entries: list[StoreDelta]) -> None:
    replica = StoreReplica(LogPosition.beginning("g"))
    for number, entry in enumerate(given_entries):
        items, drawn = (Increments(part.rows % 1000, part.counts % 1000) for part in (entry.items, entry.drawn))
        position = LogPosition("g", number + 1, f"c{number}", f"{number}-1")
        replica.apply(StoreDelta(entry.trainer, entry.last, entry.events, entry.spans, items, drawn), position)
    found = StoreReplica.unpack(replica.pack())
    assert found.position == replica.position
    assert (found.next_offsets, found.events) == (replica.next_offsets, replica.events)
    assert found.counts.tolist() == replica.counts.tolist()
    assert found.drawn.tolist() == replica.drawn.tolist()


@pytest.mark.parametrize(
    ("largest", "width"), [(2**8 - 1, 1), (2**8, 2), (2**16 - 1, 2), (2**16, 4), (2**32 - 1, 4), (2**32, 8)]
)
def test_numbers_take_as_many_bytes_as_the_largest_needs(largest: int, width: int) -> None:
    numbers = np.array([0] * 999 + [largest])
    packed = pack_rows(numbers)
    assert 1000 * width < len(packed) < 1000 * width + 200
    assert unpack_rows(packed, ITEMS).tolist() == numbers.tolist()


def test_an_entry_of_neighbouring_rows_takes_two_bytes_for_each() -> None:
    rows, ones = np.arange(200, 300_000, 200), np.ones(1499, np.int64)
    entry = StoreDelta("ada", 1, 1499, (), Increments(rows, ones), Increments(ones[:0], ones[:0]))
    packed = pack_delta(entry)
    assert 2 * 1499 < len(packed) < 2 * 1499 + 200
    assert equal(unpack_delta(packed, ITEMS).items, entry.items)


def test_rows_that_overflow_are_refused() -> None:
    meta = {"t": "ada", "n": 1, "e": 1, "s": []}
    large = np.full(2, 2**62)
    packed = pack(meta, [large, np.ones(2, np.int64), large[:0], large[:0]])
    with pytest.raises(MalformedEntry, match="names row"):
        unpack_delta(packed, ITEMS)


def test_rows_that_no_item_has_are_refused() -> None:
    one, none = Increments(np.array([300_000_000]), np.array([1])), Increments(*np.empty((2, 0), np.int64))
    for entry in (StoreDelta("ada", 1, 1, (), one, none), StoreDelta("ada", 1, 1, (), none, one)):
        with pytest.raises(MalformedEntry, match="names row 300,000,000, and there are 300,000,000 items"):
            unpack_delta(pack_delta(entry), 300_000_000)
        assert unpack_delta(pack_delta(entry), 300_000_001).last == 1
    with pytest.raises(MalformedEntry, match="names row 7, and there are 7 items"):
        unpack_rows(pack_rows(np.array([7])), 7)


def only_malformed(packed: bytes) -> None:
    """Whatever these bytes are, they are read or refused."""
    for read in (unpack, partial(unpack_delta, items=ITEMS), partial(unpack_rows, items=ITEMS), StoreReplica.unpack):
        try:
            read(packed)
        except MalformedEntry:
            continue


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(packed: bytes) -> None:
    with pytest.raises(MalformedEntry):
        unpack(packed)
    only_malformed(packed)


@given(entries, st.data())
def test_a_byte_more_or_less_is_refused_and_a_changed_one_breaks_nothing(
    entry: StoreDelta, data: st.DataObject
) -> None:
    packed = pack_delta(entry)
    at = data.draw(st.integers(0, len(packed) - 1))
    for broken in (packed[:at], packed + b"x"):
        with pytest.raises(MalformedEntry):
            unpack_delta(broken, ITEMS)
        only_malformed(broken)
    only_malformed(packed[:at] + bytes([data.draw(st.integers(0, 255))]) + packed[at + 1 :])


@given(
    version=st.one_of(st.just(FORMAT), json_values),
    lengths=st.one_of(st.lists(st.integers(-3, 3), max_size=4), json_values),
    widths=st.one_of(st.lists(st.sampled_from([1, 2, 4, 8, 0, -4, 3]), max_size=4), json_values),
    meta=st.one_of(json_values, st.dictionaries(st.sampled_from("tnes"), json_values)),
    body=st.binary(max_size=64),
)
def test_any_header_is_read_or_refused(version: Any, lengths: Any, widths: Any, meta: Any, body: bytes) -> None:
    header = json.dumps({"v": version, "lengths": lengths, "widths": widths, "meta": meta}).encode()
    only_malformed(len(header).to_bytes(4, "little") + header + body)


@given(
    position=json_values,
    following=json_values,
    events=json_values,
    sizes=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_any_snapshot_is_read_or_refused(position: Any, following: Any, events: Any, sizes: tuple[int, int]) -> None:
    meta = {"position": position, "next": following, "events": events}
    try:
        packed = pack(meta, [np.zeros(size, np.int64) for size in sizes])
    except ValueError:  # no JSON
        return
    only_malformed(packed)


@pytest.mark.parametrize(
    "header",
    [
        {"v": FORMAT + 1, "lengths": [], "widths": [], "meta": {}},
        {"v": FORMAT, "lengths": [-1, 2], "widths": [4, 4], "meta": {}},
        {"v": FORMAT, "lengths": [10**30], "widths": [4], "meta": {}},
        {"v": FORMAT, "lengths": [1], "widths": [4, 4], "meta": {}},
    ],
)
def test_headers_of_others_are_refused(header: dict[str, Any]) -> None:
    encoded = json.dumps(header).encode()
    with pytest.raises(MalformedEntry):
        unpack(len(encoded).to_bytes(4, "little") + encoded + b"\x00" * 4)


def test_a_header_that_is_nested_without_end_is_refused() -> None:
    header = b'{"v":1,"lengths":[],"widths":[],"meta":{"s":' + b"[" * 100_000
    with pytest.raises(MalformedEntry):
        unpack(len(header).to_bytes(4, "little") + header)


def test_numbers_below_zero_are_refused() -> None:
    packed = pack_rows(np.array([2**40]))
    with pytest.raises(MalformedEntry, match="below zero"):
        unpack_rows(packed[:-8] + np.array([-1], "<i8").tobytes(), ITEMS)


def test_rows_and_counts_that_do_not_match_are_refused() -> None:
    meta = {"t": "ada", "n": 1, "e": 1, "s": []}
    packed = pack(meta, [np.zeros(n, np.int64) for n in (2, 1, 0, 0)])
    with pytest.raises(MalformedEntry, match="2 rows with 1 counts"):
        unpack_delta(packed, ITEMS)


@given(st.lists(st.text(), max_size=6), st.lists(st.text(), max_size=6))
def test_a_fingerprint_goes_on_from_that_of_the_ids_before(first: list[str], more: list[str]) -> None:
    assert fingerprint(more, fingerprint(first)) == fingerprint(first + more)


def test_fingerprints_tell_orders_apart() -> None:
    assert fingerprint(["a", "b"]) != fingerprint(["b", "a"])
    assert fingerprint(["ab"]) != fingerprint(["a", "b"])
