"""`streamer inspect`: what is in a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamer.cli.loading import CHECKPOINT, load
from streamer.cli.options import (
    GroupedCommand,
    json_option,
    option,
    settings_options,
)
from streamer.cli.output import render, say
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamer.learner import OnlineLearner
    from streamer.model.popularity import ExactPopularity

Report = dict[str, Any]
Ids = Mapping[int, str] | Sequence[str]
"""The ids of items, by row."""

RANKED_USERS = 256
"""What decides the ranking is looked at for this many users."""


top_option = option(
    "Report",
    "--top",
    type=click.IntRange(0),
    default=5,
    help="Number of items to list of each kind.",
)


@click.command(cls=GroupedCommand)
@top_option
@json_option
@settings_options(RunSettings, only=CHECKPOINT)
def inspect(settings: RunSettings, top: int, as_json: bool) -> None:
    """Show what the newest checkpoint holds: sizes, settings, offsets, accounting,
    popularity, cache. It may be used while `streamer run` is running.
    """
    report = inspect_checkpoints(settings.checkpoints, top)
    say(report, render(report), as_json)


def inspect_checkpoints(directory: Path, top: int) -> Report:
    """The newest checkpoint that can be read, and a list of all.

    Raises:
        CheckpointError: there is none that can be read.
    """
    import numpy as np

    from streamer.snapshot import SnapshotDirectory

    store = SnapshotDirectory(directory)
    # before loading: whatever is newer then was skipped
    files = store.paths()
    checkpoint, learner = load(directory)
    base, *deltas = checkpoint.chain
    state = learner.state
    model = state.trainer.model
    rows = np.arange(state.items.size)
    ids = dict(zip(state.items.used.tolist(), state.items.ids, strict=True))
    embeddings = sum(table.size * table.dim for table in model.tables.values())
    dense = sum(parameter.numel() for parameter in model.parameters())
    counts = state.item_counts.counts(rows)
    return {
        "checkpoint": str(checkpoint.path),
        "saved_at": checkpoint.meta["saved_at"],
        "steps": state.trainer.steps,
        "chain": {
            "base": Path(base.name).name,
            "base_bytes": base.size_bytes,
            "deltas": len(deltas),
            "delta_bytes": sum(delta.size_bytes for delta in deltas),
        },
        "checkpoints": [_file(path, checkpoint.path) for path in files],
        "settings": checkpoint.meta["settings"],
        "sizes": {
            "users": len(state.users),
            "items": len(state.items),
            "parameters": embeddings + dense,
            "bytes": checkpoint.size_bytes,
        },
        "positions": [
            {"topic": topic, "partition": number, "offset": offset}
            for topic, number, offset, *_ in checkpoint.meta["positions"]
        ],
        "accounting": checkpoint.meta["accounting"],
        "popularity": {
            "estimate": "hash" if state.popularity is state.hashed else "exact",
            "events": state.item_counts.total,
            "top": top_items(ids, counts, top, "events"),
        },
        "ranking": _influence(learner),
        "cache": cache_report(ids, state.cache, state.item_counts, top),
        "occurrence": occurrence_report(ids, state.occurrence.values(rows), top),
    }


def _influence(learner: OnlineLearner) -> list[Report]:
    """What decides the ranking, by the number of a user's recent items; of users evenly
    chosen, as of now.
    """
    import numpy as np

    from streamer.model.batch import Batch
    from streamer.model.ranking.ranker import influence_by_name

    state = learner.state
    if not (learner.settings.rerank and len(state.users)):
        return []
    spread = np.linspace(0, len(state.users) - 1, RANKED_USERS)
    users = np.unique(spread.astype(np.int64))
    without_targets = Batch(users, np.full(len(users), -1))
    candidates = learner.candidates.generate(without_targets, state.recent.of(users))
    rows = []
    found = influence_by_name(state.ranker.influence(candidates))
    for history, shares in found.items():
        row: Report = {"recent_items": history}
        for kind, share in shares.items():
            row[f"{re.sub('[ -]', '_', kind)}_share"] = share
        rows.append(row)
    return rows


def _file(path: Path, newest: Path) -> Report:
    """A file from outside; one that is newer than the newest that could be read is
    corrupt.
    """
    from streamer.errors import CheckpointError
    from streamer.snapshot.snapshot import SnapshotFile

    after = None
    size_bytes = 0
    meta: Report = {}
    try:
        found = SnapshotFile(path)
        after = found.end.previous
        size_bytes = found.size_bytes
        meta = found.meta
    except CheckpointError:
        pass  # damaged, or a trainer has just removed it
    state = "newest" if path == newest else "older"
    if path.name > newest.name:
        state = "corrupt"
    return {
        "path": str(path),
        "kind": path.suffix.removeprefix("."),
        "after": after.number if after is not None else None,
        "bytes": size_bytes,
        "state": state,
        "saved_at": meta.get("saved_at"),
        "consumed": meta.get("accounting", {}).get("consumed"),
    }


# of a checkpoint, and of what trainers share ------------------------------------------


def cache_report(
    ids: Ids,
    cache: NDArray[Any],
    popularity: ExactPopularity,
    top: int,
) -> Report:
    """The cache, by rows: its size, how popular its items are, the most frequent."""
    import numpy as np

    from streamer.metrics.composition import Ranking

    slots = np.bincount(cache)
    note = "" if len(cache) else "empty: only the method xir fills it"
    return {
        "slots": len(cache),
        "distinct": int((slots > 0).sum()),
        "note": note,
        "bands": Ranking.of(popularity).slot_shares(cache)._asdict(),
        "top": top_items(ids, slots, top, "slots"),
    }


def occurrence_report(ids: Ids, drawn: NDArray[Any], top: int) -> Report:
    """What was resampled most."""
    total = drawn.sum().item()
    note = "" if total else "nothing was resampled: only the methods bir and xir do"
    return {"total": total, "note": note, "top": top_items(ids, drawn, top, "count")}


def top_items(ids: Ids, amounts: NDArray[Any], top: int, name: str) -> list[Report]:
    """The items with the largest amounts, and their shares of all."""
    import numpy as np

    total = amounts.sum().item()
    found = []
    for row in np.argsort(-amounts, kind="stable")[:top].tolist():
        amount = amounts[row].item()
        if amount > 0:
            found.append({"item": ids[row], name: amount, "share": amount / total})
    return found
