"""Chunks of records in, columns of valid events out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from streamer.dead_letters.base import KEPT_VALUE_BYTES, Reason
from streamer.errors import SettingsError
from streamer.event import fields
from streamer.event.decoded import (
    NO_USER,
    TITLE,
    Decoded,
    FeatureColumn,
    Features,
    Rows,
)
from streamer.event.fields import Invalid
from streamer.event.lift import FeatureNames, Lift
from streamer.event.registry import registry_of
from streamer.model.settings import MAX_WEIGHT, RULE_FLAGS, RULE_TIMES, RULES
from streamer.settings import FIELDS, EventSettings
from streamer.sources.base import Chunk

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_WHITE = b" \t\r\n"
EVENT_FIELDS = ("user_id", "item_id", "timestamp", "user_features", "item_features")
MAX_TITLE_LENGTH = 256
"""Characters of a title that are kept."""

_BAD_FEATURES = (Reason.BAD_FEATURES, Reason.FEATURE_TOO_LONG, None)
_BAD_TIME = (Reason.BAD_TIMESTAMP, Reason.BAD_TIMESTAMP, None)
REASONS: dict[str, tuple[Reason, Reason, Reason | None]] = {
    "user_id": (Reason.BAD_USER_ID, Reason.ID_TOO_LONG, Reason.MISSING_USER_ID),
    "item_id": (Reason.BAD_ITEM_ID, Reason.ID_TOO_LONG, Reason.MISSING_ITEM_ID),
    "timestamp": _BAD_TIME,
    "user_features": _BAD_FEATURES,
    "item_features": _BAD_FEATURES,
    "event_type": (Reason.BAD_EVENT_TYPE, Reason.BAD_EVENT_TYPE, None),
    "rating": (Reason.BAD_RATING, Reason.BAD_RATING, None),
    "weight": (Reason.BAD_WEIGHT, Reason.BAD_WEIGHT, None),
    **dict.fromkeys(("deleted", TITLE, *RULE_FLAGS), _BAD_FEATURES),
    **dict.fromkeys(RULE_TIMES, _BAD_TIME),
}
"""Why a field cannot be used: it is of a wrong kind, too long, or missing."""

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
        features: features that may also stand beside `item_features` and
            `user_features`.
        typed: whether types and weights of events are wanted.

    Raises:
        SettingsError: with every wrong setting.
    """

    def __init__(
        self,
        settings: EventSettings | None = None,
        catalogue_topic: str | None = None,
        features: FeatureNames | None = None,
        typed: bool = False,
    ) -> None:
        self.settings = settings = settings or EventSettings()
        if problems := settings.problems():
            raise SettingsError(problems)
        self._registry = registry_of(settings)
        self._catalogue_topic = catalogue_topic
        self._types = fields.with_integers(settings.event_types)
        self._deletions = fields.with_integers(settings.deletion_types)
        self._about_items = self._deletions | fields.with_integers(
            settings.catalogue_types
        )
        self._typed = typed
        self._weighted = typed or "weight" in settings.fields
        types = _types_of(settings)
        self._event = _struct(settings, types, typed, self._weighted)
        self._decode_one = msgspec.json.Decoder(self._event).decode
        self._decode_loose = msgspec.json.Decoder(_loose_struct(settings)).decode
        lift = Lift(settings, features or FeatureNames())
        if lift.is_needed:
            self._decode_one = _after(lift, self._decode_one)
            self._decode_loose = _after(lift, self._decode_loose)
        self._decode_field: dict[str, Callable[[Any], Any]] = {}
        for name, kind in types.items():
            self._decode_field[name] = msgspec.json.Decoder(kind).decode

    def decode(self, chunk: Chunk) -> Decoded:
        """Decode, filter and validate every record of a chunk. Never raises for what
        the records hold.

        Raises:
            SourceUnavailable: the schema registry does not answer.
        """
        if self._registry is None:
            return self._decode(chunk)
        return self._registry.decoded(chunk, self._decode)

    def _decode(self, chunk: Chunk) -> Decoded:
        out = Decoded.opened(partition=chunk.partition)
        is_catalogue = self._is_catalogue(chunk)
        decode_one = self._decode_one
        max_bytes = self.settings.max_record_bytes
        about_items = self._about_items
        run: list[Any] = []  # the events of the records just before, not written yet
        for record, value in enumerate(chunk.values):
            event = None
            try:
                if not is_catalogue and len(value) <= max_bytes:
                    event = decode_one(value)
            except (*_UNDECODABLE, TypeError):  # TypeError: a value of None
                pass
            if about_items and event is not None and event.event_type in about_items:
                event = None
            if event is not None:
                run.append(event)
                continue
            self._add_run(out, chunk, run, record)
            self._add_record(out, chunk, record)
            run = []
        self._add_run(out, chunk, run, len(chunk.values))
        return out.closed()

    def _is_catalogue(self, chunk: Chunk) -> bool:
        return chunk.partition.topic == self._catalogue_topic

    # -- the fast reading

    def _add_run(self, out: Decoded, chunk: Chunk, run: list[Any], stop: int) -> None:
        """Add the records before `stop`, one event each; if something is wrong after
        all, one by one.
        """
        start = stop - len(run)
        try:
            rows = self._columns(run, chunk.timestamps_ms[start:stop])
        except Invalid:
            for record in range(start, stop):
                self._add_record(out, chunk, record)
        else:
            out.add_plain_records(rows, self._kept(run), chunk.offsets[start:stop])

    def _columns(self, events: list[Any], record_times_ms: Sequence[int]) -> Rows:
        """The columns of events that the strict Struct accepted; `Invalid` if one
        breaks a rule beyond the Struct's.
        """
        users = [event.user_id for event in events]
        items = [event.item_id for event in events]
        times = [event.timestamp for event in events]
        user_features = [event.user_features for event in events]
        item_features = [event.item_features for event in events]
        nothing: list[Any] = [None] * len(events)
        kinds = nothing
        if self._typed:
            kinds = [_type_name(event.event_type) for event in events]
        weights = nothing
        if self._weighted:
            weights = [event.weight for event in events]
        return Rows(
            self._id_column(users),
            self._id_column(items),
            fields.all_seconds(times, record_times_ms),
            self._feature_column(user_features),
            self._feature_column(item_features),
            kinds,
            weights,
        )

    def _id_column(self, column: list[Any]) -> list[str]:
        if set(map(type, column)) <= {str}:
            return column
        texts = list(map(str, column))
        self._check_id_length(texts)
        return texts

    def _check_id_length(self, texts: list[str]) -> None:
        limit = self.settings.max_id_length
        if max(map(len, texts)) > limit:
            raise Invalid(Reason.ID_TOO_LONG, f"an id has more than {limit} characters")

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
        keep = [True] * len(events)
        for k, event in enumerate(events):
            if types and event.event_type not in types:
                keep[k] = False
            elif least is not None:
                keep[k] = event.rating is not None and event.rating >= least
        return keep

    # -- the slow reading

    def _add_record(self, out: Decoded, chunk: Chunk, record: int) -> None:
        """Add a record that is no plain event: an array, or something wrong."""
        value = chunk.values[record]
        limit = self.settings.max_record_bytes
        filtered = 0
        try:
            if not value:
                self._add_deletion(out, chunk, record)
            elif len(value) > limit:
                text = f"the record has {len(value)} bytes, more than {limit}; kept: {KEPT_VALUE_BYTES} at most"
                raise Invalid(Reason.RECORD_TOO_LARGE, text)
            elif value.lstrip(_WHITE).startswith(b"["):
                for index, element in enumerate(self._elements(value)):
                    filtered += self._add_event(out, chunk, record, element, index)
            else:
                filtered = self._add_event(out, chunk, record, value)
        except Invalid as problem:
            out.add_letter(chunk, record, problem, value)
        out.end_record(chunk.offsets[record], filtered)

    def _add_deletion(self, out: Decoded, chunk: Chunk, record: int) -> None:
        """Add a record of the catalogue that has a key alone, as compaction of a topic
        wants it.
        """
        key = chunk.keys[record]
        if not key or not self._is_catalogue(chunk):
            raise Invalid(Reason.NULL_VALUE, "the record has no value")
        item = key.decode(errors="replace")
        self._check_id_length([item])
        time_s = fields.seconds(None, chunk.timestamps_ms[record])
        out.add(_about_item(item, time_s, None), [chunk.offsets[record]])

    def _elements(self, value: bytes) -> list[bytes]:
        """The elements of an array, as they stand."""
        elements = [
            bytes(element) for element in fields.decoded(_decode_elements, value)
        ]
        if not elements:
            raise Invalid(Reason.EMPTY_ARRAY, "the record is an array without events")
        limit = self.settings.max_events_per_record
        if len(elements) > limit:
            text = f"the record has {len(elements)} events, more than {limit}"
            raise Invalid(Reason.TOO_MANY_EVENTS, text)
        return elements

    def _add_event(
        self,
        out: Decoded,
        chunk: Chunk,
        record: int,
        value: bytes,
        index: int | None = None,
    ) -> int:
        """Add one event or its letter; return 1 if it was filtered, else 0."""
        try:
            time_ms = chunk.timestamps_ms[record]
            rows = self._read(value, time_ms, self._is_catalogue(chunk))
        except Invalid as problem:
            out.add_letter(chunk, record, problem, value, index)
            return 0
        if rows is None:
            return 1
        out.add(rows, [chunk.offsets[record]])
        return 0

    def _read(
        self, value: bytes, record_time_ms: int, is_catalogue: bool
    ) -> Rows | None:
        """Read one event field by field; None if it is filtered, `Invalid` with the
        first thing that is wrong.
        """
        raw = fields.decoded(self._decode_loose, value)
        kind = None
        if self._types or self._about_items:
            kind = self._field(raw, "event_type")
        if is_catalogue or kind in self._about_items:
            return self._read_item(raw, record_time_ms, kind in self._deletions)
        if self._types and kind not in self._types:
            return None
        if self.settings.min_rating is not None:
            rating = self._field(raw, "rating")
            if rating is None or rating < self.settings.min_rating:
                return None
        values = [self._field(raw, name) for name in self._event.__struct_fields__]
        event = self._event(*values)
        return self._columns([event], [record_time_ms])

    def _read_item(self, raw: Any, record_time_ms: int, is_deletion: bool) -> Rows:
        """Read a catalogue event field by field."""
        item_id = self._field(raw, "item_id")
        (item,) = self._id_column([item_id])
        time_s = fields.seconds(self._field(raw, "timestamp"), record_time_ms)
        if is_deletion or self._field(raw, "deleted"):
            return _about_item(item, time_s, None)
        features = self._field(raw, "item_features")
        (said,) = self._feature_column([features])
        about = dict(said or {})
        title = self._field(raw, TITLE)
        if title:
            about[TITLE] = title[:MAX_TITLE_LENGTH]
        for name in RULES:
            value = self._field(raw, name)
            if value is not None:
                about[name] = fields.seconds(value, record_time_ms)
        return _about_item(item, time_s, about)

    def _field(self, raw: Any, name: str) -> Any:
        """Decode one field by its type, or say what is wrong with it."""
        content = getattr(raw, name)
        bad, too_long, missing = REASONS[name]
        if missing is not None and bytes(content) == b"null":
            raise Invalid(missing, f"{self._called(name)} is missing")
        try:
            return self._decode_field[name](content)
        except msgspec.ValidationError as error:
            text = str(error)
            reason = bad
            if "`object` of length <=" in text:
                reason = Reason.TOO_MANY_FEATURES
            elif "of length <=" in text:
                reason = too_long
            raise Invalid(reason, f"{self._called(name)}: {text}") from None
        except _UNDECODABLE:
            return fields.decoded(_decode_any, content)  # raises, and says why

    def _called(self, name: str) -> str:
        """A field's name for a message, with what the topic calls it."""
        theirs = self.settings.name_of(name)
        return name if theirs == name else f"{name} (field {fields.clip(theirs)})"


