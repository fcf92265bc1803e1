"""Chunks of records in, columns of valid events out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from streamer.dead_letters.base import KEPT_VALUE_BYTES, Reason
from streamer.errors import SettingsError
from streamer.event import fields
from streamer.event.decoded import NO_USER, TITLE, Decoded, FeatureColumn, Rows, Writer
from streamer.event.fields import Invalid
from streamer.settings import FIELDS, EventSettings
from streamer.sources.base import Chunk

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_WHITE = b" \t\r\n"
_decode_any = msgspec.json.Decoder().decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class EventDecoder:
    """Turns chunks of records into columns of events, by two readings that agree.

    The fast one decodes an event straight into a Struct whose types carry the rules,
    and makes columns of whole runs of records. What it refuses is read by the slow one,
    field by field, which knows the reason. Nothing is remembered between calls.

    Args:
        settings: what events look like, which count, how large they may be.
        catalogue_topic: whose records are all catalogue events.

    Raises:
        SettingsError: with every wrong setting.
    """

    def __init__(
        self, settings: EventSettings | None = None, catalogue_topic: str | None = None
    ) -> None:
        self.settings = settings = settings or EventSettings()
        if problems := settings.problems():
            raise SettingsError(problems)
        self._catalogue_topic = catalogue_topic
        self._types = _with_integers(settings.event_types)
        self._deletions = _with_integers(settings.deletion_types)
        self._about_items = self._deletions | _with_integers(settings.catalogue_types)
        strict = _strict_struct(settings)
        allowed = msgspec.Meta(min_length=1, max_length=settings.max_events_per_record)
        self._decode_one = msgspec.json.Decoder(strict).decode
        many: Any = Annotated[list[strict], allowed]  # type: ignore[valid-type]
        self._decode_many = msgspec.json.Decoder(many).decode
        self._decode_loose = msgspec.json.Decoder(_loose_struct(settings)).decode

    def decode(self, chunk: Chunk) -> Decoded:
        """Decode, filter and validate every record of a chunk. Never raises for what
        the records hold.
        """
        writer = Writer(chunk)
        is_catalogue = self._is_catalogue(chunk)
        decode_one = self._decode_one
        max_bytes = self.settings.max_record_bytes
        about_items = self._about_items
        run: list[Any] = []  # the events of the records just before, not written yet
        for record, value in enumerate(chunk.values):
            try:
                event = (
                    decode_one(value)
                    if len(value) <= max_bytes and not is_catalogue
                    else None
                )
            except (*_UNDECODABLE, TypeError):  # TypeError: a value of None
                event = None
            if event is not None and not (
                about_items and event.event_type in about_items
            ):
                run.append(event)
                continue
            self._write_run(writer, run, record)
            self._write_record(writer, record)
            run = []
        self._write_run(writer, run, len(chunk.values))
        return writer.finish()

    def _is_catalogue(self, chunk: Chunk) -> bool:
        return chunk.partition.topic == self._catalogue_topic

    # -- the fast reading

    def _write_run(self, writer: Writer, run: list[Any], stop: int) -> None:
        """Write the records before `stop`, one event each; what is wrong after all is
        found by halving.
        """
        start = stop - len(run)
        half = len(run) // 2
        try:
            rows = self._columns(run, writer.chunk.timestamps_ms[start:stop])
        except Invalid:
            if half == 0:
                self._write_record(writer, start)
            else:
                self._write_run(writer, run[:half], start + half)
                self._write_run(writer, run[half:], stop)
        else:
            writer.plain_records(rows, self._kept(run), start, stop)

    def _columns(self, events: list[Any], record_times_ms: Sequence[int]) -> Rows:
        """The columns of events that the strict Struct accepted; `Invalid` if one
        breaks a rule beyond the Struct's.
        """
        return Rows(
            self._id_column([e.user_id for e in events]),
            self._id_column([e.item_id for e in events]),
            _all_seconds([e.timestamp for e in events], record_times_ms),
            self._feature_column([e.user_features for e in events]),
            self._feature_column([e.item_features for e in events]),
        )

    def _id_column(self, column: list[Any]) -> list[str]:
        if set(map(type, column)) <= {str}:
            return column
        texts = list(map(str, column))
        if max(map(len, texts)) > self.settings.max_id_length:
            raise Invalid(Reason.ID_TOO_LONG, "an integer id is too long")
        return texts

    def _feature_column(self, column: list[Any]) -> FeatureColumn:
        if column.count(None) == len(column):
            return column
        normal = fields.normal_features
        limit = self.settings.max_feature_length
        return [normal(features, limit) if features else None for features in column]

    def _kept(self, events: list[Any]) -> list[bool] | None:
        """Which events pass the filters; None: all of them."""
        types = self._types
        least = self.settings.min_rating
        if not types and least is None:
            return None
        keep = (
            [e.event_type in types for e in events] if types else [True] * len(events)
        )
        if least is not None:
            ratings = [e.rating for e in events]
            keep = [
                k and r is not None and r >= least
                for k, r in zip(keep, ratings, strict=True)
            ]
        return keep

    # -- the slow reading

    def _write_record(self, writer: Writer, record: int) -> None:
        """Write a record that is no plain event: an array, or something wrong."""
        value = writer.chunk.values[record]
        limit = self.settings.max_record_bytes
        filtered = 0
        key = writer.chunk.keys[record]
        try:
            if (
                not value and key and self._is_catalogue(writer.chunk)
            ):  # as compaction of a topic wants it
                item = fields.text_id(
                    key.decode(errors="replace"),
                    "the key",
                    self.settings.max_id_length,
                    missing=Reason.MISSING_ITEM_ID,
                    bad=Reason.BAD_ITEM_ID,
                )
                time_s = fields.seconds(None, writer.chunk.timestamps_ms[record])
                writer.events(_deletion(item, time_s), [writer.chunk.offsets[record]])
            elif not value:
                raise Invalid(Reason.NULL_VALUE, "the record has no value")
            elif len(value) > limit:
                text = f"the record has {len(value)} bytes, more than {limit}; kept: {KEPT_VALUE_BYTES} at most"
                raise Invalid(Reason.RECORD_TOO_LARGE, text)
            elif value.lstrip(_WHITE).startswith(b"["):
                filtered = self._write_array(writer, record, value)
            else:
                filtered = self._write_element(writer, record, value, index=None)
        except Invalid as problem:
            writer.letter(record, problem, value)
        writer.end_record(record, filtered)

    def _write_array(self, writer: Writer, record: int, value: bytes) -> int:
        """Write the events of an array, the good apart from the bad; return how many
        were filtered.
        """
        try:
            events = self._decode_many(value)
            about_items = self._about_items
            if self._is_catalogue(writer.chunk) or (
                about_items and any(e.event_type in about_items for e in events)
            ):
                raise Invalid(
                    Reason.NOT_AN_EVENT, "some are catalogue events"
                )  # each is read by itself
            rows = self._columns(
                events, [writer.chunk.timestamps_ms[record]] * len(events)
            )
        except (*_UNDECODABLE, Invalid):
            elements = [bytes(element) for element in _decoded(_decode_elements, value)]
            if not elements:
                raise Invalid(
                    Reason.EMPTY_ARRAY, "the record is an array without events"
                ) from None
            limit = self.settings.max_events_per_record
            if len(elements) > limit:
                text = f"the record has {len(elements)} events, more than {limit}"
                raise Invalid(Reason.TOO_MANY_EVENTS, text) from None
            return sum(
                self._write_element(writer, record, element, index)
                for index, element in enumerate(elements)
            )
        keep = self._kept(events)
        kept = rows if keep is None else rows.where(keep)
        writer.events(kept, [writer.chunk.offsets[record]] * len(kept.users))
        return len(events) - len(kept.users)

    def _write_element(
        self, writer: Writer, record: int, value: bytes, index: int | None
    ) -> int:
        """Write one event or its letter; return 1 if it was filtered, else 0."""
        try:
            rows = self._read(
                value,
                writer.chunk.timestamps_ms[record],
                self._is_catalogue(writer.chunk),
            )
        except Invalid as problem:
            writer.letter(record, problem, value, index)
            return 0
        if rows is None:
            return 1
        writer.events(rows, [writer.chunk.offsets[record]])
        return 0

    def _read(
        self, value: bytes, record_time_ms: int, is_catalogue: bool
    ) -> Rows | None:
        """Read one event field by field; None if it is filtered, `Invalid` with the
        first thing that is wrong.
        """
        event = _decoded(self._decode_loose, value)
        kind = None
        if self._types or self._about_items:
            kind = fields.event_type(_content(event.event_type, Reason.BAD_EVENT_TYPE))
        if is_catalogue or kind in self._about_items:
            return self._read_item(event, record_time_ms, kind in self._deletions)
        if self._types and kind not in self._types:
            return None
        if self.settings.min_rating is not None:
            rating = fields.rating(_content(event.rating, Reason.BAD_RATING))
            if rating is None or rating < self.settings.min_rating:
                return None
        return Rows(
            [self._id(event, "user_id", Reason.MISSING_USER_ID, Reason.BAD_USER_ID)],
            [self._id(event, "item_id", Reason.MISSING_ITEM_ID, Reason.BAD_ITEM_ID)],
            [
                fields.seconds(
                    _content(event.timestamp, Reason.BAD_TIMESTAMP), record_time_ms
                )
            ],
            [self._features(event, "user_features")],
            [self._features(event, "item_features")],
        )

    def _read_item(self, event: Any, record_time_ms: int, is_deletion: bool) -> Rows:
        """Read a catalogue event field by field."""
        item = self._id(event, "item_id", Reason.MISSING_ITEM_ID, Reason.BAD_ITEM_ID)
        time_s = fields.seconds(
            _content(event.timestamp, Reason.BAD_TIMESTAMP), record_time_ms
        )
        if is_deletion or fields.truth(
            _content(event.deleted, Reason.BAD_FEATURES), self._called("deleted")
        ):
            return _deletion(item, time_s)
        said = self._features(event, "item_features") or {}
        title = fields.title(
            _content(event.title, Reason.BAD_FEATURES), self._called(TITLE)
        )
        return Rows(
            [NO_USER],
            [item],
            [time_s],
            [None],
            [said | {TITLE: title} if title else said],
        )

    def _id(self, event: Any, name: str, missing: Reason, bad: Reason) -> str:
        value = _content(getattr(event, name), bad)
        return fields.text_id(
            value,
            self._called(name),
            self.settings.max_id_length,
            missing=missing,
            bad=bad,
        )

    def _features(self, event: Any, name: str) -> dict[str, str | float] | None:
        value = _content(getattr(event, name), Reason.BAD_FEATURES)
        settings = self.settings
        return fields.features(
            value,
            self._called(name),
            settings.max_features,
            settings.max_feature_length,
        )

    def _called(self, name: str) -> str:
        """A field's name for a message, with what the topic calls it."""
        theirs = self.settings.name_of(name)
        return name if theirs == name else f"{name} (field {fields.clip(theirs)})"


