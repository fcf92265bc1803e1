"""What a format of logs is made of: how its files are recognised and read, and which
columns hold the parts of an event.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from streamer.errors import SettingsError, SourceError
from streamer.event import Features
from streamer.event.guess import COLUMN_NAMES, guess_name
from streamer.replay.datasets.database import reading
from streamer.replay.datasets.files import LogFile, LogFiles, bare_name
from streamer.replay.datasets.tables import (
    LogTable,
    decode_features,
    delimited_table,
    first_match,
)
from streamer.replay.settings import FIELDS, LogSettings

NUMBER_TIME = "TRY_CAST(time_text AS DOUBLE)"
ISO_TIME = "epoch(TRY_CAST(time_text AS TIMESTAMPTZ))"
"""ISO 8601, UTC unless it says otherwise."""


class DatasetFormat:
    """A format of delimited text, unless a subclass has another table; the first line
    of its docstring is its help.
    """

    name: ClassVar[str]
    """How users name it."""
    file_names: ClassVar[tuple[tuple[str, ...], ...]]
    """Groups of patterns: in a directory, the files that match the first group with a
    match are the log.
    """
    looks: ClassVar[str] = ""
    """Pattern of the first line: a file that is named so and begins so is of this
    format.
    """
    is_text: ClassVar[bool] = True
    """Whether its files consist of lines."""
    delimiter: ClassVar[str | None] = None
    """Unless the settings name one; None: as the first lines show."""
    order: ClassVar[tuple[str, ...]] = ()
    """The columns of a file without a header; empty: they are called 1, 2, 3."""
    fixed: ClassVar[bool] = False
    """Whether these are the columns also if there is a header."""
    quotes: ClassVar[bool] = False
    """Whether cells may be quoted, with delimiters inside."""
    time: ClassVar[str] = NUMBER_TIME
    """SQL from `time_text` to seconds, or smaller units, since the epoch."""
    features: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Columns that are features of the item or the user, unless the settings name
    others.
    """
    event_types: ClassVar[Mapping[str, str]] = {}
    """Name of an event type -> how the file writes it."""
    above_average: ClassVar[bool] = False
    """Whether only ratings above the user's average become events, unless the settings
    give a threshold.
    """

    @property
    def help(self) -> str:
        """One line about it."""
        text = inspect.cleandoc(type(self).__doc__ or "")
        return text.partition("\n\n")[0].replace("\n", " ")

    def columns(self, log: LogFiles) -> LogColumns:
        """The columns that hold the parts of an event."""
        table = self.table(log)
        required = ["user_id", "item_id"]
        if self.above_average:
            required.append("rating")
        values = find_values(log, table, required)
        if "rating" in values:
            values["rating"] = f"TRY_CAST({values['rating']} AS DOUBLE)"
        beside = {}
        for side in ("item", "user"):
            own, beside[side] = self._features(log, table, side)
            if own is not None:
                values[f"{side}_features"] = own
        return LogColumns(self, table, values, beside["item"], beside["user"])

    def table(self, log: LogFiles) -> LogTable:
        """The table in the files of a log."""
        settings = log.settings
        start = log.first_lines
        delimiter = settings.delimiter or self.delimiter or start.delimiter
        cells = start.cells(delimiter)
        header = settings.header
        if header is None:
            header = self.is_header(cells, settings.columns)
        columns = cells
        if not header or self.fixed:
            numbers = range(len(self.order) + 1, len(cells) + 1)
            columns = [*self.order, *map(str, numbers)]
        if len(cells) < len(columns):
            raise SourceError(
                f"{log.where}: its lines have {len(cells)} columns, e.g. {start.shown}; expected "
                f"{delimiter.join(self.order)!r}: choose another format"
            )
        if len(columns) < 2:
            raise SourceError(
                f"{log.where}: its lines have no two columns with {delimiter!r} between: {start.shown}; "
                "choose another delimiter or format"
            )
        for file in log.files[1:] if header else ():
            other = file.first_lines()
            if other.first and other.cells(delimiter) != cells:
                raise SourceError(
                    f"{log.where}: the files have different columns: {file.name} begins with {other.shown}, "
                    f"{log.files[0].name} with {start.shown}; read them one by one"
                )
        # a number is added to a name that occurs again
        names = [
            name if columns.index(name) == place else f"{name}_{place + 1}"
            for place, name in enumerate(columns)
        ]
        return delimited_table(
            names, delimiter, start, header=header, quotes=self.quotes
        )

    def is_header(self, cells: Sequence[str], asked: Mapping[str, str]) -> bool:
        """Whether the first line is a header: it is, if it names a user and an item as
        the format or the user does.

        If the user counts a column by its number, the other one decides. If nothing
        does, formats without an order of their own must have a header, unless the user
        counts all columns.
        """
        by_name = []
        for part in ("user_id", "item_id"):
            name = asked.get(part, "")
            if not name.isdecimal():
                by_name.append((name,) if name else COLUMN_NAMES[part])
        if by_name and all(first_match(names, cells) for names in by_name):
            return True
        counted = asked and all(name.isdecimal() for name in asked.values())
        return not self.order and not counted

    def usual_features(
        self, log: LogFiles, side: str, table: LogTable, file: LogFile
    ) -> Sequence[str]:
        """Columns of the log, or of a file beside it, that are features if the settings
        do not say which are.
        """
        return table.split(self.features.get(side, ()))[0]

    def files_beside(self, log: LogFiles, side: str) -> Sequence[str]:
        """The names of a file about items, or users: the first that is there counts."""
        return ()

    def table_beside(self, log: LogFiles, name: str, file: LogFile) -> LogTable:
        """The table in such a file."""
        raise NotImplementedError

    def _features(
        self, log: LogFiles, table: LogTable, side: str
    ) -> tuple[str | None, FilesBeside]:
        """SQL of the features that the log has, and those of a file beside it."""
        option = f"{side}_features"
        asked = getattr(log.settings, option)
        if asked is not None:
            own, others = table.split(asked)
            if others and not self.files_beside(log, side):
                raise missing(log.where, table, others[0])
            return table.features(own), self._beside(log, side, others)
        usual = self.usual_features(log, side, table, log.files[0])
        sql = table.features(usual)
        if option in table.objects:
            sql = f"c{table.names.index(option)}"
        return sql, self._beside(log, side, None)

    def _beside(
        self, log: LogFiles, side: str, asked: Sequence[str] | None
    ) -> FilesBeside:
        """Features and titles by id, from a file beside the log; damaged lines are left
        out.
        """
        # 1. the file; upper and lower case count only if both exist
        candidates = self.files_beside(log, side)
        there = {bare_name(name): name for name in log.location.names}
        name = first_match(candidates, list(there))
        if name is None and asked:
            raise SourceError(
                f"{log.where}: there is no column {asked[0]!r}, and no {' or '.join(candidates)} beside it that might "
                "have it; put that file beside the log, or leave the feature out"
            )
        if name is None:
            return FilesBeside()
        file = log.location.open(there[name])
        table = self.table_beside(log, name.lower(), file)
        # 2. its columns
        with reading(file.name):
            if asked is None:
                asked = self.usual_features(log, side, table, file)
            key = first_match(COLUMN_NAMES[f"{side}_id"], table.names)
            for absent in [*table.split(asked)[1], *([] if key else [f"{side}_id"])]:
                raise missing(file.name, table, absent)
            titles = [n for n in table.names if n.lower().endswith(("title", "name"))]
            title = table.cell(titles[0]) if titles else "NULL"
            selected = (
                f"{table.cell(str(key))}, {title}, {table.features(asked) or 'NULL'}"
            )
            rows = log.database.rows(f"SELECT {selected} FROM {table.scan(file)}")
            log.database.drop_rejects()
        # 3. what it says
        found = FilesBeside({}, {})
        for id_, title, text in rows:
            if id_ and title:
                found.titles[id_] = title
            if id_ and (features := decode_features(text)):
                found.features[id_] = features
        return found


