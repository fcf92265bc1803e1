"""`streamer recommend`: ask what was learned for items."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from streamer.cli.loading import checkpoint_options, load
from streamer.cli.options import GroupedCommand, json_option, option
from streamer.cli.output import format_age, printable, table
from streamer.errors import CheckpointError
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from streamer.recommender import Recommendation, RecommendQuery

_QUERY = "Query"


@click.command(cls=GroupedCommand)
@option(
    _QUERY,
    "--user",
    "users",
    multiple=True,
    metavar="ID",
    help="User to recommend for; repeat it for several.",
)
@option(
    _QUERY,
    "--recent",
    multiple=True,
    metavar="ITEM",
    help="Instead of a user: item of a session, in the order of its events; repeat it for several.",
)
@option(
    _QUERY, "--count", "-k", type=click.IntRange(1), default=10, help="Number of items."
)
@option(
    _QUERY,
    "--exclude-seen",
    is_flag=True,
    help="Leave out the items that the user had, or those of the session.",
)
@option(
    _QUERY,
    "--filter",
    "filters",
    multiple=True,
    metavar="TERM",
    help="Only items that match, e.g. category:tea or price<20; repeat it for several.",
)
@option(
    _QUERY,
    "--max-per",
    metavar="ATTRIBUTE:N",
    help="At most N items of each value of an attribute.",
)
@json_option
@checkpoint_options
def recommend(
    settings: RunSettings,
    users: tuple[str, ...],
    recent: tuple[str, ...],
    count: int,
    exclude_seen: bool,
    filters: tuple[str, ...],
    max_per: str | None,
    as_json: bool,
) -> None:
    """Recommend items from the newest checkpoint.

    For users by their id, or for a session of recent items without a user. It may be
    used while `streamer run` is running.
    """
    if bool(users) == bool(recent):
        raise click.UsageError("give either --user or --recent")
    from streamer.recommender import Recommender

    checkpoint, learner = load(settings.checkpoints)
    saved_at = checkpoint.meta["saved_at"]
    if not len(learner.state.items):
        raise CheckpointError(
            f"{checkpoint.path} has no items: nothing was trained when it was written"
        )
    recommender = Recommender(learner)
    queries = [recommender.user(user) for user in users]
    if recent:
        queries = [recommender.session(recent)]
    found = recommender.recommend(
        queries,
        count,
        exclude_seen=exclude_seen,
        filter=list(filters) or None,
        max_per=max_per,
    )
    answers = []
    for query, items in zip(queries, found, strict=True):
        answer = {
            "user": query.user,
            "known": query.known,
            "note": query.note or None,
            "items": [item._asdict() for item in items],
        }
        answers.append(answer)
        if not as_json:
            click.echo("\n".join(described(query, items)) + "\n")
    if as_json:
        about = {"checkpoint": str(checkpoint.path), "saved_at": saved_at}
        click.echo(json.dumps(about | {"recommendations": answers}))
    else:
        age = format_age(time.time() - saved_at)
        click.echo(f"from {checkpoint.path}, saved {age} ago")


def described(query: RecommendQuery, items: Sequence[Recommendation]) -> Iterator[str]:
    """Recommendations for a person."""
    if query.user is None:
        yield f"session of {len(query.recent)} items"
    else:
        yield f"user {printable(query.user)}, {len(query.recent)} recent items"
    if query.note:
        yield f"  note: {query.note}"
    if not items:
        yield "  nothing is left to recommend"
        return
    rows = []
    for place, item in enumerate(items, start=1):
        mark = "recent" if item.recent else ""
        rows.append((str(place), printable(item.item), f"{item.score:.3f}", mark))
    yield from table(rows, ("", "item", "score", ""))
