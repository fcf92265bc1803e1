"""What a format is made of: how its files are recognised and read, and which columns
hold the parts of an event.
"""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from streamer.errors import SettingsError, SourceError
from streamer.event import Features
from streamer.replay.datasets.database import Database
from streamer.replay.datasets.files import LogFile, LogFiles
from streamer.replay.datasets.first_lines import FirstLines
from streamer.replay.settings import FIELDS, LogSettings

LATEST_S = 7_258_118_400
"""The year 2200. A larger number counts milliseconds, a still larger one microseconds,
then nanoseconds.
"""
SEPARATOR = "\x1f"
"""Between the features of an event, when they are one text."""


class DatasetFormat(ABC):
    """A format of logs; the first line of a subclass's docstring is its help.
    `formats.guess_format` guesses one.
    """

    name: ClassVar[str]
    """How users name it."""
    file_names: ClassVar[tuple[tuple[str, ...], ...]]
    """Groups of patterns: in a directory, the files that match the first group with a
    match are the log.
    """
    is_text: ClassVar[bool] = True
    """Whether its files consist of lines."""

    @property
    def help(self) -> str:
        """One line about it."""
        first_paragraph = inspect.cleandoc(type(self).__doc__ or "").partition("\n\n")[
            0
        ]
        return first_paragraph.replace("\n", " ")

    @abstractmethod
    def columns(self, log: LogFiles) -> EventColumns:
        """The columns that hold the parts of an event."""

    def recognises(self, start: FirstLines) -> bool:
        """Whether a file with these lines is of this format, whatever its name."""
        return False

    def accepts(self, start: FirstLines) -> bool:
        """Whether a file with these lines is of this format if it is also named like
        one.
        """
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable(ABC):
    """How the files of a log are read: SQL of their rows, and of each column."""

    names: tuple[str, ...]
    """Its columns."""
    encoding: str | None = "utf-8"
    """Of its lines; None if it does not consist of lines."""
    header: bool = False
    """Whether the first line is not a row."""

    @abstractmethod
    def scan(self, file: LogFile) -> str:
        """SQL of the rows of a file, in their order."""

    @abstractmethod
    def untrimmed(self, name: str) -> str:
        """SQL of the text in a column, perhaps with spaces or quotes around it."""

    def trimmed(self, name: str) -> str:
        """SQL of the same text without spaces and quotes around it; null where nothing
        is left.
        """
        return f"nullif(trim({self.untrimmed(name)}), '')"

    def damage(self, database: Database, read: Callable[[], object]) -> str | None:
        """Call `read`, and return why it cannot have read a file rightly; None if
        nothing is wrong.
        """
        read()
        return None


class TimeFormat(NamedTuple):
    """SQL from the text of a time to seconds since the epoch, null for what is not a
    time.

    In two steps, because the second one may name the first several times: within one
    expression each mention would parse the text again, and a cast that fails is slow.
    """

    parsed: str
    """From the column `time_text`."""
    seconds: str
    """From the columns `time_text` and `time_parsed`."""


_ISO = "epoch(TRY_CAST(time_text AS TIMESTAMPTZ))"
_SCALED = " ".join(
    f"WHEN time_parsed < {LATEST_S}e{power} THEN time_parsed / 1e{power}"
    for power in (0, 3, 6, 9)
)
ISO_TIME = TimeFormat(_ISO, "time_parsed")
"""ISO 8601, UTC unless it says otherwise."""
ANY_TIME = TimeFormat(
    "TRY_CAST(time_text AS DOUBLE)",
    f"CASE WHEN time_parsed IS NULL THEN {_ISO} {_SCALED} END",
)
"""A number of seconds, or of smaller units, or ISO 8601."""


class FeatureColumn(NamedTuple):
    """A feature of each event, as SQL."""

    name: str
    sql: str
    kind: str = "category"
    """category, number, or object: several features as one JSON object."""


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """What a format calls the parts of an event: the first of the names that a file has
    counts.
    """

    user_id: tuple[str, ...]
    item_id: tuple[str, ...]
    timestamp: tuple[str, ...] = ()
    rating: tuple[str, ...] = ()
    event_type: tuple[str, ...] = ()
    item_features: tuple[str, ...] = ()
    user_features: tuple[str, ...] = ()
    required: tuple[str, ...] = ("user_id", "item_id")

    def are_header(self, cells: Sequence[str]) -> bool:
        """Whether the cells of a first line name a user and an item."""
        return bool(
            first_match(self.user_id, cells) and first_match(self.item_id, cells)
        )


COMMON_NAMES = ColumnNames(
    user_id=(
        "user_id",
        "userid",
        "user",
        "uid",
        "customer_id",
        "visitorid",
        "visitor_id",
        "reviewerid",
    ),
    item_id=(
        "item_id",
        "itemid",
        "item",
        "iid",
        "product_id",
        "movieid",
        "asin",
        "parent_asin",
    ),
    timestamp=(
        "timestamp",
        "time_stamp",
        "time",
        "ts",
        "event_time",
        "datetime",
        "date",
        "unixreviewtime",
    ),
    rating=("rating", "score", "overall"),
    event_type=(
        "event_type",
        "event",
        "action",
        "action_type",
        "behavior",
        "behavior_type",
    ),
)
"""What people call their columns."""


