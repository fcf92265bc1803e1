"""MovieLens: `u.data` (100k), `ratings.dat` (1m, 10m), `ratings.csv` (20m and later); genres and people beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamer.errors import SourceError
from streamer.event import Features
from streamer.replay.datasets.base import DatasetFormat, Opened
from streamer.replay.datasets.delimited import delimited, guess_delimiter, has_header, is_number, most_lines
from streamer.replay.datasets.files import LogFile, Peek, bare_name
from streamer.replay.datasets.layout import Known, Layout, layout_of
from streamer.replay.datasets.side import about
from streamer.replay.datasets.tables import DelimitedTable

HIGHEST_RATING = 10
_LAYOUT = ("userId", "movieId", "rating", "timestamp")
_KNOWN = Known(("userId",), ("movieId",), ("timestamp",), ("rating",))


_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Beside:
    """A file that says something of movies or people."""

    name: str
    columns: tuple[str, ...]
    delimiter: str
    features: tuple[str, ...]
    header: bool = False
    encoding: str | None = None
    """None: as its first lines show."""
    flags: tuple[str, ...] = ()
    """Genres that are columns of their own, 1 if the movie has them; instead of the feature `genres`."""


_MOVIES = (
    _Beside("movies.csv", ("movieId", "title", "genres"), ",", ("genres",), header=True),
    _Beside("movies.dat", ("movieId", "title", "genres"), "::", ("genres",)),
    _Beside(
        "u.item",
        ("movieId", "title", "released", "video_released", "url", *_GENRES),
        "|",
        ("genres",),
        encoding="latin-1",
        flags=_GENRES,
    ),
)
_PEOPLE = (
    _Beside("users.dat", ("userId", "gender", "age", "occupation", "zip"), "::", ("gender", "age", "occupation")),
    _Beside("u.user", ("userId", "age", "gender", "occupation", "zip"), "|", ("gender", "age", "occupation")),
)


def _movielens(log: Opened) -> Layout:
    asked = log.options.item_features, log.options.user_features
    log = replace(log, options=replace(log.options, item_features=(), user_features=()))
    table = delimited(log, _KNOWN, guess_delimiter(log.peek), _LAYOUT)
    return replace(
        layout_of(table, _KNOWN, log.options, log.where),
        about_items=_read(log, _MOVIES, asked[0]),
        about_users=_read(log, _PEOPLE, asked[1]),
    )


def _read(log: Opened, candidates: Sequence[_Beside], asked: tuple[str, ...] | None) -> dict[str, Features]:
    """What the first of some files that is there says.

    Raises:
        SourceError: a column is asked for, and there is none of the files, or none of them has it.
    """
    if asked == ():
        return {}
    for beside in candidates:
        name = next((name for name in log.origin.names if bare_name(name).lower() == beside.name), None)
        if name is not None:
            return _said(log, log.origin.open(name), beside, beside.features if asked is None else asked)
    if asked:
        names = " or ".join(beside.name for beside in candidates)
        raise SourceError(f"{log.where}: there is no column {asked[0]!r}, and no {names} beside it that might have it")
    return {}


def _said(log: Opened, file: LogFile, beside: _Beside, asked: tuple[str, ...]) -> dict[str, Features]:
    """What a file says."""
    encoding = beside.encoding or file.peek(log.connection).encoding
    table = DelimitedTable(beside.columns, beside.delimiter, beside.header, beside.header, encoding)
    if not beside.flags or "genres" not in asked:
        return about(log.connection, file, table, beside.columns[:1], asked)
    others = tuple(name for name in asked if name != "genres")
    said = about(log.connection, file, table, beside.columns[:1], (*others, *beside.flags))
    return {id_: joined for id_, features in said.items() if (joined := _with_genres(features, beside.flags))}


def _with_genres(features: Features, flags: Sequence[str]) -> Features:
    """Features with the genres as one, `Animation|Comedy`, instead of a flag for each."""
    genres = "|".join(name for name in flags if features.get(name) == "1")
    others = {name: value for name, value in features.items() if name not in flags}
    return others | {"genres": genres} if genres else others


def _is_movielens(peek: Peek) -> bool:
    return has_header(peek, guess_delimiter(peek), "userId", "movieId")


def _may_be_movielens(peek: Peek) -> bool:
    """Whether the lines have a user, a movie, a rating and a time."""
    return most_lines(peek, guess_delimiter(peek), _is_rating)


def _is_rating(cells: Sequence[str]) -> bool:
    return len(cells) == len(_LAYOUT) and is_number(cells[2], HIGHEST_RATING) and is_number(cells[3])


MOVIELENS = DatasetFormat(
    "movielens",
    "MovieLens: u.data, ratings.dat or ratings.csv; genres and people from the files beside it.",
    _movielens,
    (("ratings.csv",), ("ratings.dat",), ("u.data",)),
    _is_movielens,
    _may_be_movielens,
)
