"""Times as SQL, in steps: what stands in the file, what is computed from it, and seconds since the epoch.

Each step is a column that the next one may name as often as it likes; a single expression would be computed anew each
time, and a failed cast is dear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

END_S = 7_258_118_400
"""The year 2200. A number that is larger counts milliseconds, then microseconds, then nanoseconds."""


class Time(NamedTuple):
    """SQL of an event's time; null, or not between 1970 and 2200, if it is no good."""

    x: str
    """What stands in the file."""
    y: str
    """From x."""
    t: str
    """From x and y: seconds."""


ReadTime = Callable[[str], Time]

_ISO = "epoch(TRY_CAST(x AS TIMESTAMPTZ))"
_SCALED = " ".join(f"WHEN y < {END_S}e{power} THEN y / 1e{power}" for power in (0, 3, 6, 9))


def any_time(value: str) -> Time:
    """Of a text that is a number or ISO 8601, UTC unless it says otherwise."""
    return Time(value, "TRY_CAST(x AS DOUBLE)", f"CASE WHEN y IS NULL THEN {_ISO} {_SCALED} END")


def number(value: str) -> Time:
    """Of a number of seconds, or of smaller units."""
    return Time(value, "TRY_CAST(x AS DOUBLE)", f"CASE {_SCALED} END")


def iso(value: str) -> Time:
    """Of ISO 8601, UTC unless it says otherwise; of a date, or a time stamp of the database too."""
    return Time(value, _ISO, "y")


def pattern(*formats: str) -> ReadTime:
    """Of a text in one of some formats, as strptime names them; UTC."""
    texts = ", ".join(f"'{text}'" for text in formats)
    return lambda value: Time(value, f"epoch(try_strptime(x, [{texts}]))", "y")
