"""Micro-batches: when they close, what they hold, and how far they bring each partition."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from streamer.dead_letters.base import LETTER_BYTES, DeadLetter, Reason
from streamer.event import NO_USER, Decoded
from streamer.ingest import batcher as module
from streamer.ingest.batcher import CATALOGUE_AGE_S, FILTERED_BYTES, Batcher, MicroBatch, Origin
from streamer.sources.base import Partition

A, B, C = Partition("t", 0), Partition("t", 1), Partition("other", 0)


class Record(NamedTuple):
    """What a record became: so many events, of which the first has features or not, and so much else."""

    partition: Partition
    offset: int
    events: int = 1
    filtered: int = 0
    letters: int = 0
    features: bool = False


def decoded_of(records: list[Record]) -> Decoded:
    """Consecutive records of one partition as the decoder gives them."""
    out = Decoded(partition=records[0].partition)
    features: list = []
    filtered = 0
    for r in records:
        names = [f"{r.partition}@{r.offset}.{n}" for n in range(r.events)]
        out.users += [f"u {name}" for name in names]
        out.items += [f"i {name}" for name in names]
        out.timestamps_s += [r.offset + n / 10 for n in range(r.events)]
        features += [{"at": name} if r.features and n == 0 else None for n, name in enumerate(names)]
        out.offsets += [r.offset] * r.events
        out.letters += [letter(r, n) for n in range(r.letters)]
        filtered += r.filtered
        out.record_offsets.append(r.offset)
        out.events_upto.append(len(out))
        out.filtered_upto.append(filtered)
        out.letters_upto.append(len(out.letters))
    out.item_features = features if any(features) else None
    return out


def letter(record: Record, index: int) -> DeadLetter:
    value = b"v" * 10
    return DeadLetter(Reason.NOT_JSON, "", *record.partition, record.offset, 0, b"k" * 5, value, index)


def chunks_of(records: list[Record], cuts: list[bool]) -> list[Decoded]:
    """Split records into chunks: where the partition changes, and where a cut is asked for."""
    groups: list[list[Record]] = []
    for record, cut in zip(records, cuts, strict=True):
        if groups and not cut and groups[-1][-1].partition == record.partition:
            groups[-1].append(record)
        else:
            groups.append([record])
    return [decoded_of(group) for group in groups]


def drain(batcher: Batcher) -> list[MicroBatch]:
    """All that `flush` gives."""
    return list(iter(batcher.flush, None))


def plain(partition: Partition, first: int, count: int) -> Decoded:
    return decoded_of([Record(partition, first + n) for n in range(count)])


def test_offsets_ascend_within_an_origin_also_when_a_partition_begins_anew():
    batcher = Batcher(9)
    for decoded in (plain(A, 100, 2), plain(A, 102, 1), plain(A, 0, 3)):
        batcher.add(decoded)
    (batch,) = drain(batcher)
    assert batch.offsets == [100, 101, 102, 0, 1, 2]
    assert batch.origins == [Origin(A, 0, 3), Origin(A, 3, 6)]


# -- closing by age


def test_batch_closes_when_oldest_record_reaches_max_age():
    clock = Clock()
    batcher = Batcher(100, 2.0, clock)
    batcher.add(plain(A, 0, 1))
    clock.now += 1.5
    batcher.add(plain(B, 0, 1))
    assert batcher.next_deadline() == 1002.0
    clock.now = 1001.999
    assert batcher.take() is None
    clock.now = 1002.0
    batch = batcher.take()
    assert batch is not None
    assert batch.positions == {A: 1, B: 1}
    assert (batcher.take(), batcher.next_deadline()) == (None, None)
    ageless = Batcher(100, None, clock)
    ageless.add(plain(A, 0, 1))
    clock.now = math.inf
    assert (ageless.take(), ageless.next_deadline()) == (None, None)


def test_catalogue_events_alone_do_not_wait_for_a_batch_to_fill():
    clock = Clock()
    batcher = Batcher(10, max_age_s=5.0, clock=clock)
    said = [{"brand": "x"}]
    described = Decoded([NO_USER], ["i"], [0.0], None, said, [7], None, None, [7], [1], [0], [0], partition=C)
    batcher.add(described)
    assert batcher.take() is None
    clock.now += CATALOGUE_AGE_S
    assert batcher.take().positions == {C: 8}
    batcher.add(plain(A, 0, 1))
    batcher.add(described)
    clock.now += CATALOGUE_AGE_S
    assert batcher.take() is None
    clock.now += 5.0
    assert batcher.take().positions == {A: 1, C: 8}


def test_age_of_what_remains_is_its_own():
    clock = Clock()
    batcher = Batcher(3, 2.0, clock)
    batcher.add(plain(A, 0, 2))
    clock.now = 1001.5
    batcher.add(plain(A, 2, 2))
    assert batcher.next_deadline() == 1000.0  # full: at once
    batch = batcher.take()
    assert batch is not None
    assert len(batch) == 3
    assert batcher.next_deadline() == 1003.5
    assert batcher.take() is None


# -- dropping


def test_deadline_after_drop_is_of_the_oldest_that_stays():
    clock = Clock(5.0)
    batcher = Batcher(10, 1.0, clock)
    batcher.add(plain(A, 0, 1))
    clock.now = 6.0
    batcher.add(plain(B, 0, 1))
    batcher.drop([A])
    assert batcher.next_deadline() == 7.0
    batcher.drop([B])
    assert batcher.next_deadline() is None


# -- laws


@st.composite
def streams(draw: st.DrawFn) -> list[Record]:
    """Records of several partitions, interleaved, with gaps in the offsets."""
    offsets = {A: 0, B: 50, C: 900}
    records = []
    for _ in range(draw(st.integers(0, 25))):
        partition = draw(st.sampled_from([A, A, B, C]))
        offsets[partition] += draw(st.integers(1, 3))
        counts = draw(st.sampled_from([(1, 0, 0)] * 4 + [(0, 1, 0), (0, 0, 1), (3, 0, 0), (2, 1, 2), (7, 2, 0)]))
        records.append(Record(partition, offsets[partition], *counts, draw(st.booleans())))
    return records


def slow_batches(records: list[Record], size: int, max_bytes: int) -> list[MicroBatch]:
    """The obvious batcher: record after record, each batch on its own."""
    groups: list[list[Record]] = []
    full = True
    for record in records:
        if full:
            groups.append([])
        group = groups[-1]
        group.append(record)
        untrained = sum(r.filtered * FILTERED_BYTES + r.letters * (LETTER_BYTES + 15) for r in group)
        full = sum(r.events for r in group) >= size or untrained >= max_bytes
    return [slow_batch(group) for group in groups]


def slow_batch(group: list[Record]) -> MicroBatch:
    batch = MicroBatch(filtered=sum(r.filtered for r in group))
    features: list = []
    for r in group:
        one = decoded_of([r])
        batch.users += one.users
        batch.items += one.items
        batch.timestamps_s += one.timestamps_s
        batch.offsets += one.offsets
        features += one.item_features or [None] * r.events
        batch.dead_letters += one.letters
        batch.positions[r.partition] = r.offset + 1
    batch.item_features = features if any(features) else None
    owners = [r.partition for r in group for _ in range(r.events)]
    starts = [n for n, owner in enumerate(owners) if n == 0 or owners[n - 1] != owner]
    stops = [*starts[1:], len(owners)]
    batch.origins = [Origin(owners[a], a, b) for a, b in zip(starts, stops, strict=False)]
    return batch


@given(streams(), st.data(), st.integers(1, 8), st.sampled_from([3 * FILTERED_BYTES, 1500, 10**6]))
def test_batches_follow_from_the_records_alone(records: list, data, size: int, max_bytes: int):
    """However records are chunked, and whenever batches are taken, they are those of the obvious batcher."""
    flags = st.lists(st.booleans(), min_size=len(records), max_size=len(records))
    batches: list[MicroBatch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_UNTRAINED_BYTES", max_bytes)
        batcher = Batcher(size)
        for decoded in chunks_of(records, data.draw(flags)):
            batcher.add(decoded)
            if data.draw(st.booleans()):
                batches += iter(batcher.take, None)
        batches += iter(batcher.take, None)
        assert batcher.queued_events < size
        batches += drain(batcher)
    assert batches == slow_batches(records, size, max_bytes)
    assert batcher.queued_events == 0


@given(streams(), st.data(), st.integers(1, 8))
def test_consumed_and_dropped_are_all_there_is(records: list[Record], data: st.DataObject, size: int):
    """With drops in between, batches account for exactly what lies before the positions they reach."""
    batcher = Batcher(size)
    batches: list[MicroBatch] = []
    gone: set[Partition] = set()
    added = dropped = 0
    flags = st.lists(st.booleans(), min_size=len(records), max_size=len(records))
    for decoded in chunks_of(records, data.draw(flags)):
        if decoded.partition in gone:
            continue
        batcher.add(decoded)
        added += decoded.consumed
        if data.draw(st.booleans()):
            batches += iter(batcher.take, None)
        if data.draw(st.integers(0, 9)) == 0:
            lost = data.draw(st.sampled_from([A, B, C]))
            dropped += batcher.drop([lost])
            gone.add(lost)
    batches += drain(batcher)
    reached: dict[Partition, int] = {}
    for batch in batches:
        assert all(position > reached.get(p, -1) for p, position in batch.positions.items())
        reached |= batch.positions
    assert sum(b.consumed for b in batches) + dropped == added
    passed = [r for r in records if r.offset < reached.get(r.partition, 0)]
    assert sum(b.consumed for b in batches) == sum(r.events + r.filtered + r.letters for r in passed)
    trained = [offset for b in batches for offset in b.offsets]
    assert sorted(trained) == sorted(r.offset for r in passed for _ in range(r.events))
    assert batcher.queued_events == 0
