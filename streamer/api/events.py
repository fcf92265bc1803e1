"""Events as people have them, frames, dictionaries or tuples, into micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from datetime import UTC, date, datetime, time
from typing import Any, NamedTuple

import numpy as np

from streamer.api.ids import Id, IdForms, is_missing, to_id
from streamer.errors import EventError
from streamer.event import EventSettings, Features
from streamer.event.fields import END_MS, Invalid, normal_features, seconds
from streamer.event.guess import COLUMN_NAMES, guess_name
from streamer.ingest.batcher import MicroBatch
from streamer.model.settings import MAX_WEIGHT, LearnerSettings

FIELDS = (
    *("user_id", "item_id", "timestamp", "event_type", "weight"),
    *("user_features", "item_features"),
)
"""What is read of an event, by our names."""
TUPLE_FIELDS = FIELDS[:3]
"""What the places of a tuple are."""
SIDES = {"user_id": "user", "item_id": "item"}

Columns = Mapping[str, Sequence[Any]]


class EventReader:
    """Reads events of one form.

    Args:
        settings: of the learner, whose features are looked for.
        fields: what the events call our fields, by our names: those of `FIELDS`.

    Raises:
        EventError: there is no such field.
    """

    def __init__(
        self, settings: LearnerSettings, fields: Mapping[str, str] | None = None
    ) -> None:
        self._fields = dict(fields or {})
        if unknown := [name for name in self._fields if name not in FIELDS]:
            known = ", ".join(FIELDS)
            raise EventError(
                f"fields: there is no {unknown[0]!r}: choose among {known}"
            )
        self._features = {
            "user": (settings.user_features, settings.user_numeric_features),
            "item": (
                settings.item_features,
                (*settings.item_numeric_features, *settings.item_attributes),
            ),
        }
        self._typed = settings.typed
        self._max_length = EventSettings().max_feature_length

    def read(self, events: Any, size: int) -> Iterator[ReadEvents]:
        """Parts of the events, each of at most `size`.

        What has a length is read and checked as a whole before the first part. A frame
        is read in the order of its times, everything else in its own order.

        Raises:
            EventError: something is not an event; the message names the row.
        """
        if hasattr(events, "columns"):
            whole = self._read(_frame_columns(events), 0).in_order()
        elif isinstance(events, str | bytes | Mapping):
            kind = type(events).__name__
            raise EventError(
                f"events come as a frame, or as a list of tuples or dictionaries, not as {kind}"
            )
        elif isinstance(events, Sized):
            whole = self._read_rows(list(events), 0)  # type: ignore[call-overload]
        else:
            yield from self._read_iterator(events, size)
            return
        for start in range(0, len(whole.users), size):
            yield whole.part(start, start + size)

    def _read_iterator(self, events: Iterable[Any], size: int) -> Iterator[ReadEvents]:
        left = iter(events)
        first = 0
        while rows := list(itertools.islice(left, size)):
            yield self._read_rows(rows, first)
            first += len(rows)

    def _read_rows(self, rows: Sequence[Any], first: int) -> ReadEvents:
        """Rows of events, of which the first has a number."""
        columns: dict[str, list[Any]] = {}
        for n, row in enumerate(rows):
            for name, value in _named(row, first + n).items():
                if name not in columns:
                    columns[name] = [None] * len(rows)
                columns[name][n] = value
        if not rows:
            columns = {"user_id": [], "item_id": []}
        return self._read(columns, first)

    def _read(self, columns: Columns, first: int) -> ReadEvents:
        found = {ours: self._column(ours, columns) for ours in FIELDS}
        users = _ids("user", found["user_id"] or [], first)
        items = _ids("item", found["item_id"] or [], first)
        times_s: Sequence[float | None] = [None] * len(users)
        if found["timestamp"] is not None:
            times_s = _times(found["timestamp"], first)
        features = {}
        for side in SIDES.values():
            nested = found[f"{side}_features"]
            features[side] = self._feature_column(side, nested, columns, first)
        types = None
        if self._typed and found["event_type"] is not None:
            types = _types(found["event_type"])
        weights = None
        if found["weight"] is not None:
            weights = _weights(found["weight"], first)
        return ReadEvents(
            users, items, times_s, features["user"], features["item"], types, weights
        )

    def _column(self, ours: str, columns: Columns) -> Sequence[Any] | None:
        """The column that holds a field; None if none does and none has to."""
        theirs = self._fields.get(ours)
        if theirs is None:
            known = COLUMN_NAMES.get(ours, (ours,))
            theirs = next((name for name in known if name in columns), None)
        if theirs is not None and theirs in columns:
            return columns[theirs]
        if theirs is None and ours not in SIDES:
            return None
        names = list(map(str, columns))
        what = SIDES.get(ours, ours)
        guess = guess_name(ours, names) if ours in SIDES else None
        hint = f"fields={{{ours!r}: {guess or '...'!r}}}"
        called = f" {theirs!r}" if theirs else ""
        raise EventError(
            f"the events have no {what}{called}: they have {', '.join(names)}. Try {hint}"
        )

    def _feature_column(
        self, side: str, nested: Sequence[Any] | None, columns: Columns, first: int
    ) -> list[Features | None] | None:
        """What the events say of their users or items: in `user_features` or
        `item_features`, or in columns of their own.
        """
        categorical, numeric = self._features[side]
        own = [name for name in (*categorical, *numeric) if name in columns]
        if nested is None and not own:
            return None
        count = len(next(iter(columns.values())))
        found: list[Features | None] = []
        for n in range(count):
            given = {name: columns[name][n] for name in own}
            if nested is not None and not is_missing(nested[n]):
                given |= nested[n]
            plain = {}
            for name, value in given.items():
                plain[str(name)] = _plain(value, is_category=name in categorical)
            try:
                found.append(normal_features(plain, self._max_length))
            except Invalid as problem:
                raise EventError(f"row {first + n}: {problem.detail}") from None
        return found


class ReadEvents(NamedTuple):
    """Events as columns of equal length."""

    users: Sequence[Id]
    items: Sequence[Id]
    times_s: Sequence[float | None]
    """None of an event without a time: it comes a second after the one before."""
    user_features: list[Features | None] | None
    item_features: list[Features | None] | None
    types: list[str | None] | None
    weights: list[float | None] | None

    def in_order(self) -> ReadEvents:
        """By their times, those of one time in their order; unless a time is missing."""
        if None in self.times_s:
            return self
        times_s = np.array(self.times_s, np.float64)
        order = np.argsort(times_s, kind="stable").tolist()
        return ReadEvents._make(
            None if column is None else [column[n] for n in order] for column in self
        )

    def part(self, start: int, stop: int) -> ReadEvents:
        """Some events that follow each other."""
        return ReadEvents._make(
            None if column is None else column[start:stop] for column in self
        )

    def batch(self, users: IdForms, items: IdForms, last_s: float) -> MicroBatch:
        """As a learner takes them.

        Args:
            users: forms of the users' ids.
            items: forms of the items' ids.
            last_s: the time of the event before.
        """
        times_s = []
        for time_s in self.times_s:
            last_s = last_s + 1 if time_s is None else time_s
            times_s.append(last_s)
        batch = MicroBatch(
            users.learn(self.users),
            items.learn(self.items),
            times_s,
            self.user_features,
            self.item_features,
            types=self.types,
            weights=self.weights,
        )
        return batch.closed()


def to_seconds(value: Any) -> float | None:
    """A time in seconds since the epoch, from a number, text or a kind of date; None if
    it is missing.

    Raises:
        ValueError: it is no time.
    """
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    elif isinstance(value, np.generic):
        value = value.item()
    if is_missing(value):
        return None
    if isinstance(value, date):
        if not isinstance(value, datetime):
            value = datetime.combine(value, time())
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        value = value.timestamp()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and not 0 <= value < END_MS:
        raise ValueError(f"time {value!r} is not between 1970 and 2200, in seconds")
    if not is_number and not isinstance(value, str):
        kind = type(value).__name__
        raise ValueError(f"time {value!r} is a {kind}, not seconds, a date or ISO 8601")
    try:
        return seconds(value, 0)
    except Invalid as problem:
        raise ValueError(problem.detail) from None


def _frame_columns(frame: Any) -> dict[str, Sequence[Any]]:
    """The columns of a frame of pandas or polars; they share how a column is taken."""
    columns = {}
    for name in frame.columns:
        columns[name] = frame[name].to_list()
    return columns


def _named(row: Any, number: int) -> Mapping[str, Any]:
    """A row as a dictionary: a tuple has a user, an item and perhaps a time."""
    if isinstance(row, Mapping):
        return row
    if hasattr(row, "_asdict"):
        named: Mapping[str, Any] = row._asdict()
        return named
    is_text = isinstance(row, str | bytes)
    if is_text or not isinstance(row, Sized) or len(row) not in (2, 3):
        raise EventError(
            f"row {number}: {row!r} is not an event: write (user, item), (user, item, time) or a dictionary"
        )
    return dict(zip(TUPLE_FIELDS, row, strict=False))  # type: ignore[call-overload]


def _ids(side: str, column: Sequence[Any], first: int) -> list[Id]:
    found = []
    for n, value in enumerate(column):
        try:
            found.append(to_id(value))
        except ValueError as error:
            problem = str(error)
            # a frame makes whole numbers fractions where one is missing
            missing = [at for at, other in enumerate(column) if is_missing(other)]
            if missing and isinstance(value, float):
                n = missing[0]
                problem = "is missing"
            raise EventError(f"row {first + n}: the {side} {problem}") from None
    return found


def _times(column: Sequence[Any], first: int) -> list[float | None]:
    found = []
    for n, value in enumerate(column):
        try:
            found.append(to_seconds(value))
        except ValueError as problem:
            raise EventError(f"row {first + n}: {problem}") from None
    return found


def _types(column: Sequence[Any]) -> list[str | None]:
    found = []
    for value in column:
        kind = _plain(value, is_category=True)
        found.append(None if kind is None else str(kind))
    return found


def _weights(column: Sequence[Any], first: int) -> list[float | None]:
    found = []
    for n, value in enumerate(column):
        weight = None if is_missing(value) else value
        is_number = isinstance(weight, int | float | np.number)
        if weight is not None and not (is_number and 0 <= weight <= MAX_WEIGHT):
            raise EventError(
                f"row {first + n}: weight {value!r} is no number from 0 to {MAX_WEIGHT:,.0f}"
            )
        found.append(None if weight is None else float(weight))
    return found


def _plain(value: Any, *, is_category: bool) -> Any:
    """A feature as JSON would have it. A frame makes a column of whole numbers one of
    fractions if one is missing: a category is a whole number then.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if is_missing(value):
        return None
    if is_category and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str | float | int):
        return value
    return str(value)
