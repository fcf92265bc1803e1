"""Settings of the wire format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec

FIELDS = ("user_id", "item_id", "timestamp", "user_features", "item_features", "event_type", "rating")
"""The fields of an event by our own names."""

_LIMITS = ("max_id_length", "max_features", "max_feature_length", "max_record_bytes", "max_events_per_record")


class EventSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the events of a topic look like, which of them count, and how large they may be."""

    fields: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Our name -> the topic's name, for fields that are called otherwise: `{"user_id": "uid"}`."""
    event_types: tuple[str, ...] = ()
    """Only events of these types are trained; empty: all. "3" allows the integer 3 too."""
    min_rating: float | None = None
    """Only events with at least this rating are trained; None: all."""
    max_id_length: int = 256
    """Characters of an id."""
    max_features: int = 64
    """Features of the user, and features of the item, in one event."""
    max_feature_length: int = 256
    """Characters of a feature's name, and of its category."""
    max_record_bytes: int = 1_048_576
    """Bytes of a record's value."""
    max_events_per_record: int = 10_000
    """Elements of a record that holds an array."""

    def name_of(self, field: str) -> str:
        """What the topic calls one of our fields."""
        return self.fields.get(field, field)

    def problems(self) -> list[str]:
        """One sentence for each wrong setting."""
        return [*self._field_problems(), *self._filter_problems(), *self._limit_problems()]

    def _field_problems(self) -> Iterator[str]:
        for ours, theirs in self.fields.items():
            if ours not in FIELDS:
                yield f"fields: there is no field {ours!r} to map, only {', '.join(FIELDS)}"
            if not _is_field_name(theirs):
                yield f"fields: {ours} cannot be called {theirs!r}; quotes, backslashes, controls are no good"
        callers: dict[str, list[str]] = {}
        for ours in FIELDS:
            callers.setdefault(self.name_of(ours), []).append(ours)
        for theirs, many in callers.items():
            if len(many) > 1:
                yield f"fields: {theirs!r} is the name of several fields: {', '.join(many)}"

    def _filter_problems(self) -> Iterator[str]:
        types = self.event_types
        if not isinstance(types, tuple | list) or not all(isinstance(t, str) and t for t in types):
            yield f"event_types must be a list of texts that are not empty, not {types!r}"
        if self.min_rating is not None and not _is_finite_number(self.min_rating):
            yield f"min_rating must be a finite number, not {self.min_rating!r}"

    def _limit_problems(self) -> Iterator[str]:
        for name in _LIMITS:
            limit = getattr(self, name)
            if type(limit) is not int or not 1 <= limit < 2**31:
                yield f"{name} must be an integer from 1 to 2147483647, not {limit!r}"


def _is_field_name(name: object) -> bool:
    """Whether msgspec can read a field of this name."""
    return isinstance(name, str) and bool(name) and not any(c in '"\\' or c < " " for c in name)


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
