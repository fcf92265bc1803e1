"""Streams that are not events: noticed before anything is committed, and explained."""

from __future__ import annotations

import json
from functools import partial

import pytest
from line_harness import TOPIC, append, events, memory_log, until, values_of
from memory_source import MemorySource

from streamer.dead_letters.base import DeadLetter, Reason
from streamer.dead_letters.share import DeadLetterShare
from streamer.errors import SourceError
from streamer.event import EventDecoder, EventSettings
from streamer.event.explain import explain
from streamer.ingest.batcher import Batcher
from streamer.sources.base import Chunk, Partition
from tests.streamer.ingest.test_ingest import Line, started

ZERO = Partition(TOPIC, 0)
BAD = b'{"customer": "ann", "product": 7}'
LETTER = DeadLetter(Reason.NOT_JSON, "why", "topic", 0, 0, 0, None, b"{")


def share(max_share: float = 0.5, *, resumed: bool = False) -> DeadLetterShare:
    found = DeadLetterShare(max_share)
    found.is_first_look = not resumed
    return found


# when it is too much ----------------------------------------------------------------------------------------


def test_a_model_begins_only_with_a_stream_that_has_an_event_among_its_first_hundred_records():
    watched = share()
    watched.add(99, [LETTER] * 99)
    assert "0 of 99 records are events: why" in (watched.pause_reason or "")
    with pytest.raises(SourceError, match=r"0 of 100 records are events: why.*--accept-dead-letters"):
        watched.add(1, [LETTER])

    watched = share()
    watched.add(99, [LETTER] * 98)
    assert watched.pause_reason is None, "of fewer than a hundred no share is taken"
    watched.add(1, [LETTER])
    assert "99 of the last 100" in (watched.pause_reason or "")


def test_few_large_records_are_looked_at_without_waiting_for_more():
    large = DeadLetter(Reason.NOT_JSON, "why", "topic", 0, 0, 0, None, b"{" * (3 << 20))
    watched = share()
    watched.add(2, [large] * 2)
    with pytest.raises(SourceError, match="0 of 3 records"):
        watched.add(1, [large])


def test_above_the_share_of_the_last_thousand_it_pauses_until_the_share_falls():
    watched = share(resumed=True)
    watched.add(600, [])
    watched.add(500, [LETTER] * 500)
    assert watched.pause_reason is None, "not more than half"
    watched.add(200, [LETTER] * 200)
    assert "700 of the last 1,300 records are not events (limit 50%)" in (watched.pause_reason or "")
    with pytest.raises(SourceError, match="700 of the last 1,300"):
        watched.end()
    watched.add(800, [])
    assert watched.pause_reason is None
    watched.end()


@pytest.mark.parametrize(("max_share", "resumed"), [(1.0, False), (1.0, True), (0.5, True)])
def test_any_number_may_be_accepted_and_a_resumed_model_only_pauses(max_share, resumed):
    watched = share(max_share, resumed=resumed)
    watched.add(5000, [LETTER] * 5000)
    assert (watched.pause_reason is not None) == (max_share < 1)
    assert not watched.is_first_look, "as much is read at once as there is room for"


# on the line ------------------------------------------------------------------------------------------------


def line_of(values: list[bytes], *, until_end: bool = False, resumed: bool = False) -> Line:
    """A line whose dead letters are watched; each record is one event or one letter."""
    line = Line(MemorySource(memory_log(values), TOPIC), batcher=Batcher(64, 0.01), until_end=until_end)
    line.ingest.dead_letter_share = share(resumed=resumed)
    return line


def test_nothing_of_a_share_that_is_too_high_is_trained_before_it_falls():
    with started(line_of(values_of(events(200)) + [BAD] * 900)) as line:
        until(lambda: line.ingest.dead_letter_share.pause_reason, line.step)
        until(lambda: line.source.positions()[ZERO] == 1100)
        held = line.accounted
        assert held == line.positions[ZERO] <= 200
        for _ in range(5):
            assert line.step() is None
        append(line.source._log, values_of(events(800)))
        until(lambda: line.positions[ZERO] == 1900, line.step)
        assert (line.accounted, len(line.trained)) == (1900, 1000)