def _deletion(item: str, time_s: float) -> Rows:
    return Rows([NO_USER], [item], [time_s], [None], [None])


def _strict_struct(settings: EventSettings) -> Any:
    """The type of a valid event. Fields that the settings do not need are left out, and
    may hold anything.
    """
    identifier = (
        Annotated[str, msgspec.Meta(min_length=1, max_length=settings.max_id_length)]
        | int
    )
    in_range = msgspec.Meta(ge=0, lt=fields.END_MS)
    timestamp = Annotated[int, in_range] | Annotated[float, in_range] | str | None
    name = Annotated[
        str, msgspec.Meta(min_length=1, max_length=settings.max_feature_length)
    ]
    category = Annotated[str, msgspec.Meta(max_length=settings.max_feature_length)]
    value = category | bool | int | float | None
    features = (
        Annotated[dict[name, value], msgspec.Meta(max_length=settings.max_features)]
        | None
    )
    members: list[Any] = [
        ("user_id", identifier),
        ("item_id", identifier),
        ("timestamp", timestamp, None),
        ("user_features", features, None),
        ("item_features", features, None),
    ]
    if settings.event_types or settings.deletion_types or settings.catalogue_types:
        members.append(("event_type", str | int | None, None))
    if settings.min_rating is not None:
        members.append(("rating", float | None, None))
    return msgspec.defstruct("Event", members, rename=dict(settings.fields), gc=False)


