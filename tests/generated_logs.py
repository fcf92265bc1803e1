"""Whole logs with known answers, in the formats and with the traps of real ones, written by a seed.

`LOGS` names them; `write_log` writes one.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

EVENTS, USERS, ITEMS = 6_000, 200, 400
FIRST_DAY_S = 1_399_766_400.0
"""11 May 2014, the first day of logs by day."""
LAST_DAY = 184
"""11 November: two thirds of the events of logs by day."""


class Row(NamedTuple):
    """One event of a log."""

    user: str
    item: str
    time_s: float | None = None
    rating: int | None = None
    action: int | None = None


@dataclass(frozen=True)
class GeneratedLog:
    """A log, and what is in it.

    Args:
        kind: its format.
        path: of its main file.
        rows: its events, in the order of the file.
    """

    kind: str
    path: Path
    rows: list[Row]

    @property
    def users(self) -> set[str]:
        return {row.user for row in self.rows}

    @property
    def items(self) -> set[str]:
        return {row.item for row in self.rows}


def write_log(name: str, directory: Path) -> GeneratedLog:
    """Write one of `LOGS`."""
    return LOGS[name](directory)


def feature_of(item: str, kinds: int) -> str:
    """The category of an item, one of so many."""
    return str(int(item) * 7 % kinds)


def check_ins(directory: Path) -> GeneratedLog:
    """Seconds, in order, some of them equal; half of the time people return to where they were last."""
    rng, last, rows, now_s = np.random.default_rng(1), {}, [], 1_237_098_406.0
    for row in _events(rng):
        now_s += int(rng.integers(0, 40))
        item = last[row.user] if row.user in last and rng.random() < 0.5 else row.item
        last[row.user] = item
        rows.append(Row(row.user, item, now_s))
    lines = (f"{row.user}\t{row.item}\t{row.time_s:.0f}" for row in rows)
    return _log(
        "recbole", directory / "check-ins.inter.gz", "user_id:token\titem_id:token\ttimestamp:float", lines, rows
    )


def untimed(directory: Path) -> GeneratedLog:
    """No times and no order: user by user, each item once."""
    rows = sorted({Row(row.user, row.item) for row in _events(np.random.default_rng(2))})
    lines = (f"{row.user}\t{row.item}" for row in rows)
    return _log("recbole", directory / "untimed.inter.gz", "user_id:token\titem_id:token", lines, rows)


def days(directory: Path) -> GeneratedLog:
    """By day; within a day a user's events stand together."""
    rows = _by_day(np.random.default_rng(3))
    lines = (f"{row.user}\t{row.item}\t{row.time_s:.0f}\t{feature_of(row.item, 20)}" for row in rows)
    header = "user_id:token\titem_id:token\ttimestamp:float\tcate_id:token"
    return _log("recbole", directory / "days.inter.gz", header, lines, rows)


def raw_days(directory: Path) -> GeneratedLog:
    """Tmall's own layout: a day is MMDD, actions are numbers, and some brands are not known."""
    rng = np.random.default_rng(4)
    actions = rng.choice(4, EVENTS, p=[0.86, 0.01, 0.12, 0.01])
    rows = [row._replace(action=int(action)) for row, action in zip(_by_day(rng), actions, strict=True)]
    header = "user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type"
    lines = (
        f"{row.user},{row.item},{feature_of(row.item, 20)},{feature_of(row.item, 50)},"
        f"{feature_of(row.item, 30) if int(row.item) % 10 else ''},{_date(row):%m%d},{row.action}"
        for row in rows
    )
    return _log("tmall", directory / "user_log_format1.csv.gz", header, lines, rows)


def ratings(directory: Path) -> GeneratedLog:
    """Ratings from 1 to 5 in no order, and files with features of items and users beside them."""
    rng = np.random.default_rng(5)
    times, stars = rng.integers(874_724_710, 893_286_638, EVENTS), rng.integers(1, 6, EVENTS)
    rows = [
        Row(row.user, row.item, float(time_s), int(rating))
        for row, time_s, rating in zip(_events(rng), times, stars, strict=True)
    ]
    log = _log(
        "recbole",
        directory / "ratings.inter.gz",
        "user_id:token\titem_id:token\trating:float\ttimestamp:float",
        (f"{row.user}\t{row.item}\t{row.rating}\t{row.time_s:.0f}" for row in rows),
        rows,
    )
    _write(
        directory / "ratings.item.gz",
        "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq",
        (f"{i}\tFilm No. {i}\t{1960 + int(i) % 40}\tDrama {'Comedy' if int(i) % 2 else ''}" for i in sorted(log.items)),
    )
    _write(
        directory / "ratings.user.gz",
        "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token",
        (f"{u}\t{18 + int(u) % 50}\t{'FM'[int(u) % 2]}\tother\t{int(u):05}" for u in sorted(log.users)),
    )
    return log


LOGS: dict[str, Callable[[Path], GeneratedLog]] = {
    "check-ins": check_ins,
    "untimed": untimed,
    "days": days,
    "raw-days": raw_days,
    "ratings": ratings,
}
TIMED = [name for name in LOGS if name != "untimed"]


def _events(rng: np.random.Generator) -> list[Row]:
    """Long-tailed; ids are numbers with gaps."""
    users = rng.integers(0, USERS, EVENTS)
    items = np.minimum(rng.geometric(8 / ITEMS, EVENTS) - 1, ITEMS - 1)
    return [Row(str(101 + 13 * u), str(1007 + 3 * i)) for u, i in zip(users.tolist(), items.tolist(), strict=True)]


def _by_day(rng: np.random.Generator) -> list[Row]:
    days = np.where(rng.random(EVENTS) < 2 / 3, LAST_DAY, rng.integers(0, LAST_DAY + 1, EVENTS))
    times = FIRST_DAY_S + 86_400.0 * days
    rows = [row._replace(time_s=time_s) for row, time_s in zip(_events(rng), times.tolist(), strict=True)]
    return sorted(rows, key=lambda row: (row.time_s, row.user))


def _date(row: Row) -> datetime:
    assert row.time_s is not None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=row.time_s)


def _log(kind: str, path: Path, header: str, lines: Iterable[str], rows: list[Row]) -> GeneratedLog:
    _write(path, header, lines)
    return GeneratedLog(kind, path, rows)


def _write(path: Path, header: str, lines: Iterable[str]) -> None:
    path.write_bytes(gzip.compress("\n".join([header, *lines, ""]).encode()))