def _about_item(item: str, time_s: float, about: Features | None) -> Rows:
    """A catalogue event: what an item is like, or None if it is deleted."""
    return Rows(
        users=[NO_USER],
        items=[item],
        timestamps_s=[time_s],
        user_features=[None],
        item_features=[about],
        types=[None],
        weights=[None],
    )


def _type_name(event_type: str | int | None) -> str | None:
    return None if event_type is None else str(event_type)


def _types_of(settings: EventSettings) -> dict[str, Any]:
    """The type of each field of a valid event."""
    limit = settings.max_feature_length
    id_length = msgspec.Meta(min_length=1, max_length=settings.max_id_length)
    identifier = Annotated[str, id_length] | int
    in_range = msgspec.Meta(ge=0, lt=fields.END_MS)
    timestamp = Annotated[int, in_range] | Annotated[float, in_range] | str | None
    name = Annotated[str, msgspec.Meta(min_length=1, max_length=limit)]
    category = Annotated[str, msgspec.Meta(max_length=limit)]
    value = category | bool | int | float | None
    max_features = msgspec.Meta(max_length=settings.max_features)
    features = Annotated[dict[name, value], max_features] | None
    weight = Annotated[float, msgspec.Meta(ge=0, le=MAX_WEIGHT)] | None
    return {
        "user_id": identifier,
        "item_id": identifier,
        "timestamp": timestamp,
        "user_features": features,
        "item_features": features,
        "event_type": str | int | None,
        "rating": float | None,
        "weight": weight,
        **dict.fromkeys(("deleted", *RULE_FLAGS), bool | None),
        **dict.fromkeys(RULE_TIMES, timestamp),
        TITLE: str | None,
    }


def _struct(
    settings: EventSettings, types: dict[str, Any], typed: bool, weighted: bool
) -> Any:
    """The type of a valid event. Fields that the settings do not need are left out, and
    may hold anything.
    """
    members: list[Any] = []
    for name in EVENT_FIELDS:
        default = () if name.endswith("_id") else (None,)
        members.append((name, types[name], *default))
    filters = (
        *settings.event_types,
        *settings.deletion_types,
        *settings.catalogue_types,
    )
    if typed or filters:
        members.append(("event_type", types["event_type"], None))
    if settings.min_rating is not None:
        members.append(("rating", types["rating"], None))
    if weighted:
        members.append(("weight", types["weight"], None))
    names = dict(settings.fields)
    return msgspec.defstruct("Event", members, rename=names, gc=False)


def _loose_struct(settings: EventSettings) -> Any:
    """The type of any JSON object: each field as it stands, an absent one as null."""
    absent = msgspec.Raw(b"null")
    members: list[Any] = [(name, msgspec.Raw, absent) for name in FIELDS]
    return msgspec.defstruct(
        "LooseEvent", members, rename=dict(settings.fields), gc=False
    )


def _after(lift: Lift, decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: decode(lift(value))