@dataclass(frozen=True, slots=True)
class EventColumns:
    """SQL of each part of an event: None for a part that the log does not have, null
    for a value that is not valid.
    """

    table: LogTable
    user_id: str
    item_id: str
    time: str | None = None
    time_format: TimeFormat = ANY_TIME
    rating: str | None = None
    event_type: str | None = None
    problem: str | None = None
    """The reason why a row cannot be an event, or null."""
    item_features: tuple[FeatureColumn, ...] = ()
    user_features: tuple[FeatureColumn, ...] = ()
    features_by_item: Mapping[str, Features] = field(default_factory=dict)
    """From other files."""
    features_by_user: Mapping[str, Features] = field(default_factory=dict)
    titles_by_item: Callable[[], Mapping[str, str]] = dict
    """Reads what people call the items from another file; empty if there is none."""
    above_average: bool = False
    """Whether only ratings above the user's average become events, unless the settings
    give a threshold.
    """
    event_type_names: Mapping[str, str] = field(default_factory=dict)
    """Name of an event type -> how the file writes it."""

    @property
    def coded(self) -> dict[str, str]:
        """SQL of what becomes codes: ids, and all features of an item or a user as one
        text.
        """
        found = {"user_id": self.user_id, "item_id": self.item_id}
        for name, features in (
            ("item_features", self.item_features),
            ("user_features", self.user_features),
        ):
            if features:  # null becomes an empty text
                between = f", '{SEPARATOR}', "
                found[name] = (
                    f"concat({between.join(feature.sql for feature in features)})"
                )
        return found

    def check_filters(self, settings: LogSettings) -> None:
        """See that the log has the columns that the filters need."""
        needs = {
            "event-type": (settings.event_types, self.event_type, "event_type"),
            "min-rating": (settings.min_rating is not None, self.rating, "rating"),
            "since": (settings.since, self.time, "timestamp"),
            "until": (settings.until, self.time, "timestamp"),
        }
        problems = [
            f"{option} needs a column for {part}, and the log has only {', '.join(self.table.names)}: "
            f"name the column, e.g. {part}=COLUMN, or leave {option} out"
            for option, (asked, sql, part) in needs.items()
            if asked and sql is None
        ]
        if names := self.event_type_names:
            unknown = [
                t
                for t in settings.event_types
                if t.lower() not in names and t not in names.values()
            ]
            problems += [
                f"event-type: there is no type {t!r}, only {', '.join(names)}"
                for t in unknown
            ]
        if problems:
            raise SettingsError(problems)


def find_columns(
    log: LogFiles,
    table: LogTable,
    names: ColumnNames,
    time_format: TimeFormat = ANY_TIME,
) -> EventColumns:
    """The columns of a table that hold the parts of an event, as the settings or the
    format call them.
    """
    settings = log.settings

    def named(name: str, part: str | None = None) -> str:
        """The column that the user names, or counts from 1."""
        if found := first_match((name,), table.names):
            return found
        if name.isdecimal() and 1 <= int(name) <= len(table.names):
            return table.names[int(name) - 1]
        raise _missing(log, table, name, part)

    def value(part: str) -> str | None:
        """SQL of a part of an event."""
        candidates: Sequence[str] = getattr(names, part)
        if part in settings.columns:
            return table.trimmed(named(settings.columns[part], part))
        if found := first_match(candidates, table.names):
            return table.trimmed(found)
        if part in names.required:
            raise _missing(log, table, candidates[0], part)
        return None

    def features(
        asked: tuple[str, ...] | None, usual: tuple[str, ...]
    ) -> tuple[FeatureColumn, ...]:
        """The columns that the user asks for, or else the usual ones that are there."""
        if asked is None:
            asked = tuple(name for name in usual if first_match((name,), table.names))
        columns = {name: named(name.removesuffix(":float")) for name in asked}
        return tuple(
            FeatureColumn(
                name.removesuffix(":float"), number_sql(table.trimmed(column)), "number"
            )
            if name.endswith(":float")
            else FeatureColumn(name, table.untrimmed(column))
            for name, column in columns.items()
        )

    found = {part: value(part) for part in FIELDS}
    return EventColumns(
        table,
        str(found["user_id"]),
        str(found["item_id"]),
        found["timestamp"],
        time_format,
        None if found["rating"] is None else f"TRY_CAST({found['rating']} AS DOUBLE)",
        found["event_type"],
        item_features=features(settings.item_features, names.item_features),
        user_features=features(settings.user_features, names.user_features),
    )


def first_match(candidates: Iterable[str], names: Sequence[str]) -> str | None:
    """The first candidate that is a column, spelled as the column is: upper and lower
    case count only if both exist.
    """
    for candidate in candidates:
        if candidate in names:
            return candidate
        if found := next(
            (name for name in names if name.lower() == candidate.lower()), None
        ):
            return found
    return None


def number_sql(text: str) -> str:
    """SQL of a finite number; null for a text that is not one."""
    value = f"TRY_CAST({text} AS DOUBLE)"
    return f"CASE WHEN isfinite({value}) THEN {value} END"


def _missing(
    log: LogFiles, table: LogTable, name: str, part: str | None
) -> SourceError:
    near = difflib.get_close_matches(
        name.lower(), [other.lower() for other in table.names], 1, 0.6
    )
    hint = f"did you mean {first_match(near, table.names)}? " if near else ""
    what, example = (f" for {part}", f", e.g. {part}=COLUMN") if part else ("", "")
    columns = ", ".join(table.names)
    return SourceError(
        f"{log.where}: there is no column {name!r}{what}; {hint}the columns are {columns}: name one of them{example}"
    )
