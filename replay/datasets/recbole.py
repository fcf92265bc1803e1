"""RecBole's atomic files: tab-separated, with a header of names and types.

    user_id:token   item_id:token   rating:float    timestamp:float          x.inter
    item_id:token   price:float     class:token_seq                          x.item, beside it
    user_id:token   age:token                                                x.user

Tokens of the `.inter` that are no part of an event are features of the item; all
columns of `.item` and `.user` are features, but for names and titles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamer.event import Features
from streamer.replay.datasets.base import EventColumns, find_columns, first_match
from streamer.replay.datasets.delimited import DelimitedFormat, DelimitedTable
from streamer.replay.datasets.features import file_beside, read_feature_file, titles_in
from streamer.replay.datasets.files import LogFiles, bare_name
from streamer.replay.datasets.first_lines import FirstLines
from streamer.replay.settings import FIELDS, LogSettings

Asked = tuple[str, ...] | None
"""The features that the settings name; None: the usual ones."""
_WITH_HEADER = LogSettings(header=True)
_TYPES = ("token", "float", "token_seq", "float_seq")


class RecBole(DelimitedFormat):
    """RecBole's .inter, with features from .item and .user beside it."""

    name = "recbole"
    file_names = (("*.inter",),)
    delimiter = "\t"

    def columns(self, log: LogFiles) -> EventColumns:
        names = self.names
        settings = log.settings
        table, types = self._typed_table(log.with_settings(header=True))
        parts = {
            *(getattr(names, part)[0] for part in FIELDS),
            *names.timestamp,
            *names.rating,
        }
        parts |= {name.lower() for name in settings.columns.values()}
        tokens = tuple(
            name
            for name, kind in types.items()
            if kind == "token" and name.lower() not in parts
        )
        own_of_item, of_item = _divided(settings.item_features, table)
        own_of_user, of_user = _divided(settings.user_features, table)
        own = log.with_settings(item_features=own_of_item, user_features=own_of_user)
        return replace(
            find_columns(own, table, replace(names, item_features=tokens)),
            features_by_item=self._features(log, ".item", names.item_id, of_item),
            features_by_user=self._features(log, ".user", names.user_id, of_user),
            titles_by_item=lambda: titles_in(
                self._features(log, ".item", names.item_id, None, only_title=True)
            ),
        )

    def recognises(self, start: FirstLines) -> bool:
        cells = start.cells("\t")
        return len(cells) > 1 and all(
            cell.rpartition(":")[2] in _TYPES for cell in cells
        )

    def _typed_table(self, log: LogFiles) -> tuple[DelimitedTable, dict[str, str]]:
        """The table of a file whose columns are called `name:type`, by their names
        alone, and the type of each.
        """
        table = self.table(log)
        types = {
            name.rpartition(":")[0] or name: name.rpartition(":")[2]
            for name in table.names
        }
        return replace(table, names=tuple(types)), types

    def _features(
        self,
        log: LogFiles,
        suffix: str,
        id_names: Sequence[str],
        asked: Asked,
        *,
        only_title: bool = False,
    ) -> dict[str, Features]:
        """Features by id, from the file with another suffix beside the log; the title
        alone, if it has one.
        """
        expected = bare_name(log.files[0].name).removesuffix(".inter") + suffix
        if (beside := file_beside(log, [expected], asked)) is None:
            return {}
        _, file = beside
        first_lines = file.first_lines(log.database)
        table, types = self._typed_table(
            replace(log, files=(file,), first_lines=first_lines, settings=_WITH_HEADER)
        )
        numbers = [column for column, kind in types.items() if kind == "float"]
        if only_title:
            asked = tuple(
                name for name in types if name.lower().endswith(("title", "name"))
            )[:1]
        return read_feature_file(log.database, file, table, id_names, asked, numbers)


def _divided(asked: Asked, table: DelimitedTable) -> tuple[Asked, Asked]:
    """The features that are columns of the `.inter`, and the others, which must be
    beside it.
    """
    if asked is None:
        return None, None
    own = tuple(
        name
        for name in asked
        if first_match((name.removesuffix(":float"),), table.names)
    )
    return own, tuple(name for name in asked if name not in own)
