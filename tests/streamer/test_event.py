"""The wire format: what is an event, what is filtered, what becomes a dead letter and why."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.errors import SettingsError
from streamer.event import NO_USER, Decoded, EventDecoder, EventSettings, Reason, encode
from streamer.sources.base import Chunk, Partition

PARTITION = Partition("interactions", 3)
RECORD_MS = 1_600_000_000_250
END_S = 7_258_118_400  # 2200-01-01


def chunk_of(*values: bytes | None, first: int = 100, step: int = 1, time_ms: int = RECORD_MS) -> Chunk:
    """Records at offsets `first`, `first + step`, ..."""
    n = len(values)
    offsets = list(range(first, first + step * n, step))
    return Chunk(PARTITION, offsets, [time_ms] * n, [b"key"] * n, list(values))  # type: ignore[arg-type]


def decode(*values: bytes | None, settings: EventSettings | None = None, **chunk: int) -> Decoded:
    return EventDecoder(settings).decode(chunk_of(*values, **chunk))


def js(**fields: object) -> bytes:
    """A valid event, but for these fields; ... leaves one out."""
    event = {"user_id": "u", "item_id": "i", "timestamp": 1} | fields
    return json.dumps({k: v for k, v in event.items() if v is not ...}).encode()


def reason_of(value: bytes | None, settings: EventSettings | None = None, **chunk: int) -> Reason:
    """Why a single record is a dead letter."""
    out = decode(value, settings=settings, **chunk)
    assert (len(out), out.filtered, len(out.letters)) == (0, 0, 1)
    return out.letters[0].reason


# -- valid events


def test_last_of_a_repeated_field_counts():
    out = decode(b'{"user_id":"a","user_id":"b","item_id":"i"}', b'{"user_id":null,"user_id":"c","item_id":"i"}')
    assert out.users == ["b", "c"]


@pytest.mark.parametrize(
    ("given_time", "expected_s"),
    [
        (0, 0.0),
        (1_700_000_000, 1_700_000_000.0),
        (1_700_000_000.25, 1_700_000_000.25),
        (1_700_000_000_250, 1_700_000_000.25),
        (1_700_000_000_250.5, 1_700_000_000.2505),
        (END_S - 1, END_S - 1.0),
        (END_S, END_S / 1000),  # from here on milliseconds: March 1970
        (END_S * 1000 - 1, END_S - 0.001),
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:01", 1.0),  # UTC unless it says otherwise
        ("1970-01-01 01:00:01+01:00", 1.0),
        ("1970-01-02", 86_400.0),
        ("2023-11-14T22:13:20.250Z", 1_700_000_000.25),
        (None, RECORD_MS / 1000),
        (..., RECORD_MS / 1000),
    ],
)
def test_timestamp_is_read_as_seconds(given_time: object, expected_s: float):
    plain, in_array = js(timestamp=given_time), b"[%s]" % js(timestamp=given_time)
    assert decode(plain, in_array).timestamps_s == [expected_s, expected_s]
    assert slow(plain).timestamps_s == [expected_s]


def test_features_are_categories_or_numbers():
    features = {"text": "x", "int": 3, "yes": True, "no": False, "float": 3.0, "absent": None, "empty": ""}
    out = decode(js(user_features=features, item_features={"a": 1.5}))
    assert out.user_features == [{"text": "x", "int": "3", "yes": "true", "no": "false", "float": 3.0, "empty": ""}]
    assert out.item_features == [{"a": 1.5}]


def test_fields_can_be_mapped_and_swapped():
    settings = EventSettings(fields={"user_id": "uid", "item_id": "user_id", "timestamp": "zeit-ü"})
    value = '{"uid": "ann", "user_id": "x", "zeit-ü": 5, "item_id": false, "timestamp": "no"}'.encode()
    out = decode(value, settings=settings)
    assert (out.users, out.items, out.timestamps_s) == (["ann"], ["x"], [5.0])
    assert decode(js(), settings=settings).letters[0].detail == "user_id (field 'uid') is missing"


# -- arrays


def test_bad_elements_of_an_array_are_letters_and_good_ones_events():
    elements = [js(user_id="a"), b"7", js(user_id="b"), js(item_id=...), js(timestamp="soon"), js(user_id="c")]
    out = decode(b"[" + b", ".join(elements) + b"]", first=40)
    assert (out.users, out.offsets) == (["a", "b", "c"], [40, 40, 40])
    assert [(x.index, x.reason, x.value) for x in out.letters] == [
        (1, Reason.NOT_AN_EVENT, b"7"),
        (3, Reason.MISSING_ITEM_ID, elements[3]),
        (4, Reason.BAD_TIMESTAMP, elements[4]),
    ]
    assert {x.offset for x in out.letters} == {40}
    assert (out.events_upto, out.letters_upto, out.consumed) == ([3], [3], 6)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[]", Reason.EMPTY_ARRAY),
        (b" [ ] ", Reason.EMPTY_ARRAY),
        (b"[1", Reason.NOT_JSON),
        (b"[" + b",".join([js()] * 4) + b"]", Reason.TOO_MANY_EVENTS),
    ],
)
def test_array_that_cannot_be_used_is_one_letter(value: bytes, reason: Reason):
    settings = EventSettings(max_events_per_record=3)
    assert reason_of(value, settings) is reason
    assert decode(value, settings=settings).letters[0].index is None
    for just_allowed in ([js()] * 3, [js(), b"1", js()]):
        assert decode(b"[" + b",".join(just_allowed) + b"]", settings=settings).consumed == 3


# -- filters


def test_only_allowed_event_types_are_events():
    settings = EventSettings(event_types=("buy", "3"))
    kinds = ["buy", "view", 3, 4, None, ..., "3"]
    out = decode(*(js(event_type=kind, user_id=n) for n, kind in enumerate(kinds)), settings=settings)
    assert out.users == ["0", "2", "6"]
    assert out.offsets == [100, 102, 106]
    assert (out.filtered, out.letters) == (4, [])
    assert out.filtered_upto == [0, 1, 1, 2, 3, 4, 4]
    assert out.events_upto == [1, 1, 2, 2, 2, 2, 3]


def test_only_ratings_from_the_least_on_are_events():
    settings = EventSettings(min_rating=3.5)
    out = decode(*(js(rating=r) for r in (3.5, 3.4999, 4, None, ..., -1)), settings=settings)
    assert (len(out), out.filtered, out.letters) == (2, 4, [])


def test_event_of_another_type_is_filtered_even_if_it_is_not_valid():
    settings = EventSettings(event_types=("buy",))
    out = decode(js(event_type="search", item_id=...), js(event_type="buy", item_id=...), settings=settings)
    assert (out.filtered, [x.reason for x in out.letters]) == (1, [Reason.MISSING_ITEM_ID])


def test_event_type_or_rating_of_a_wrong_kind_is_a_letter():
    for kind in (True, 3.0, ["buy"], {}):
        assert reason_of(js(event_type=kind), EventSettings(event_types=("buy", "3", "1"))) is Reason.BAD_EVENT_TYPE
    for rating in (True, "5", [5], 10**400):
        assert reason_of(js(rating=rating), EventSettings(min_rating=1)) is Reason.BAD_RATING


def test_types_and_weights_are_read_only_where_somebody_wants_them():
    records = [js(event_type="cart", weight=2.5), js(event_type=7), js(event_type=None, weight=None), js(weight=0)]
    for wanted, types, weights in (
        ({"typed": True}, ["cart", "7", None, None], [2.5, None, None, 0.0]),
        ({"settings": EventSettings(fields={"weight": "weight"})}, None, [2.5, None, None, 0.0]),
        ({}, None, None),
    ):
        alone = EventDecoder(**wanted).decode(chunk_of(*records))
        array = EventDecoder(**wanted).decode(chunk_of(b"[" + b",".join(records) + b"]"))
        for out in (alone, array):
            assert (len(out), out.types, out.weights, out.letters) == (4, types, weights, [])
    assert decode(js(weight="heavy")).letters == []
    for weight in (True, "5", -1, 1000.5, 10**400, [1]):
        [letter] = EventDecoder(typed=True).decode(chunk_of(js(weight=weight))).letters
        assert letter.reason is Reason.BAD_WEIGHT
        assert letter.detail.startswith("weight")


# -- dead letters

DEEP = b"[" * 100_000 + b"]" * 100_000


BAD_RECORDS = {
    Reason.NULL_VALUE: [None, b""],
    Reason.NOT_JSON: [
        *(b"  ", b"{", b"\xff\xfe", b"\xef\xbb\xbf" + js(), js() + b"x", js() + js()),
        b'{"user_id":"\xff","item_id":"i"}',
        b'{"user_id":"\xed\xa0\x80","item_id":"i"}',
        b'{"user_id":"\\ud800","item_id":"i"}',
        b'{"user_id":"u","item_id":"i","user_features":{"a":"\\udc00"}}',
        b'{"user_id":"u","item_id":"i","timestamp":NaN}',
    ],
    Reason.TOO_DEEP: [
        DEEP,
        b'{"user_id":"u","item_id":"i","other":%s}' % DEEP,
        b'{"user_id":%s,"item_id":"i"}' % DEEP,
    ],
    Reason.NOT_AN_EVENT: [b"null", b'"text"', b"1.5"],
    Reason.MISSING_USER_ID: [b"{}", js(user_id=None)],
    Reason.BAD_USER_ID: [
        *(js(user_id=bad) for bad in ("", True, 1.0, ["u"])),
        b'{"user_id":1%s,"item_id":"i"}' % (b"0" * 5000),
    ],
    Reason.MISSING_ITEM_ID: [js(item_id=...)],
    Reason.BAD_ITEM_ID: [js(item_id=""), js(item_id={})],
    Reason.ID_TOO_LONG: [js(user_id="u" * 257), js(item_id=10**256)],
    Reason.BAD_TIMESTAMP: [
        *(js(timestamp=bad) for bad in (-1, -0.5, END_S * 1000, 1e300, 10**400, True, [1])),
        *(js(timestamp=bad) for bad in ("yesterday", "", "1700000000", "2001010111234", "1969-12-31T23:59:59Z")),
        *(js(timestamp=bad) for bad in ("2200-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00")),
        b'{"user_id":"u","item_id":"i","timestamp":1e999}',
    ],
    Reason.BAD_FEATURES: [
        js(user_features=[1]),
        *(js(item_features=bad) for bad in ({"a": [1]}, {"a": {}}, {"": 1})),
    ],
    Reason.TOO_MANY_FEATURES: [js(user_features={str(n): n for n in range(65)})],
    Reason.FEATURE_TOO_LONG: [js(item_features=bad) for bad in ({"a": "x" * 257}, {"x" * 257: "a"}, {"a": 10**256})],
}


@pytest.mark.parametrize(("value", "reason"), [(value, why) for why, values in BAD_RECORDS.items() for value in values])
def test_bad_record_is_a_letter_with_its_reason(value: bytes | None, reason: Reason):
    out = decode(js(), value, js())
    assert out.users == ["u", "u"]
    assert out.record_offsets == [100, 101, 102]
    (letter,) = out.letters
    assert letter.reason is reason
    assert (letter.topic, letter.partition, letter.offset, letter.index) == ("interactions", 3, 101, None)
    assert (letter.timestamp_ms, letter.key, letter.value) == (RECORD_MS, b"key", value)
    assert 0 < len(letter.detail) < 300
    assert letter.detail.isprintable()


def test_limits_are_inclusive():
    settings = EventSettings(max_id_length=3, max_features=2, max_feature_length=4, max_record_bytes=120)
    features = {"name": "four", "n": 1234}
    good = json.dumps({"user_id": "äöü", "item_id": 123, "user_features": features}).encode()
    largest = good + b" " * (120 - len(good))
    assert len(decode(good, largest, settings=settings)) == len(slow(good, largest, settings=settings)) == 2
    assert reason_of(good + b" " * (121 - len(good)), settings) is Reason.RECORD_TOO_LARGE
    assert reason_of(js(item_id=1234), settings) is Reason.ID_TOO_LONG
    assert reason_of(js(item_id="1234"), settings) is Reason.ID_TOO_LONG
    assert reason_of(js(item_features={"n": 12345}), settings) is Reason.FEATURE_TOO_LONG


def test_letter_of_a_record_too_large_keeps_its_beginning():
    value = b"[" + b" " * 2_000_000
    (letter,) = decode(value).letters
    assert (letter.reason, letter.value) == (Reason.RECORD_TOO_LARGE, value[:65_536])
    assert "2000001 bytes" in letter.detail


def test_event_without_any_time_is_a_letter():
    assert reason_of(js(timestamp=...), time_ms=-1) is Reason.MISSING_TIMESTAMP
    assert len(decode(js(timestamp=1), time_ms=-1)) == 1


def test_every_reason_is_reached_by_a_test():
    of_records = {Reason.RECORD_TOO_LARGE, Reason.EMPTY_ARRAY, Reason.TOO_MANY_EVENTS}
    of_fields = {Reason.MISSING_TIMESTAMP, Reason.BAD_EVENT_TYPE, Reason.BAD_RATING, Reason.BAD_WEIGHT}
    of_schemas = {Reason.UNKNOWN_SCHEMA, Reason.BAD_ENCODING}  # in tests/integration/test_schema_registry.py
    assert BAD_RECORDS.keys() | of_records | of_fields | of_schemas == set(Reason)


# -- settings


def test_settings_report_every_problem_at_once():
    settings = EventSettings(
        fields={"user": "uid", "item_id": "", "timestamp": "rating", "user_features": 'a"b'},
        event_types=("buy", ""),
        min_rating=math.nan,
        max_id_length=0,
        max_features=0,
        max_feature_length=True,
        max_record_bytes=1.5,  # type: ignore[arg-type]
        max_events_per_record=-1,
    )
    with pytest.raises(SettingsError) as caught:
        EventDecoder(settings)
    assert caught.value.problems == settings.problems()
    assert [problem.split(":")[0] for problem in settings.problems()] == [
        "min-rating is nan",
        "max-id-length is 0",
        "max-features is 0",
        "max-feature-length is True",
        "max-record-bytes is 1.5",
        "max-events-per-record is -1",
        "field",
        "field",
        "field",
        "field",
        "event-type is ('buy', '')",
    ]


def test_field_names_that_pass_can_be_decoded():
    names = ["ü", "a b", "a.b", "$", "user_id "]
    assert all(len(decode(json.dumps({n: 1, "item_id": 2}, ensure_ascii=False).encode(),
                          settings=EventSettings(fields={"user_id": n}))) == 1 for n in names)  # fmt: skip


# -- laws

FILTERED = EventSettings(event_types=("buy", "3"), min_rating=2.5, max_events_per_record=4, max_record_bytes=600)
SETTINGS = [
    EventSettings(),
    FILTERED,
    EventSettings(max_id_length=2, max_features=1, max_feature_length=2),
    EventSettings(catalogue_types=("view", "4"), deletion_types=("3",), event_types=("buy",)),
]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2))
ids = texts.filter(bool) | st.integers()
times = st.integers(0, END_S * 1000) | st.floats(0, END_S) | st.datetimes().map(str) | st.none()
features = st.dictionaries(texts, scalars, max_size=3)
valid = st.fixed_dictionaries(
    {"user_id": ids, "item_id": ids},
    optional={
        "timestamp": times,
        "user_features": features,
        "item_features": features,
        "event_type": st.sampled_from(["buy", "view", 3, 4]),
        "rating": st.floats(0, 5) | st.integers(0, 5),
    },
)


@st.composite
def broken(draw: st.DrawFn) -> dict[str, object]:
    """A valid event with fields replaced by anything, or taken away."""
    event: dict[str, object] = dict(draw(valid))
    for name in draw(st.lists(st.sampled_from(sorted({"user_id", "item_id", "timestamp", *event})), max_size=2)):
        event.pop(name, None)
        if draw(st.booleans()):
            event[name] = draw(anything)
    return event


@st.composite
def mutated(draw: st.DrawFn, values: st.SearchStrategy[bytes]) -> bytes:
    """Valid JSON with a stretch of bytes replaced."""
    value = draw(values)
    start = draw(st.integers(0, len(value)))
    return value[:start] + draw(st.binary(max_size=3)) + value[start + draw(st.integers(0, 3)) :]


events = (valid | broken()).map(lambda e: json.dumps(e).encode())
arrays = st.lists(events | anything.map(lambda a: json.dumps(a).encode()), max_size=6).map(
    lambda elements: b"[" + b",".join(elements) + b"]"
)
good_records = events | arrays
records = good_records | mutated(good_records) | st.binary(max_size=20) | st.none()
chunks = st.lists(st.tuples(records, st.integers(1, 3), st.sampled_from([-1, 5000, RECORD_MS])), max_size=6)


def build(rows: list[tuple[bytes | None, int, int]]) -> Chunk:
    """A chunk with gaps in its offsets."""
    chunk = Chunk(PARTITION, [], [], [], [])
    offset = 0
    for value, gap, time_ms in rows:
        offset += gap
        chunk.offsets.append(offset)
        chunk.timestamps_ms.append(time_ms)
        chunk.keys.append(None)
        chunk.values.append(value)  # type: ignore[arg-type]
    return chunk


def events_in(value: bytes | None, settings: EventSettings) -> int:
    """How many events a record counts as."""
    if not value or len(value) > settings.max_record_bytes:
        return 1
    try:
        elements = msgspec.json.decode(value, type=list[msgspec.Raw])
    except (ValueError, RecursionError):
        return 1
    return len(elements) if 1 <= len(elements) <= settings.max_events_per_record else 1


def slow_decode(chunk: Chunk, settings: EventSettings | None = None) -> Decoded:
    """Every record, and every element of an array, by the slow reading."""
    decoder = EventDecoder(settings)

    def refuse(_: bytes) -> None:
        raise msgspec.DecodeError

    decoder._decode_one = refuse  # type: ignore[assignment, method-assign]
    out = Decoded.opened(partition=chunk.partition)
    for record in range(len(chunk)):
        decoder._add_record(out, chunk, record)
    return out.closed()


def slow(*values: bytes, settings: EventSettings | None = None) -> Decoded:
    return slow_decode(chunk_of(*values), settings)


@settings(max_examples=300)
@given(chunks, st.sampled_from(SETTINGS))
def test_laws_of_any_chunk(rows: list, settings: EventSettings):
    chunk = build(rows)
    out = EventDecoder(settings).decode(chunk)
    assert out == slow_decode(build(rows), settings), "the fast reading agrees with the slow one"
    assert_accounted_for(out, chunk, settings)
    assert_columns_agree(out)
    assert_rules_are_kept(out, settings)


def assert_accounted_for(out: Decoded, chunk: Chunk, settings: EventSettings) -> None:
    assert out.record_offsets == chunk.offsets
    totals = [sum(t) for t in zip(out.events_upto, out.filtered_upto, out.letters_upto, strict=True)]
    counts = [b - a for a, b in zip([0, *totals], totals, strict=False)]
    assert counts == [events_in(value, settings) for value in chunk.values]
    assert out.consumed == sum(counts)


def assert_columns_agree(out: Decoded) -> None:
    assert {len(out.items), len(out.timestamps_s), len(out.offsets)} == {len(out)}
    for column in (out.user_features, out.item_features):
        assert column is None or len(column) == len(out)
        said = [features for user, features in zip(out.users, column or [], strict=False) if user != NO_USER]
        assert {} not in said
    assert out.user_features is None or any(out.user_features)
    for upto, offsets in ((out.events_upto, out.offsets), (out.letters_upto, [x.offset for x in out.letters])):
        records = zip(out.record_offsets, [0, *upto], upto, strict=False)
        assert offsets == [offset for offset, a, b in records for _ in range(b - a)]
    assert len({(x.offset, x.index) for x in out.letters}) == len(out.letters)


def assert_rules_are_kept(out: Decoded, settings: EventSettings) -> None:
    for text in [*(user for user in out.users if user != NO_USER), *out.items]:
        assert type(text) is str
        assert 1 <= len(text) <= settings.max_id_length
        text.encode()
    assert all(type(t) is float and 0 <= t < END_S for t in out.timestamps_s)
    for features in filter(None, (out.user_features or []) + (out.item_features or [])):
        assert len(features.keys() - {"title"}) <= settings.max_features
        for name, value in features.items():
            assert 1 <= len(name) <= settings.max_feature_length
            assert type(value) is float or len(value) <= settings.max_feature_length  # type: ignore[arg-type]


# -- encoding

plain_features = st.dictionaries(
    texts.filter(bool), texts | st.floats(allow_nan=False, allow_infinity=False), max_size=3
)


@given(ids, ids, st.floats(0, END_S, exclude_max=True), plain_features, plain_features)
def test_encoded_event_decodes_to_itself(user: str | int, item: str | int, time_s: float, first: dict, second: dict):
    out = decode(encode(user, item, time_s, user_features=first, item_features=second))
    assert (out.users, out.items, out.timestamps_s) == ([str(user)], [str(item)], [time_s])
    assert (out.user_features or [None]) == [first or None]
    assert (out.item_features or [None]) == [second or None]


@given(st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31)))
def test_encoded_datetime_decodes_to_its_time(when: datetime):
    expected = when.replace(tzinfo=UTC).timestamp()
    assert decode(encode("u", "i", when)).timestamps_s == [expected]


@pytest.mark.parametrize("fields", [{"timestamp": math.nan}, {"rating": math.inf}, {"item_features": {"a": -math.inf}}])
def test_numbers_that_are_not_finite_are_not_written(fields: dict):
    with pytest.raises(ValueError, match="finite"):
        encode("u", "i", **fields)


@pytest.mark.parametrize("user", [b"", b'"user_id": "ann", '])
def test_events_of_a_deletion_type_need_no_user_and_have_none(user: bytes) -> None:
    settings = EventSettings(deletion_types=("item_deleted", "9"), event_types=("click",), min_rating=3)
    values = (
        b'{"user_id": "ann", "item_id": "tea", "event_type": "click", "rating": 4}',
        b"{%b" % user + b'"item_id": "tea", "event_type": "item_deleted"}',
        b"{%b" % user + b'"item_id": 7, "event_type": 9}',
        b'{"user_id": "ann", "item_id": "tea", "event_type": "view", "rating": 4}',
        b"{%b" % user + b'"event_type": "item_deleted"}',
    )
    decoded = EventDecoder(settings).decode(chunk_of(*values))
    assert list(zip(decoded.users, decoded.items, strict=True)) == [("ann", "tea"), ("", "tea"), ("", "7")]
    assert (decoded.filtered, [letter.reason for letter in decoded.letters]) == (1, [Reason.MISSING_ITEM_ID])


def catalogue_event(**fields: object) -> bytes:
    return js(user_id=..., timestamp=..., **fields)


class TestCatalogueEvents:
    BY_TYPE = EventSettings(catalogue_types=("item", "7"), event_types=("buy",), min_rating=3)

    def of_topic(self, *values: bytes | None) -> Decoded:
        return EventDecoder(EventSettings(event_types=("buy",)), PARTITION.topic).decode(chunk_of(*values))

    def by_type(self, *values: bytes) -> Decoded:
        return EventDecoder(self.BY_TYPE).decode(chunk_of(*values))

    @pytest.mark.parametrize("user", [..., "ann", None, []])
    def test_in_the_catalogue_topic_every_record_is_one_whatever_it_says_of_a_user(self, user: object):
        value = js(user_id=user, timestamp=..., item_features={"genre": "jazz", "year": 1959}, title="Kind of Blue")
        array = b"[" + value + b"," + value + b"]"
        out = self.of_topic(value, array)
        assert (out.users, out.items, out.letters) == ([NO_USER] * 3, ["i"] * 3, [])
        assert out.item_features == [{"genre": "jazz", "year": "1959", "title": "Kind of Blue"}] * 3
        assert out.timestamps_s == [RECORD_MS / 1000] * 3

    def test_by_their_type_in_a_topic_of_both(self):
        buy = js(event_type="buy", rating=4)
        out = self.by_type(buy, catalogue_event(event_type="item"), js(event_type=7, title="x"), js(event_type="view"))
        assert out.users == ["u", NO_USER, NO_USER]
        assert out.item_features == [None, {}, {"title": "x"}]
        assert out.filtered == 1
        assert self.by_type(b"[" + buy + b"," + catalogue_event(event_type=7) + b"]").users == ["u", NO_USER]

    def test_an_item_is_deleted_by_a_field_a_type_or_a_record_with_a_key_alone(self):
        out = self.of_topic(catalogue_event(deleted=True, title="x", item_features={"a": "b"}), None, b"")
        assert (out.items, out.users) == (["i", "key", "key"], [NO_USER] * 3)
        assert out.item_features is None
        assert self.of_topic(catalogue_event(deleted=False)).item_features == [{}]

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"item_id": ...}, Reason.MISSING_ITEM_ID),
            ({"title": 3}, Reason.BAD_FEATURES),
            ({"deleted": "yes"}, Reason.BAD_FEATURES),
            ({"item_features": [1]}, Reason.BAD_FEATURES),
        ],
    )
    def test_what_is_wrong_is_a_dead_letter(self, fields: dict, reason: Reason):
        assert [letter.reason for letter in self.of_topic(catalogue_event(**fields)).letters] == [reason]

    def test_fields_may_have_other_names_and_long_titles_are_cut(self):
        settings = EventSettings(
            fields={"item_id": "sku", "title": "name", "deleted": "gone", "item_features": "about"}
        )
        value = json.dumps({"sku": 7, "name": "x" * 1000, "about": {"a": "b"}}).encode()
        decoder = EventDecoder(settings, PARTITION.topic)
        assert decoder.decode(chunk_of(value)).item_features == [{"a": "b", "title": "x" * 256}]
        assert decoder.decode(chunk_of(b'{"sku": 7, "gone": true}')).item_features is None

    def test_what_is_encoded_is_decoded(self):
        value = encode(None, "tea", 5, item_features={"kind": "drink", "price": 1.5}, title="Tea")
        out = self.of_topic(value, encode(None, "tea", deleted=True))
        assert out.item_features == [{"kind": "drink", "price": 1.5, "title": "Tea"}, None]
        assert (out.items, out.timestamps_s[0]) == (["tea", "tea"], 5.0)
