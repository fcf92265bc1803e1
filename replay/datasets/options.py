"""Which events of a log make the stream, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

FIELDS = ("user_id", "item_id", "timestamp", "rating", "event_type")
"""The parts of an event that a column can hold, by our own names."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a log is read. The defaults read all of it, as its format says.

    The filters are applied in the order in which they stand here; `limit` cuts the finished stream.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name of a part -> the name of its column, `{"user_id": "uid"}`, or its number, counted from 1."""
    item_features: tuple[str, ...] | None = None
    """Columns with features of the item; `price:float` is a number. None: those that the format is known for."""
    user_features: tuple[str, ...] | None = None
    """Columns with features of the user."""
    event_types: tuple[str, ...] = ()
    """Only events of these types; empty: all."""
    min_rating: float | None = None
    """Only events with at least this rating. None: as the format says."""
    since: str | None = None
    """Only events at this time or later: ISO 8601, UTC unless it says otherwise, or seconds since the epoch.

    A number that may be a year or a date is refused, 2014 say; 2014.0 is seconds.
    """
    until: str | None = None
    """Only events before this time."""
    sample_users: float | int | None = None
    """A share of the users (below 1), or a number of them, chosen by the seed."""
    min_user_events: int = 0
    """Only users with at least this many events, and items with `min_item_events`, repeated until both hold."""
    min_item_events: int = 0
    limit: int | None = None
    """Only the first events of the stream, up to this number."""

    seed: int = 0
    """Shuffles events of equal time, and chooses users."""
    delimiter: str | None = None
    """Between columns. None: as the format says, or as the first lines show."""
    header: bool | None = None
    """Whether the first line names the columns. None: as the first line shows."""
    memory_limit: str = "1GB"
    """Of reading and sorting; what does not fit goes to `temp_dir`."""
    temp_dir: Path | None = None
    """In which a directory for temporary files is made. None: where the system has temporary files."""
    threads: int | None = None
    """That read and sort. None: one for each core. The order does not depend on it."""

    def problems(self) -> list[str]:
        """One sentence for each wrong option."""
        return [*self._column_problems(), *self._filter_problems(), *self._time_problems(), *self._reading_problems()]

    def _column_problems(self) -> Iterator[str]:
        for part, column in self.columns.items():
            if part not in FIELDS:
                yield f"columns: there is no field {part!r}, only {', '.join(FIELDS)}"
            if not column:
                yield f"columns: {part} needs the name of a column"
        for name in ("item_features", "user_features"):
            for column in getattr(self, name) or ():
                if not column.removesuffix(":float"):
                    yield f"{name}: {column!r} names no column"

    def _filter_problems(self) -> Iterator[str]:
        if self.min_rating is not None and not math.isfinite(self.min_rating):
            yield f"min_rating is {self.min_rating}: it must be a finite number"
        for name, least in (("min_user_events", 0), ("min_item_events", 0), ("limit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                yield f"{name} is {value}: it must be {least} or more"
        sample = self.sample_users
        if sample is not None and not (0 < sample < 1 or (sample >= 1 and float(sample).is_integer())):
            yield f"sample_users is {sample}: it must be a share between 0 and 1, or a whole number of users"

    def _time_problems(self) -> Iterator[str]:
        for name in ("since", "until"):
            text = getattr(self, name)
            if text is None:
                continue
            if text.isdecimal() and len(text) in (4, 6, 8):  # 2014, 1111, 201411, 20141111
                yield f"{name} is {text!r}, a date or seconds? Write 2014-11-11, or {text}.0 for seconds"
            elif _time_or_none(text) is None:
                yield f"{name} is {text!r}: write 2014-11-11, 2014-11-11T08:30:00+08:00 or seconds since the epoch"
        since, until = _time_or_none(self.since or ""), _time_or_none(self.until or "")
        if since is not None and until is not None and since >= until:
            yield f"since is {self.since!r} and until is {self.until!r}: no time lies between"

    def _reading_problems(self) -> Iterator[str]:
        if self.seed < 0:
            yield f"seed is {self.seed}: it must be 0 or more"
        if self.threads is not None and self.threads < 1:
            yield f"threads is {self.threads}: it must be 1 or more"
        if self.delimiter is not None and not 1 <= len(self.delimiter.encode()) <= 4:
            yield f"delimiter is {self.delimiter!r}: it must have 1 to 4 characters"


def parse_time(text: str) -> float:
    """Seconds since the epoch of a text that is a number of them, or ISO 8601 (UTC unless it says otherwise).

    Raises:
        ValueError: it is neither.
    """
    try:
        seconds = float(text)
    except ValueError:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is not a time")
    return seconds


def _time_or_none(text: str) -> float | None:
    try:
        return parse_time(text)
    except ValueError:
        return None
