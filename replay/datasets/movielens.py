"""MovieLens: ratings of movies, with genres and people from the files beside them.

    196     242     3       881250949                  u.data (100k), tab-separated
    196::242::3::881250949                             ratings.dat (1m, 10m)
    userId,movieId,rating,timestamp                    ratings.csv (20m and later), with a header

movies.dat and u.item are Latin-1. u.item has a column for each genre, 1 if the movie
has it: they become one feature `genres`, `Animation|Comedy`, as in the other files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from streamer.event import TITLE, Features
from streamer.replay.datasets.base import ColumnNames, EventColumns
from streamer.replay.datasets.delimited import DelimitedFormat, DelimitedTable
from streamer.replay.datasets.features import file_beside, read_feature_file, titles_in
from streamer.replay.datasets.files import LogFiles

_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip


_MOVIES = {
    "movies.csv": DelimitedTable(
        names=("movieId", "title", "genres"), delimiter=",", header=True, quotes=True
    ),
    "movies.dat": DelimitedTable(names=("movieId", "title", "genres"), delimiter="::"),
    "u.item": DelimitedTable(
        names=("movieId", "title", "released", "video_released", "url", *_GENRES),
        delimiter="|",
        encoding="latin-1",
    ),
}
_PEOPLE = {
    "users.dat": DelimitedTable(
        names=("userId", "gender", "age", "occupation", "zip"), delimiter="::"
    ),
    "u.user": DelimitedTable(
        names=("userId", "age", "gender", "occupation", "zip"), delimiter="|"
    ),
}


class MovieLens(DelimitedFormat):
    """MovieLens: u.data, ratings.dat or ratings.csv; genres and people from the files
    beside it.
    """

    name = "movielens"
    file_names = (("ratings.csv",), ("ratings.dat",), ("u.data",))
    order = ("userId", "movieId", "rating", "timestamp")
    names = ColumnNames(("userId",), ("movieId",), ("timestamp",), ("rating",))
    headers = (("userId", "movieId"),)
    cells: ClassVar = {2: r"(10|\d)(\.\d+)?", 3: r"\d+(\.\d+)?"}

    def columns(self, log: LogFiles) -> EventColumns:
        own = log.with_settings(item_features=(), user_features=())
        return replace(
            super().columns(own),
            features_by_item=_features(
                log, _MOVIES, log.settings.item_features, ("genres",)
            ),
            features_by_user=_features(
                log,
                _PEOPLE,
                log.settings.user_features,
                ("gender", "age", "occupation"),
            ),
            titles_by_item=lambda: titles_in(_features(log, _MOVIES, None, (TITLE,))),
        )


def _features(
    log: LogFiles,
    tables: Mapping[str, DelimitedTable],
    asked: tuple[str, ...] | None,
    usual: tuple[str, ...],
) -> dict[str, Features]:
    """Features by id, from the first of some files that is there."""
    if (beside := file_beside(log, tuple(tables), asked)) is None:
        return {}
    name, file = beside
    table = tables[name]
    if table.encoding == "utf-8":  # movies.dat is not
        table = replace(table, encoding=file.first_lines(log.database).encoding)
    wanted = usual if asked is None else asked
    if "genres" not in wanted or _GENRES[0] not in table.names:
        return read_feature_file(log.database, file, table, table.names[:1], wanted)
    wanted = (*(name for name in wanted if name != "genres"), *_GENRES)
    found = read_feature_file(log.database, file, table, table.names[:1], wanted)
    # one feature for all genres instead of a flag for each
    for id_, features in found.items():
        genres = "|".join(name for name in _GENRES if features.get(name) == "1")
        others = {
            name: value for name, value in features.items() if name not in _GENRES
        }
        found[id_] = others | {"genres": genres} if genres else others
    return {id_: features for id_, features in found.items() if features}
