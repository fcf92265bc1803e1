"""MovieLens: `u.data` (100k), `ratings.dat` (1m, 10m), `ratings.csv` (20m and later); genres and people beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replay.datasets.base import DatasetFormat, Opened
from replay.datasets.delimited import delimited, guess_delimiter, has_header
from replay.datasets.files import Peek, bare_name
from replay.datasets.layout import Known, Layout, layout_of
from replay.datasets.side import about
from replay.datasets.tables import DelimitedTable
from streamer.event import Features

_LAYOUT = ("userId", "movieId", "rating", "timestamp")
_KNOWN = Known(("userId",), ("movieId",), ("timestamp",), ("rating",))


@dataclass(frozen=True, slots=True)
class _Beside:
    """A file that says something of movies or people."""

    name: str
    columns: tuple[str, ...]
    delimiter: str
    features: tuple[str, ...]
    header: bool = False


_MOVIES = (
    _Beside("movies.csv", ("movieId", "title", "genres"), ",", ("genres",), header=True),
    _Beside("movies.dat", ("movieId", "title", "genres"), "::", ("genres",)),
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
    """What the first of some files that is there says."""
    for beside in candidates:
        name = next((name for name in log.origin.names if bare_name(name).lower() == beside.name), None)
        if name is not None and asked != ():
            file = log.origin.open(name)
            encoding = file.peek(log.connection).encoding
            table = DelimitedTable(beside.columns, beside.delimiter, beside.header, beside.header, encoding)
            return about(log.connection, file, table, beside.columns[:1], beside.features if asked is None else asked)
    return {}


def _is_movielens(peek: Peek) -> bool:
    return has_header(peek, ",", "userId", "movieId")


MOVIELENS = DatasetFormat(
    "movielens",
    "MovieLens: u.data, ratings.dat or ratings.csv; genres and people from the files beside it.",
    _movielens,
    (("ratings.csv",), ("ratings.dat",), ("u.data",)),
    _is_movielens,
)
