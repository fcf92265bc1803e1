"""`streamer recommend`: ask what was learned for items."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamer.cli.loading import age_shown, checkpoint_options, columns, load, shown
from streamer.cli.options import GroupedCommand, option
from streamer.errors import CheckpointError
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.learner import Learner
    from streamer.model.batch import Floats, Recent, Rows

_QUERY = "Query"


@click.command(cls=GroupedCommand)
@option(_QUERY, "--user", "users", multiple=True, metavar="ID", help="User to recommend for; repeat it for several.")
@option(
    _QUERY,
    "--recent",
    multiple=True,
    metavar="ITEM",
    help="Instead of a user: item of a session, in the order of its events; repeat it for several.",
)
@option(_QUERY, "--count", "-k", type=click.IntRange(1), default=10, help="How many items.")
@option(
    _QUERY,
    "--leave-out-known",
    is_flag=True,
    help="Leave out items that the user had, as far as the model remembers: the last distinct ones of each user, as "
    "many as --recent-items or --repeat-ranks of `streamer run`, whichever is more (30 by default).",
)
@option(_QUERY, "--json", "as_json", is_flag=True, help="Print one JSON object.")
@checkpoint_options
def recommend(
    settings: RunSettings,
    users: tuple[str, ...],
    recent: tuple[str, ...],
    count: int,
    leave_out_known: bool,
    as_json: bool,
) -> None:
    """Recommend items from the newest checkpoint.

    For users by their id, or for a session of recent items without a user. May be called while `streamer run` goes on.
    """
    if bool(users) == bool(recent):
        raise click.UsageError("give either --user or --recent")
    loaded = load(settings.checkpoints)
    learner = loaded.learner
    if not len(learner.items):
        raise CheckpointError(f"{loaded.path} knows no items: nothing was trained yet when it was written")
    queries = [session(learner, recent)] if recent else [query_of(learner, user) for user in users]
    answers = answered(learner, queries, count, leave_out_known)
    if as_json:
        click.echo(json.dumps(as_object(loaded.path, loaded.meta, queries, answers)))
        return
    for query, items in zip(queries, answers, strict=True):
        click.echo("\n".join(described(query, items)))
        click.echo()
    click.echo(f"from {loaded.path}, saved {age_shown(loaded.meta['saved_at'])}")


@dataclass(frozen=True, slots=True)
class Query:
    """For whom to recommend.

    Args:
        user: raw id, None for a session.
        row: row of the user; for a user who is not known, the row that a new one would get.
        recent: item rows that the model remembers of the user or is given, most recent first.
        known: whether there is anything to go by.
        note: what the person who asks should know about the answer.
    """

    user: str | None
    row: int
    recent: tuple[int, ...] = ()
    known: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """A recommended item; `recent` if it is among the items that the query goes by."""

    id: str
    score: float
    recent: bool


def query_of(learner: Learner, user: str) -> Query:
    """The query for a user, known or not."""
    row = learner.users.row_of(user)
    if row is None:
        return _without_history(learner, user, f"user {shown(user)} is not known")
    recent = learner.recent_of(learner.users.rows([user]))
    return Query(user, row, tuple(r for r in recent[0].tolist() if r >= 0) if recent is not None else ())


def session(learner: Learner, items: Sequence[str]) -> Query:
    """The query for items of a session, oldest first.

    Raises:
        CheckpointError: the model does not look at recent items.
    """
    if not learner.recent.length:
        raise CheckpointError(
            "this model does not look at recent items: ask with --user, or train with --recent-items above 0"
        )
    rows = {item: learner.items.row_of(item) for item in reversed(items)}  # each once, most recent first
    known = tuple(row for row in rows.values() if row is not None)
    if not known:
        return _without_history(learner, None, "none of these items is known")
    unknown = ", ".join(shown(item) for item, row in rows.items() if row is None)
    note = f"not known, so the answer goes by the others: {unknown}" if unknown else ""
    return Query(None, len(learner.users), known[: learner.recent.length], note=note)


def _without_history(learner: Learner, user: str | None, why: str) -> Query:
    if learner.trainer.model.beta is not None:
        what = "this is what a user without history gets, by the popularity prior"
    else:
        what = "these are the most popular items, by the log of their share (the model has no popularity prior)"
    return Query(user, len(learner.users), known=False, note=f"{why}: {what}")


def answered(learner: Learner, queries: Sequence[Query], count: int, leave_out_known: bool) -> list[list[Item]]:
    """The best items for each query, best first; fewer than `count` if so few are left."""
    import numpy as np

    ranker = learner.ranker()
    excluded = [np.array(query.recent, np.int64) for query in queries] if leave_out_known else None
    rows, scores = ranker.top(
        ranker.items(len(learner.items)),
        np.array([query.row for query in queries]),
        count,
        _recent_matrix(learner, queries),
        excluded,
    )
    found = []
    for query, best, values in zip(queries, rows, scores, strict=True):
        if not query.known and learner.trainer.model.beta is None:
            best, values = _most_popular(learner, count)
        found.append(_items(learner, query, best.tolist(), values.tolist()))
    return found


def _items(learner: Learner, query: Query, rows: Sequence[int], scores: Sequence[float]) -> list[Item]:
    """What was found under its raw ids, without what was left out."""
    ranked = zip(rows, scores, strict=True)
    return [Item(learner.items.id_of(row), score, row in query.recent) for row, score in ranked if isfinite(score)]


def _recent_matrix(learner: Learner, queries: Sequence[Query]) -> Recent | None:
    """[B, L] the recent items of all queries, filled up with -1."""
    import numpy as np

    if not learner.recent.length:
        return None
    matrix = np.full((len(queries), learner.recent.length), -1, np.int32)
    for line, query in zip(matrix, queries, strict=True):
        line[: len(query.recent)] = query.recent
    return matrix


def _most_popular(learner: Learner, count: int) -> tuple[Rows, Floats]:
    """Rows and log shares of the items that are most popular lately."""
    import numpy as np

    log_pop = learner.prior.log_pop(np.arange(len(learner.items)))
    best = np.argsort(-log_pop, kind="stable")[:count]
    return best, log_pop[best]


def described(query: Query, items: Sequence[Item]) -> Iterator[str]:
    """The answer for a person."""
    if query.user is None:
        yield f"session of {len(query.recent)} items"
    else:
        yield f"user {shown(query.user)}" + (f", {len(query.recent)} recent items" if query.recent else "")
    if query.note:
        yield f"  note: {query.note}"
    if not items:
        yield "  nothing is left to recommend"
        return
    rows = [
        (str(place), shown(item.id), f"{item.score:.3f}", "recent" if item.recent else "")
        for place, item in enumerate(items, start=1)
    ]
    yield from columns([("", "item", "score", ""), *rows], "><><")


def as_object(
    path: Path, meta: dict[str, Any], queries: Sequence[Query], answers: Sequence[Sequence[Item]]
) -> dict[str, Any]:
    """The answers for a program."""
    return {
        "checkpoint": str(path),
        "saved_at": meta["saved_at"],
        "recommendations": [
            {
                "user": query.user,
                "known": query.known,
                "note": query.note or None,
                "items": [{"item": item.id, "score": item.score, "recent": item.recent} for item in items],
            }
            for query, items in zip(queries, answers, strict=True)
        ],
    }
