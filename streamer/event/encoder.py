"""Events as records, for replay and demo."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat

import msgspec

Features = Mapping[str, str | float]


class _Wire(msgspec.Struct, omit_defaults=True, gc=False):
    """An event as it is written, by our own names; one of the catalogue has no user."""

    user_id: str | int | None = None
    item_id: str | int | None = None
    timestamp: float | str | datetime | None = None
    user_features: Features | None = None
    item_features: Features | None = None
    event_type: str | int | None = None
    rating: float | None = None
    title: str | None = None
    deleted: bool = False
    weight: float | None = None


_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


def encode(
    user_id: str | int | None,
    item_id: str | int,
    timestamp: float | str | datetime | None = None,
    *,
    user_features: Features | None = None,
    item_features: Features | None = None,
    event_type: str | int | None = None,
    rating: float | None = None,
    title: str | None = None,
    deleted: bool = False,
    weight: float | None = None,
) -> bytes:
    """Write an event as a record's value, by our own field names; what is None is left
    out. A catalogue event has no user.

    Raises `ValueError` if a number is not finite (JSON has none such), or a text cannot
    be UTF-8.
    """
    _check_finite([timestamp, rating, weight])
    for features in (user_features, item_features):
        _check_finite((features or {}).values())
    event = _Wire(
        user_id,
        item_id,
        timestamp,
        user_features,
        item_features,
        event_type,
        rating,
        title,
        deleted,
        weight,
    )
    return _encode(event)


def encode_all(
    user_ids: Sequence[str | int],
    item_ids: Sequence[str | int],
    timestamps: Sequence[float] | None = None,
    user_features: Sequence[Features | None] | None = None,
    item_features: Sequence[Features | None] | None = None,
    event_types: Sequence[str | None] | None = None,
) -> list[bytes]:
    """Write many events, given as columns, as `encode` writes each; several times as
    fast.
    """
    if timestamps is not None and not all(map(math.isfinite, timestamps)):
        _check_finite(timestamps)
    for features in chain(user_features or (), item_features or ()):
        if features:
            _check_finite(features.values())
    columns = (
        repeat(None) if column is None else column
        for column in (timestamps, user_features, item_features, event_types)
    )
    lines = _encode_lines(list(map(_Wire, user_ids, item_ids, *columns)))
    return lines.split(b"\n")[:-1]  # JSON has no line ends within a text


def _check_finite(values: Iterable[object]) -> None:
    """msgspec would write NaN and infinities as null."""
    for value in values:
        if type(value) is float and not math.isfinite(value):
            raise ValueError(f"an event's numbers must be finite, not {value}")
