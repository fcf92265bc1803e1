"""Parquet files, with any columns.

Floating-point columns are features that are numbers; all others, whole numbers too, are
categories, as in events. Times may be time stamps, dates, numbers or texts.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamer.replay.datasets.base import (
    COMMON_NAMES,
    DatasetFormat,
    EventColumns,
    LogTable,
    find_columns,
)
from streamer.replay.datasets.database import quoted, reading
from streamer.replay.datasets.files import LogFile, LogFiles


class Parquet(DatasetFormat):
    """A Parquet file; name its columns."""

    name = "parquet"
    file_names = (("*.parquet",),)
    is_text = False

    def columns(self, log: LogFiles) -> EventColumns:
        with reading(log.where):
            sql = f"DESCRIBE SELECT * FROM read_parquet({quoted(log.files[0].path)})"
            types = {row[0]: row[1] for row in log.database.rows(sql)}

        def as_numbers(features: tuple[str, ...] | None) -> tuple[str, ...] | None:
            if features is None:
                return None
            return tuple(
                f"{name}:float" if types.get(name) in ("DOUBLE", "FLOAT") else name
                for name in features
            )

        table = ParquetTable(names=tuple(types), encoding=None)
        typed = log.with_settings(
            item_features=as_numbers(log.settings.item_features),
            user_features=as_numbers(log.settings.user_features),
        )
        return find_columns(typed, table, COMMON_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTable(LogTable):
    """The rows of a Parquet file."""

    def scan(self, file: LogFile) -> str:
        return f"read_parquet({quoted(file.path)})"

    def untrimmed(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"::VARCHAR'
