"""Events as records, for replay and demo."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec


class _Wire(msgspec.Struct, omit_defaults=True, gc=False):
    """An event as it is written, by our own names."""

    user_id: str | int
    item_id: str | int
    timestamp: float | str | datetime | None = None
    user_features: Mapping[str, str | float] | None = None
    item_features: Mapping[str, str | float] | None = None
    event_type: str | int | None = None
    rating: float | None = None


_encode = msgspec.json.Encoder().encode


def encode(
    user_id: str | int,
    item_id: str | int,
    timestamp: float | str | datetime | None = None,
    *,
    user_features: Mapping[str, str | float] | None = None,
    item_features: Mapping[str, str | float] | None = None,
    event_type: str | int | None = None,
    rating: float | None = None,
) -> bytes:
    """Write an event as a record's value, by our own field names; what is None is left out.

    Raises:
        ValueError: a number is not finite (JSON has none such), or a text cannot be UTF-8.
    """
    _check_finite([timestamp, rating])
    for features in (user_features, item_features):
        if features:
            _check_finite(features.values())
    return _encode(_Wire(user_id, item_id, timestamp, user_features, item_features, event_type, rating))


def _check_finite(values: Iterable[object]) -> None:
    """msgspec would write NaN and infinities as null."""
    for value in values:
        if type(value) is float and not math.isfinite(value):
            raise ValueError(f"an event's numbers must be finite, not {value}")