@pytest.mark.parametrize("count", [7, 300])
def test_a_stream_without_any_event_ends_the_run_and_no_position_moves(count):
    with started(line_of([BAD] * count, until_end=True)) as line:
        with pytest.raises(SourceError, match=f"0 of {min(count, 100)} records are events"):
            line.run()
        assert (line.positions, line.accounted) == ({ZERO: 0}, 0)


def test_a_share_that_cannot_fall_any_more_ends_the_run():
    with started(line_of(values_of(events(100)) + [BAD] * 900, until_end=True, resumed=True)) as line:
        with pytest.raises(SourceError, match=r"900 of the last 1,000 records"):
            line.run()
        assert line.accounted == len(line.trained) <= 100


@pytest.mark.parametrize("size", [1, 7, 100, 1000, 5000])
def test_the_last_events_of_a_chunk_and_the_dead_letters_among_them(size):
    values = [BAD if k % 3 else b'[{"user_id": 1, "item_id": 2}, {}]' for k in range(1500)]
    chunk = Chunk(Partition(TOPIC, 0), list(range(1500)), [0] * 1500, [None] * 1500, values)
    decoded = EventDecoder().decode(chunk)
    read, letters = decoded.last(size)
    records = next((n for n in range(1, 1501) if sum(2 - bool(k % 3) for k in range(1500 - n, 1500)) >= size), 1500)
    assert read == sum(2 - bool(k % 3) for k in range(1500 - records, 1500))
    assert letters == [letter for letter in decoded.letters if letter.offset >= 1500 - records]


# what a person reads ----------------------------------------------------------------------------------------


def explained(values: list[bytes], source: str | None = None, **fields: str) -> str:
    settings = EventSettings(fields=fields)
    count = len(values)
    chunk = Chunk(Partition(TOPIC, 0), list(range(count)), [0] * count, [None] * count, values)
    return explain(settings, source, EventDecoder(settings).decode(chunk).letters)


SHOP = {"when": 1700000000, "customer": "ann", "product": 7, "category": "jazz"}
CSV = [b"when,customer,product", b"1700000000,ann,7", b"1700000001,bob,8"]
TRY = "--field user_id=customer --field item_id=product --field timestamp=when"


@pytest.mark.parametrize(
    ("values", "source", "fields", "said"),
    [
        ([json.dumps(SHOP).encode()], None, {}, ["user_id is missing", "when, customer, product, category", TRY]),
        ([json.dumps([SHOP]).encode()], None, {"user_id": "customer"}, ["item_id is missing", "item_id=product"]),
        ([json.dumps({"e": {"user": {"id": 1}}}).encode()], None, {}, ["e.user.id", "--field user_id=e.user.id."]),
        (CSV, "my shop.csv", {}, ["CSV", "when, customer, product", "`streamer up 'my shop.csv'`"]),
        (CSV, None, {}, ["CSV", "Convert them"]),
        ([b"1;ann;7", b"2;bob;8"], None, {}, ["CSV, with the columns 1, 2, 3"]),
        ([b"\0\0\0\1\2\x06ann"], None, {}, ["schema 258", "Avro", "--value-format avro"]),
        ([b"\x06ann\x08\xff\x00"], None, {}, ["binary", "06 61 6e 6e"]),
        ([b"PAR1\x15\x04"], "log.parquet", {}, ["a Parquet file", "`streamer up log.parquet`"]),
        ([b"user_id=ann"], None, {}, ["malformed"]),
        ([b'{"\\u001b[2J": 1}'], None, {}, ["'\\x1b[2J'"]),
        ([b'{"user_id": 1, "item_id": 2, "timestamp": "secret"}'], None, {}, ["ISO 8601"]),
    ],
)  # fmt: skip
def test_what_records_are_and_what_to_try(values, source, fields, said):
    text = explained(values, source, **fields)
    for words in said:
        assert words in text
    assert "secret" not in text
    assert text.isprintable()


def test_the_explanation_is_part_of_the_error():
    watched = DeadLetterShare(0.5, partial(explain, EventSettings(), None))
    line = EventDecoder().decode(Chunk(Partition(TOPIC, 0), list(range(100)), [0] * 100, [None] * 100, [BAD] * 100))
    with pytest.raises(
        SourceError, match=r"Try --field user_id=customer --field item_id=product\. Nothing was committed"
    ):
        watched.add(line.consumed, line.letters)
