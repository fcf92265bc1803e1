"""The rules of single fields: what an id, a time, a feature and a rating may be.

Each function takes a value as JSON gave it, and returns it as we use it or raises
`Invalid` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from streamer.dead_letters.base import Reason

END_S = 7_258_118_400
"""2200-01-01 in seconds: all times are before. A number from here on is in
milliseconds.
"""
END_MS = END_S * 1000


class Invalid(Exception):  # noqa: N818  (a verdict, not an error: it becomes a dead letter)
    """What is wrong with an event or a record."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)


def seconds(value: Any, record_time_ms: int) -> float:
    """An event's time in seconds; its record's if the event has none."""
    if value is None:
        if not 0 <= record_time_ms < END_MS:
            text = f"there is no timestamp, and the record's own time is {record_time_ms} ms"
            raise Invalid(Reason.MISSING_TIMESTAMP, text)
        return record_time_ms / 1000
    if type(value) is str:
        return _iso_seconds(value)
    if value < END_S:
        return float(value)
    return float(value / 1000)


def _iso_seconds(text: str) -> float:
    """Read ISO 8601. Digits alone are refused: a date, seconds or milliseconds, who
    knows.
    """
    try:
        if text.isdecimal():
            raise ValueError
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        result = time.timestamp()
    except ValueError:
        raise Invalid(
            Reason.BAD_TIMESTAMP, f"timestamp {clip(text)} is not ISO 8601"
        ) from None
    if not 0 <= result < END_S:
        raise Invalid(
            Reason.BAD_TIMESTAMP, f"timestamp {clip(text)} is not between 1970 and 2200"
        )
    return result


def normal_features(
    checked: dict[str, Any], max_length: int
) -> dict[str, str | float] | None:
    """Turn categories into text and leave out what is null; None if nothing is left."""
    normal: dict[str, str | float] = {}
    for name, value in checked.items():
        if type(value) is str or type(value) is float:
            normal[name] = value
        elif value is not None:
            normal[name] = _category(value, max_length)
    return normal or None


def _category(value: bool | int, max_length: int) -> str:
    text = str(value)
    if type(value) is bool:
        text = text.lower()
    if len(text) > max_length:
        text = (
            f"a feature has a value of {len(text)} characters, more than {max_length}"
        )
        raise Invalid(Reason.FEATURE_TOO_LONG, text)
    return text


def clip(text: str, length: int = 60) -> str:
    """A stranger's text, short and on one line, for a message."""
    if len(text) > length:
        text = text[:length] + "…"
    return repr(text)


def decoded(decode: Callable[[Any], Any], value: Any) -> Any:
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


def with_integers(event_types: Sequence[str]) -> frozenset[str | int]:
    """The list of types, where "3" stands for the integer 3 too."""
    found: set[str | int] = set(event_types)
    for text in event_types:
        is_number = len(text) < 20 and text.removeprefix("-").isdecimal()
        if is_number and str(int(text)) == text:
            found.add(int(text))
    return frozenset(found)


def all_seconds(column: list[Any], record_times_ms: Sequence[int]) -> list[float]:
    """A column of times in seconds. Its numbers are in range already."""
    end = END_S
    try:
        return [t * 1.0 if t < end else t / 1000 for t in column]
    except TypeError:  # a text or None is among them
        return list(map(seconds, column, record_times_ms))