@dataclass(frozen=True, slots=True)
class FilesBeside:
    """What files beside a log say about its items, or its users."""

    features: dict[str, Features] = field(default_factory=dict)
    """By id."""
    titles: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogColumns:
    """SQL of each part of an event that a log has; null for a value that is not valid."""

    format: DatasetFormat
    table: LogTable
    values: Mapping[str, str]
    """Names as in `FIELDS`, and item_features and user_features: JSON objects."""
    items: FilesBeside
    users: FilesBeside

    @property
    def has_time(self) -> bool:
        return "timestamp" in self.values

    def check_filters(self, settings: LogSettings) -> None:
        """See that the log has the columns that the filters need."""
        needs = {
            "event-type": (settings.event_types, "event_type"),
            "min-rating": (settings.min_rating is not None, "rating"),
            "since": (settings.since, "timestamp"),
            "until": (settings.until, "timestamp"),
        }
        problems = [
            f"{option} needs a column for {part}, and the log has only {', '.join(self.table.names)}: "
            f"name the column, e.g. {part}=COLUMN, or leave {option} out"
            for option, (asked, part) in needs.items()
            if asked and part not in self.values
        ]
        types = self.format.event_types
        known = {*types, *types.values()}
        problems += [
            f"event-type: there is no type {name!r}, only {', '.join(types)}"
            for name in settings.event_types
            if known and not {name, name.lower()} & known
        ]
        if problems:
            raise SettingsError(problems)


def find_values(
    log: LogFiles, table: LogTable, required: Sequence[str]
) -> dict[str, str]:
    """SQL of the parts of an event, by the names that the settings give their columns,
    or by usual ones.
    """
    found = {}
    for part in FIELDS:
        asked = log.settings.columns.get(part)
        column = first_match(COLUMN_NAMES[part], table.names)
        if asked is not None:
            column = table.find(asked)
        if column is not None:
            found[part] = table.cell(column)
        elif asked is not None or part in required:
            what = f" for {part}"
            raise missing(log.where, table, asked or part, what, _guessed(table.names))
    return found


def _guessed(names: Sequence[str]) -> str:
    """Options that name the columns of a log, as far as its names tell."""
    options = []
    for part in FIELDS:
        column = guess_name(part, names)
        if column is not None or part.endswith("_id"):
            options.append(f"--field {part}={column or 'COLUMN'}")
    return " ".join(options)


def missing(
    where: str, table: LogTable, name: str, what: str = "", example: str = ""
) -> SourceError:
    """The error about a column that is not there."""
    columns = ", ".join(table.names)
    such = f", e.g. {example}" if example else ""
    return SourceError(
        f"{where}: there is no column {name!r}{what}; the columns are {columns}: name one of them{such}"
    )
