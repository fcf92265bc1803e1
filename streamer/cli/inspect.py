"""`streamer inspect`: what is in a checkpoint, and in what trainers share."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from streamer.cli.store import STORE, open_admin, require_model
from streamer.settings import RunSettings, SharingSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamer.learner import Learner
    from streamer.model.popularity import ExactPopularity

Report = dict[str, Any]

RANKED_USERS = 256
"""What decides the ranking is looked at for this many users."""


@click.command(cls=GroupedCommand)
@option(
    "Report",
    "--top",
    type=click.IntRange(0),
    default=5,
    help="Number of items to list of each kind.",
)
@json_option
@settings_options(RunSettings, only=(*CHECKPOINT, *STORE))
def inspect(settings: RunSettings, top: int, as_json: bool) -> None:
    """Show what the newest checkpoint holds: sizes, settings, offsets, accounting,
    popularity, cache.

    With --redis-url, show what trainers share instead: trainers, partitions, counts,
    occurrence, cache, log, memory; or both, if the directory is given too. It may be
    used while `streamer run` is running.
    """
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    directory_given = any(
        context.get_parameter_source(name) is not default for name in CHECKPOINT
    )
    report: Report = {}
    if directory_given or not settings.redis_url:
        report |= inspect_checkpoints(settings.checkpoints, top)
    if settings.redis_url:
        report["store"] = inspect_store(settings, top)
    say(report, render(report), as_json)


# checkpoints --------------------------------------------------------------------------


def inspect_checkpoints(directory: Path, top: int) -> Report:
    """The newest checkpoint that can be read, and a list of all.

    Raises:
        CheckpointError: there is none that can be read.
    """
    import numpy as np

    from streamer.model.popularity import estimation_error
    from streamer.snapshot import CheckpointStore

    store = CheckpointStore(directory, readonly=True)
    # before loading: whatever is newer then was skipped
    files = store.paths()
    checkpoint, learner = load(directory)
    base, *deltas = checkpoint.chain
    state = learner.state
    model = state.trainer.model
    rows = np.arange(state.items.size)
    ids = state.items.by_row
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
            "hash_error": estimation_error(state.hashed, state.item_counts, rows),
            "top": _top(ids, counts, top, "events"),
        },
        "ranking": _influence(learner),
        "cache": _cache(ids, state.cache, state.item_counts, top),
        "occurrence": _occurrence(ids, state.occurrence.values(rows), top),
    }


def _influence(learner: Learner) -> list[Report]:
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


# what trainers share --------------------------------------------------------------------------------------------------


def inspect_store(settings: SharingSettings, top: int) -> Report:
    """What trainers share of a model; ages are by the server's clock.

    Raises:
        SettingsError: the URL is missing, or a name is wrong.
        SharingError: Redis cannot be used, or has no such model.
    """
    import numpy as np

    from streamer.model.popularity import ExactPopularity

    with open_admin(settings) as admin:
        summary = require_model(admin)
        contents = admin.contents(summary.entries)
        memory = admin.memory()
    popularity = ExactPopularity()
    popularity.replace(
        np.arange(len(contents.counts)), contents.counts.astype(np.float64)
    )
    owners: dict[str, str] = {}
    trainers = []
    for trainer, at_s, owned in summary.trainers:
        owners |= dict.fromkeys(owned, trainer)
        ago_s = summary.now_s - at_s
        trainers.append({"trainer": trainer, "ago_s": ago_s, "entries": list(owned)})
    entries = []
    for name, version in sorted(summary.entries.items()):
        entries.append(
            {"entry": name, "version": list(version), "owner": owners.get(name)}
        )
    return {
        "url": admin.url,
        "model": admin.keys.model,
        "namespace": admin.keys.namespace,
        "items": int((contents.counts > 0).sum()),
        "events": int(contents.counts.sum()),
        "trainers": trainers,
        "entries": entries,
        "popularity": {"top": _top(contents.ids, contents.counts, top, "events")},
        "occurrence": _occurrence(contents.ids, contents.drawn, top),
        "cache": _cache(contents.ids, contents.cache, popularity, top),
        "memory_bytes": {"total": sum(memory.values()), **memory},
    }


# both ---------------------------------------------------------------------------------


def _cache(
    ids: Sequence[str],
    cache: NDArray[Any],
    popularity: ExactPopularity,
    top: int,
) -> Report:
    import numpy as np

    from streamer.metrics.composition import composition

    slots = np.bincount(cache, minlength=len(ids))
    note = "" if len(cache) else "empty: only the method xir fills it"
    return {
        "slots": len(cache),
        "distinct": int((slots > 0).sum()),
        "note": note,
        "bands": composition(cache, popularity)._asdict(),
        "top": _top(ids, slots, top, "slots"),
    }


def _occurrence(ids: Sequence[str], drawn: NDArray[Any], top: int) -> Report:
    total = drawn.sum().item()
    note = "" if total else "nothing was resampled: only the methods bir and xir do"
    return {"total": total, "note": note, "top": _top(ids, drawn, top, "count")}


def _top(
    ids: Sequence[str], amounts: NDArray[Any], top: int, name: str
) -> list[Report]:
    """The items with the largest amounts, and their shares of all."""
    import numpy as np

    total = amounts.sum().item()
    found = []
    for row in np.argsort(-amounts, kind="stable")[:top].tolist():
        amount = amounts[row].item()
        if amount > 0:
            found.append({"item": ids[row], name: amount, "share": amount / total})
    return found
