"""The rules of single fields: what an id, a time, a feature and a rating may be.

Each function takes a value as JSON gave it, and returns it as we use it or raises
`Invalid` with the reason.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from streamer.dead_letters.base import Reason

END_S = 7_258_118_400
"""2200-01-01 in seconds: all times are before. A number from here on is in
milliseconds.
"""
END_MS = END_S * 1000
LONGEST_TITLE = 256
"""Characters that are kept."""


class Invalid(Exception):  # noqa: N818  (a verdict, not an error: it becomes a dead letter)
    """What is wrong with an event or a record."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)


def text_id(value: Any, name: str, limit: int, *, missing: Reason, bad: Reason) -> str:
    """An id as text; `name` is how messages call the field."""
    if value is None:
        raise Invalid(missing, f"{name} is missing")
    if type(value) is int:
        value = str(value)
    if type(value) is not str:
        raise Invalid(bad, f"{name} is {kind(value)}, not a text or an integer")
    if not value:
        raise Invalid(bad, f"{name} is empty")
    if len(value) > limit:
        raise Invalid(
            Reason.ID_TOO_LONG, f"{name} has {len(value)} characters, more than {limit}"
        )
    return value


def seconds(value: Any, record_time_ms: int) -> float:
    """An event's time in seconds; its record's if the event has none."""
    if value is None:
        if not 0 <= record_time_ms < END_MS:
            text = f"there is no timestamp, and the record's own time is {record_time_ms} ms"
            raise Invalid(Reason.MISSING_TIMESTAMP, text)
        return record_time_ms / 1000
    if type(value) is str:
        return _iso_seconds(value)
    if type(value) not in (int, float):
        raise Invalid(
            Reason.BAD_TIMESTAMP, f"timestamp is {kind(value)}, not a number or a text"
        )
    if not 0 <= value < END_MS:
        text = "timestamp is not between 1970 and 2200, neither in seconds nor in milliseconds"
        raise Invalid(Reason.BAD_TIMESTAMP, text)
    return float(value) if value < END_S else float(value / 1000)


def _iso_seconds(text: str) -> float:
    """Read ISO 8601. Digits alone are refused: a date, seconds or milliseconds, who
    knows.
    """
    try:
        if text.isdecimal():
            raise ValueError
        time = datetime.fromisoformat(text)
        result = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise Invalid(
            Reason.BAD_TIMESTAMP, f"timestamp {clip(text)} is not ISO 8601"
        ) from None
    if not 0 <= result < END_S:
        raise Invalid(
            Reason.BAD_TIMESTAMP, f"timestamp {clip(text)} is not between 1970 and 2200"
        )
    return result


def features(
    value: Any, name: str, max_features: int, max_length: int
) -> dict[str, str | float] | None:
    """Features as categories and numbers, or None; `name` is how messages call the
    field.
    """
    if value is None:
        return None
    if type(value) is not dict:
        raise Invalid(Reason.BAD_FEATURES, f"{name} is {kind(value)}, not an object")
    if len(value) > max_features:
        raise Invalid(
            Reason.TOO_MANY_FEATURES,
            f"{name} has {len(value)} features, more than {max_features}",
        )
    for feature, content in value.items():
        if not feature:
            raise Invalid(Reason.BAD_FEATURES, "a feature has an empty name")
        if type(content) in (list, dict):
            raise Invalid(
                Reason.BAD_FEATURES,
                f"feature {clip(feature)} is {kind(content)}, not a single value",
            )
        length = max(len(feature), len(content) if type(content) is str else 0)
        if length > max_length:
            text = f"feature {clip(feature)} has a name or a value of {length} characters, more than {max_length}"
            raise Invalid(Reason.FEATURE_TOO_LONG, text)
    return normal_features(value, max_length)


def normal_features(
    checked: dict[str, Any], max_length: int
) -> dict[str, str | float] | None:
    """Turn categories into text and leave out what is null; None if nothing is left."""
    return {
        name: value
        if type(value) is str or type(value) is float
        else _category(value, max_length)
        for name, value in checked.items()
        if value is not None
    } or None


def _category(value: bool | int, max_length: int) -> str:
    text = str(value).lower() if type(value) is bool else str(value)
    if len(text) > max_length:
        text = (
            f"a feature has a value of {len(text)} characters, more than {max_length}"
        )
        raise Invalid(Reason.FEATURE_TOO_LONG, text)
    return text


def title(value: Any, name: str) -> str | None:
    """The title of an item, cut if it is long."""
    if value is None or type(value) is str:
        return value[:LONGEST_TITLE] if value else None
    raise Invalid(Reason.BAD_FEATURES, f"{name} is {kind(value)}, not a text")


def truth(value: Any, name: str) -> bool:
    """Whether something is so; null is false."""
    if value is None or type(value) is bool:
        return bool(value)
    raise Invalid(Reason.BAD_FEATURES, f"{name} is {kind(value)}, not true or false")


def event_type(value: Any) -> str | int | None:
    """An event's type, for a filter."""
    if value is None or (isinstance(value, str | int) and type(value) is not bool):
        return value
    raise Invalid(
        Reason.BAD_EVENT_TYPE, f"event_type is {kind(value)}, not a text or an integer"
    )


def rating(value: Any) -> float | None:
    """A rating, for a filter."""
    if value is None:
        return None
    if type(value) not in (int, float):
        raise Invalid(Reason.BAD_RATING, f"rating is {kind(value)}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise Invalid(Reason.BAD_RATING, "rating is out of range") from None


_KINDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction",
    str: "a text",
    list: "an array",
    dict: "an object",
}


def kind(value: object) -> str:
    """What a JSON value is, for a message."""
    return _KINDS.get(type(value), "null")


def clip(text: str, length: int = 60) -> str:
    """A stranger's text, short and on one line, for a message."""
    return repr(text if len(text) <= length else text[:length] + "…")
