"""MovieLens: ratings of movies, with genres and people from the files beside them.

    196     242     3       881250949                  u.data (100k), tab-separated
    196::242::3::881250949                             ratings.dat (1m, 10m)
    userId,movieId,rating,timestamp                    ratings.csv (20m and later), with a header

movies.dat and u.item are Latin-1. u.item has a column for each genre, 1 if the movie has it: they become one feature
`genres`, `Animation|Comedy`, as in the other files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamer.event import Features
from streamer.replay.datasets.base import ColumnNames, EventColumns
from streamer.replay.datasets.delimited import DelimitedFormat, DelimitedTable
from streamer.replay.datasets.features import missing_feature, read_feature_file
from streamer.replay.datasets.files import LogFiles, bare_name
from streamer.replay.datasets.first_lines import FirstLines, is_number

HIGHEST_RATING = 10
_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _FeatureFile:
    """A file about movies or people."""

    name: str
    delimiter: str
    columns: tuple[str, ...]
    """The first one holds the id."""
    features: tuple[str, ...]
    """What is read of it unless the options name other columns."""
    header: bool = False
    """Whether it has one; then values are also quoted."""
    encoding: str | None = None
    """None: as its first lines show."""


_MOVIES = (
    _FeatureFile("movies.csv", ",", ("movieId", "title", "genres"), ("genres",), header=True),
    _FeatureFile("movies.dat", "::", ("movieId", "title", "genres"), ("genres",)),
    _FeatureFile(
        "u.item",
        "|",
        ("movieId", "title", "released", "video_released", "url", *_GENRES),
        ("genres",),
        encoding="latin-1",
    ),
)
_PEOPLE = (
    _FeatureFile("users.dat", "::", ("userId", "gender", "age", "occupation", "zip"), ("gender", "age", "occupation")),
    _FeatureFile("u.user", "|", ("userId", "age", "gender", "occupation", "zip"), ("gender", "age", "occupation")),
)


class MovieLens(DelimitedFormat):
    """MovieLens: u.data, ratings.dat or ratings.csv; genres and people from the files beside it."""

    name = "movielens"
    file_names = (("ratings.csv",), ("ratings.dat",), ("u.data",))
    order = ("userId", "movieId", "rating", "timestamp")
    names = ColumnNames(("userId",), ("movieId",), ("timestamp",), ("rating",))

    def columns(self, log: LogFiles) -> EventColumns:
        own = replace(log, options=replace(log.options, item_features=(), user_features=()))
        return replace(
            super().columns(own),
            features_by_item=_features(log, _MOVIES, log.options.item_features),
            features_by_user=_features(log, _PEOPLE, log.options.user_features),
        )

    def recognises(self, first_lines: FirstLines) -> bool:
        return first_lines.name_columns(first_lines.delimiter, "userId", "movieId")

    def may_have(self, first_lines: FirstLines) -> bool:
        return first_lines.are_mostly(first_lines.delimiter, _is_rating)


def _is_rating(cells: Sequence[str]) -> bool:
    return len(cells) == 4 and is_number(cells[2], HIGHEST_RATING) and is_number(cells[3])


def _features(log: LogFiles, candidates: Sequence[_FeatureFile], asked: tuple[str, ...] | None) -> dict[str, Features]:
    """Features by id, from the first of some files that is there.

    Raises:
        SourceError: none of the files is there, or the one that is there does not have a column that is asked for.
    """
    if asked == ():
        return {}
    there = {bare_name(name).lower(): name for name in reversed(log.location.names)}
    known = next((known for known in candidates if known.name in there), None)
    if known is None:
        if asked:
            raise missing_feature(log.where, asked[0], " or ".join(known.name for known in candidates))
        return {}
    wanted = known.features if asked is None else asked
    flags = [name for name in known.columns if name in _GENRES] if "genres" in wanted else []
    columns = (*(name for name in wanted if name != "genres"), *flags) if flags else wanted
    file = log.location.open(there[known.name])
    table = DelimitedTable(
        names=known.columns,
        delimiter=known.delimiter,
        header=known.header,
        quotes=known.header,
        encoding=known.encoding or file.first_lines(log.database).encoding,
    )
    found = read_feature_file(log.database, file, table, known.columns[:1], columns)
    if flags:
        found = {id_: _with_genres(features) for id_, features in found.items()}
    return {id_: features for id_, features in found.items() if features}


def _with_genres(features: Features) -> Features:
    """Features with one for all genres instead of a flag for each."""
    genres = "|".join(name for name in _GENRES if features.get(name) == "1")
    others = {name: value for name, value in features.items() if name not in _GENRES}
    return others | {"genres": genres} if genres else others