def _loose_struct(settings: EventSettings) -> Any:
    """The type of any JSON object: each field as it stands, an absent one as null."""
    members: list[Any] = [(name, msgspec.Raw, msgspec.Raw(b"null")) for name in FIELDS]
    return msgspec.defstruct(
        "LooseEvent", members, rename=dict(settings.fields), gc=False
    )


def _with_integers(event_types: Sequence[str]) -> frozenset[str | int]:
    """The list of types, where "3" stands for the integer 3 too."""
    digits = [t for t in event_types if len(t) < 20 and t.removeprefix("-").isdecimal()]
    return frozenset(event_types) | {int(t) for t in digits if str(int(t)) == t}


def _all_seconds(column: list[Any], record_times_ms: Sequence[int]) -> list[float]:
    """A column of times in seconds. Its numbers are in range already."""
    end = fields.END_S
    try:
        return [t * 1.0 if t < end else t / 1000 for t in column]
    except TypeError:  # a text or None is among them
        return [
            fields.seconds(t, time)
            for t, time in zip(column, record_times_ms, strict=True)
        ]


def _content(raw: Any, bad: Reason) -> Any:
    """Decode one field; `bad` is the reason for a number beyond what any type holds."""
    try:
        return _decode_any(raw)
    except msgspec.ValidationError:
        raise Invalid(bad, "a number is out of range") from None
    except _UNDECODABLE:
        return _decoded(_decode_any, raw)  # raises, and says why


def _decoded(decode: Callable[[Any], Any], value: Any) -> Any:
    """What a decoder makes of a value; an `Invalid` with the reason if it cannot."""
    try:
        return decode(value)
    except RecursionError:
        raise Invalid(Reason.TOO_DEEP, "the JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise Invalid(Reason.NOT_JSON, f"not UTF-8: {error.reason}") from None
    except msgspec.ValidationError as error:
        raise Invalid(Reason.NOT_AN_EVENT, f"not an event: {error}") from None
    except msgspec.DecodeError as error:
        raise Invalid(Reason.NOT_JSON, str(error)) from None
