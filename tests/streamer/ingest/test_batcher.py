"""Micro-batches: when they close, what they hold, and how far they bring each partition."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from streamer.dead_letters.base import LETTER_BYTES, DeadLetter, Reason
from streamer.errors import SettingsError
from streamer.event import NO_USER, Decoded, EventDecoder, EventSettings, encode
from streamer.ingest.batcher import CATALOGUE_AGE_S, Batcher, MicroBatch, Origin
from streamer.sources.base import Chunk, Partition

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
    out = Decoded(records[0].partition)
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


# -- closing by size


def test_batch_closes_when_full_and_the_rest_waits():
    batcher = Batcher(4)
    batcher.add(plain(A, 10, 9))
    first, second = batcher.take(), batcher.take()
    assert first is not None
    assert second is not None
    assert batcher.take() is None
    assert (first.offsets, second.offsets) == ([10, 11, 12, 13], [14, 15, 16, 17])
    assert (first.positions, second.positions) == ({A: 14}, {A: 18})
    assert (first.filtered, first.dead_letters, first.consumed, batcher.queued_events) == (0, [], 4, 1)


def test_nothing_added_gives_nothing():
    batcher = Batcher(1, 0)
    batcher.add(Decoded(A))
    assert (batcher.take(), batcher.flush(), batcher.queued_events, batcher.next_deadline()) == (
        None,
        None,
        0,
        None,
    )


def test_record_is_never_split():
    batcher = Batcher(4)
    batcher.add(decoded_of([Record(A, 0, 3), Record(A, 1, 10), Record(A, 2, 2)]))
    batch = batcher.take()
    assert batch is not None
    assert (len(batch), batch.positions) == (13, {A: 2})
    assert batcher.take() is None
    assert batcher.queued_events == 2


def test_partitions_are_interleaved_in_the_order_added():
    batcher = Batcher(5)
    for decoded in (plain(A, 0, 2), plain(B, 7, 2), plain(A, 2, 2)):
        batcher.add(decoded)
    batch = batcher.take()
    assert batch is not None
    assert batch.users == ["u t[0]@0.0", "u t[0]@1.0", "u t[1]@7.0", "u t[1]@8.0", "u t[0]@2.0"]
    assert batch.origins == [Origin(A, 0, 2), Origin(B, 2, 4), Origin(A, 4, 5)]
    assert batch.positions == {A: 3, B: 9}
    (rest,) = drain(batcher)
    assert rest.positions == {A: 4}


def test_offsets_ascend_within_an_origin_also_when_a_partition_begins_anew():
    batcher = Batcher(9)
    for decoded in (plain(A, 100, 2), plain(A, 102, 1), plain(A, 0, 3)):
        batcher.add(decoded)
    (batch,) = drain(batcher)
    assert batch.offsets == [100, 101, 102, 0, 1, 2]
    assert batch.origins == [Origin(A, 0, 3), Origin(A, 3, 6)]


def test_positions_pass_gaps_and_records_without_events():
    batcher = Batcher(2)
    records = [Record(A, 5), Record(A, 9, 0, 1), Record(A, 20), Record(A, 30, 0, 0, 1), Record(A, 31, 0, 2)]
    batcher.add(decoded_of(records))
    batch = batcher.take()
    assert batch is not None
    assert (batch.offsets, batch.positions, batch.filtered, batch.consumed) == ([5, 20], {A: 21}, 1, 3)
    assert batcher.take() is None
    (rest,) = drain(batcher)
    assert (len(rest), rest.positions, rest.filtered, len(rest.dead_letters)) == (0, {A: 32}, 2, 1)
    assert rest.consumed == 3


def test_features_column_is_none_only_if_no_event_of_the_batch_has_any():
    batcher = Batcher(2)
    batcher.add(plain(A, 0, 3))
    batcher.add(decoded_of([Record(A, n, features=n == 3) for n in range(3, 6)]))
    assert [batch.item_features for batch in drain(batcher)] == [None, [None, {"at": "t[0]@3.0"}], None]
    batcher.add(decoded_of([Record(A, 6, features=True)]))
    batcher.add(plain(A, 7, 1))
    assert drain(batcher)[0].item_features == [{"at": "t[0]@6.0"}, None]


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


def test_catalogue_events_alone_do_not_wait_for_a_batch_to_fill():
    clock = Clock()
    batcher = Batcher(10, max_age_s=5.0, clock=clock)
    described = Decoded(C, [NO_USER], ["i"], [0.0], None, [{"brand": "x"}], [7], [7], [1], [0], [0])
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
    batcher.add(plain(A, 0, 2), now_s=900.0)
    batcher.add(plain(A, 2, 2), now_s=999.0)
    assert batcher.next_deadline() == 900.0  # full: at once
    batch = batcher.take()
    assert batch is not None
    assert len(batch) == 3
    assert batcher.next_deadline() == 1001.0
    assert batcher.take() is None


def test_without_max_age_nothing_closes_by_age():
    clock = Clock()
    batcher = Batcher(3, None, clock)
    batcher.add(plain(A, 0, 2))
    clock.now = math.inf
    assert (batcher.take(), batcher.next_deadline()) == (None, None)


def test_stretch_without_events_moves_on_by_age():
    clock = Clock()
    batcher = Batcher(100, 1.0, clock)
    batcher.add(decoded_of([Record(A, 0, 0, 5), Record(A, 1, 0, 0, 2)]))
    assert batcher.queued_events == 0
    assert batcher.take() is None
    clock.now += 1
    batch = batcher.take()
    assert batch is not None
    assert (len(batch), batch.consumed, batch.positions, batch.origins) == (0, 7, {A: 2}, [])
    assert (batch.user_features, batch.item_features) == (None, None)
    assert batch  # or a loop `while batch := take()` would lose it


# -- piles of what is not trained


def test_pile_of_filtered_events_closes_a_batch():
    batcher = Batcher(100, max_filtered=10)
    batcher.add(decoded_of([Record(A, n, n % 2, 1) for n in range(25)]))
    batches = [batcher.take(), batcher.take(), batcher.take()]
    assert [b and (len(b), b.filtered, b.positions[A]) for b in batches] == [(5, 10, 10), (5, 10, 20), None]


def test_pile_of_dead_letters_closes_a_batch_by_their_bytes():
    each = LETTER_BYTES + 15
    batcher = Batcher(100, max_letter_bytes=3 * each)
    batcher.add(decoded_of([Record(A, n, 0, 0, 1) for n in range(7)]))
    batches = [batcher.take(), batcher.take(), batcher.take()]
    assert [b and (len(b.dead_letters), b.positions[A]) for b in batches] == [(3, 3), (3, 6), None]


# -- dropping


def test_drop_forgets_the_untrained_of_a_partition_only():
    batcher = Batcher(3)
    for decoded in (plain(A, 0, 4), plain(B, 0, 1), decoded_of([Record(A, 4, 1, 3, 2)]), plain(C, 8, 2)):
        batcher.add(decoded)
    trained = batcher.take()
    assert trained is not None
    assert trained.positions == {A: 3}
    assert batcher.drop([A]) == 2 + 3 + 2, "two events, three filtered ones, two dead letters"
    assert batcher.queued_events == 3
    (batch,) = drain(batcher)
    assert (batch.positions, batch.consumed, batch.filtered) == ({B: 1, C: 10}, 3, 0)
    assert batch.origins == [Origin(B, 0, 1), Origin(C, 1, 3)]


def test_drop_counts_only_what_still_waits_of_the_others():
    batcher = Batcher(3)
    batcher.add(plain(A, 0, 5))
    batcher.add(plain(B, 0, 1))
    assert batcher.take() is not None
    assert batcher.drop([B]) == 1
    assert batcher.queued_events == 2
    assert batcher.take() is None


def test_dropped_partition_may_come_back_from_its_position():
    batcher = Batcher(2)
    batcher.add(plain(A, 0, 3))
    assert batcher.take() is not None
    batcher.drop({A})
    batcher.add(plain(A, 2, 3))
    assert [batch.offsets for batch in drain(batcher)] == [[2, 3], [4]]


def test_deadline_after_drop_is_of_the_oldest_that_stays():
    batcher = Batcher(10, 1.0, Clock())
    batcher.add(plain(A, 0, 1), now_s=5.0)
    batcher.add(plain(B, 0, 1), now_s=6.0)
    batcher.drop([A])
    assert batcher.next_deadline() == 7.0
    batcher.drop([B])
    assert batcher.next_deadline() is None


def test_drop_below_full_does_not_close_a_batch():
    batcher = Batcher(3)
    batcher.add(plain(A, 0, 2))
    batcher.add(plain(B, 0, 2))
    batcher.drop([A])
    assert batcher.take() is None


def test_wrong_settings_are_reported_together():
    with pytest.raises(SettingsError) as caught:
        Batcher(0, -1.0, max_filtered=0, max_letter_bytes=0)
    names = [problem.split()[0] for problem in caught.value.problems]
    assert names == ["batch_size", "max_filtered", "max_letter_bytes", "max_age_s"]
    with pytest.raises(SettingsError):
        Batcher(1, math.nan)


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


def slow_batches(records: list[Record], size: int, filtered: int, letter_bytes: int) -> list[MicroBatch]:
    """The obvious batcher: record after record, each batch on its own."""
    groups: list[list[Record]] = []
    full = True
    for record in records:
        if full:
            groups.append([])
        group = groups[-1]
        group.append(record)
        full = (
            sum(r.events for r in group) >= size
            or sum(r.filtered for r in group) >= filtered
            or sum(r.letters for r in group) * (LETTER_BYTES + 15) >= letter_bytes
        )
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


@given(streams(), st.data(), st.integers(1, 8), st.sampled_from([3, 10**6]), st.sampled_from([1500, 10**6]))
def test_batches_follow_from_the_records_alone(records: list, data, size: int, filtered: int, letter_bytes: int):
    """However records are chunked, and whenever batches are taken, they are those of the obvious batcher."""
    flags = st.lists(st.booleans(), min_size=len(records), max_size=len(records))
    batcher = Batcher(size, None, max_filtered=filtered, max_letter_bytes=letter_bytes)
    batches: list[MicroBatch] = []
    for decoded in chunks_of(records, data.draw(flags)):
        batcher.add(decoded)
        if data.draw(st.booleans()):
            batches += iter(batcher.take, None)
    batches += iter(batcher.take, None)
    assert batcher.queued_events < size
    batches += drain(batcher)
    assert batches == slow_batches(records, size, filtered, letter_bytes)
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


@given(
    st.lists(st.sampled_from(["good", "view", "bad", "array"]), max_size=30),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_decoded_records_batch_alike_in_any_chunks(kinds: list[str], size: int, chunk_size: int):
    good, other = encode("u", 1, 2.5, event_type="buy"), encode("u", 2, 2.5, event_type="view")
    content = {"good": good, "view": other, "bad": b"{", "array": b"[%s,1,%s,%s]" % (good, other, good)}
    values = [content[kind] for kind in kinds]
    assert from_bytes(values, size, chunk_size) == from_bytes(values, size, 1000)
    assert sum(b.consumed for b in from_bytes(values, size, chunk_size)) == sum(
        4 if kind == "array" else 1 for kind in kinds
    )


def from_bytes(values: list[bytes], size: int, chunk_size: int) -> list[MicroBatch]:
    decoder, batcher = EventDecoder(EventSettings(event_types=("buy",))), Batcher(size)
    for start in range(0, len(values), chunk_size):
        part = values[start : start + chunk_size]
        offsets = list(range(start, start + len(part)))
        batcher.add(decoder.decode(Chunk(A, offsets, [0] * len(part), [None] * len(part), part)))
    return drain(batcher)
