"""`streamer inspect`: what is in a checkpoint, and in what trainers share."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamer.cli.loading import CHECKPOINT, load
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.cli.output import render
from streamer.cli.store import STORE, open_admin, require_model
from streamer.settings import RunSettings, SharingSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamer.learner import Learner
    from streamer.model.popularity import ExactPopularity

Report = dict[str, Any]

RANKED_USERS = 256
"""What decides the ranking is looked at for this many users."""
HEAD_ITEMS = 100
"""The hash estimate is also compared on this many of the most popular items, which it
is made for.
"""


@click.command(cls=GroupedCommand)
@option(
    "Report",
    "--top",
    type=click.IntRange(0),
    default=5,
    help="Number of items to list of each kind.",
)
@option("Report", "--json", "as_json", is_flag=True, help="Print one JSON object.")
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
    click.echo(json.dumps(report) if as_json else render(report))


# checkpoints ----------------------------------------------------------------------------------------------------------


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
    files = store.numbers()
    pinned = store.pinned()
    loaded = load(directory)
    chain = loaded.checkpoint.chain
    learner = loaded.learner
    meta = loaded.meta
    model = learner.state.trainer.model
    rows = np.arange(learner.state.items.size)
    ids = learner.state.items.by_row
    embeddings = sum(t.size * t.dim for t in model.tables.values())
    dense = sum(p.numel() for p in model.parameters())
    counts = learner.state.item_counts.counts(rows)
    occurrence = learner.state.occurrence.values(rows)
    head = np.argsort(-counts, kind="stable")
    lately = learner.state.candidate_features.windows.share_in_long_window(rows)
    popular = _top(ids, counts, top, "events")
    return {
        "checkpoint": str(loaded.path),
        "saved_at": meta["saved_at"],
        "steps": learner.state.trainer.steps,
        "chain": {
            "base": Path(chain[0].name).name,
            "base_bytes": chain[0].size_bytes,
            "deltas": len(chain) - 1,
            "delta_bytes": sum(delta.size_bytes for delta in chain[1:]),
        },
        "checkpoints": [
            _file(path, loaded.path, number in pinned) for number, path in files.items()
        ],
        "settings": meta["settings"],
        "sizes": {
            "users": len(learner.state.users),
            "items": len(learner.state.items),
            "parameters": embeddings + dense,
            "bytes": loaded.checkpoint.size_bytes,
        },
        "positions": _positions(meta["positions"]),
        "accounting": meta["accounting"],
        "popularity": {
            "estimate": "hash"
            if learner.state.popularity is learner.state.hashed
            else "exact",
            "events": learner.state.item_counts.total,
            "hash_error": estimation_error(
                learner.state.hashed, learner.state.item_counts, rows
            ),
            "hash_error_head": estimation_error(
                learner.state.hashed, learner.state.item_counts, head[:HEAD_ITEMS]
            ),
            "top": [
                entry | {"share_lately": float(lately[row])}
                for entry, row in zip(popular, head, strict=False)
            ],
        },
        "ranking": _influence(learner),
        "cache": _cache(ids, learner.state.cache, learner.state.item_counts, top),
        "occurrence": _occurrence(ids, occurrence, top),
    }


def _influence(learner: Learner) -> list[Report]:
    """What decides the ranking, by the number of a user's recent items; of users evenly
    chosen, as of now.
    """
    import numpy as np

    from streamer.model.batch import Batch
    from streamer.model.ranking.ranker import influence_by_name

    if not (learner.settings.rerank and len(learner.state.users)):
        return []
    users = np.unique(
        np.linspace(0, len(learner.state.users) - 1, RANKED_USERS).astype(np.int64)
    )
    candidates = learner.candidates.generate(
        Batch(users, np.full(len(users), -1)), learner.state.recent.of(users)
    )
    found = influence_by_name(learner.state.ranker.influence(candidates))
    return [
        {"recent_items": history}
        | {
            f"{re.sub('[ -]', '_', kind)}_share": share
            for kind, share in shares.items()
        }
        for history, shares in found.items()
    ]


def _file(path: Path, newest: Path, pinned: bool) -> Report:
    """A file from outside; one that is newer than the newest that could be read is
    corrupt.
    """
    from streamer.errors import CheckpointError
    from streamer.snapshot.snapshot import SnapshotFile

    try:
        found = SnapshotFile(path)
        after = found.end.previous
        size_bytes = found.size_bytes
        meta = found.meta
    except CheckpointError:  # damaged, or a trainer has just removed it
        after = None
        size_bytes = path.stat().st_size if path.exists() else 0
        meta = {}
    return {
        "path": str(path),
        "kind": path.suffix.removeprefix("."),
        "after": after.number if after is not None else None,
        "bytes": size_bytes,
        "state": "newest"
        if path == newest
        else "older"
        if path.name < newest.name
        else "corrupt",
        "pinned": pinned,
        "saved_at": meta.get("saved_at"),
        "consumed": meta.get("accounting", {}).get("consumed"),
    }


def _positions(listed: Sequence[Sequence[Any]]) -> list[Report]:
    return [
        {"topic": topic, "partition": number, "offset": offset}
        for topic, number, offset, *_ in listed
    ]


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
        require_model(admin)
        summary, contents = admin.contents()
        memory = admin.memory()
    popularity = ExactPopularity()
    popularity.replace(
        np.arange(len(contents.counts)), contents.counts.astype(np.float64)
    )
    cache = contents.cache if contents.cache is not None else np.empty(0, np.int64)
    return {
        "url": admin.url,
        "model": admin.keys.model,
        "namespace": admin.keys.namespace,
        "generation": summary.generation,
        "generation_ago_s": summary.now_s - summary.seeded_at_s,
        "items": summary.items,
        "events": contents.events,
        "trainers": [
            {
                "trainer": one.trainer,
                "ago_s": summary.now_s - one.at_s,
                "partitions": list(one.partitions),
            }
            for one in summary.trainers
        ],
        "partitions": [
            {
                "partition": name,
                "next": summary.next.get(name),
                "epoch": (epoch := summary.epochs.get(name)),
                "claimed_ago_s": None
                if epoch is None
                else max(summary.now_s - epoch / 1000, 0.0),
                "owner": summary.owners.get(name),
            }
            for name in sorted(
                summary.next.keys() | summary.epochs.keys() | summary.owners.keys()
            )
        ],
        "popularity": {"top": _top(contents.ids, contents.counts, top, "events")},
        "occurrence": _occurrence(contents.ids, contents.drawn, top),
        "cache": _cache(contents.ids, cache, popularity, top, contents.note),
        "log": {"length": summary.log_length, "number": summary.number},
        "snapshot": {
            "number": summary.snapshot_number,
            "ago_s": max(summary.now_s - summary.snapshot_at_s, 0.0),
        },
        "memory_bytes": {"total": sum(size or 0 for size in memory.values()), **memory},
    }


# both -----------------------------------------------------------------------------------------------------------------


def _cache(
    ids: Sequence[str],
    cache: NDArray[Any],
    popularity: ExactPopularity,
    top: int,
    note: str = "",
) -> Report:
    import numpy as np

    from streamer.metrics.composition import composition

    slots = np.bincount(cache, minlength=len(ids))
    return {
        "slots": len(cache),
        "distinct": int((slots > 0).sum()),
        "note": note or ("" if len(cache) else "empty: only the method xir fills it"),
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

    largest = [
        row
        for row in np.argsort(-amounts, kind="stable")[:top].tolist()
        if amounts[row] > 0
    ]
    total = amounts.sum().item()
    return [
        {
            "item": ids[row],
            name: amounts[row].item(),
            "share": amounts[row].item() / total,
        }
        for row in largest
    ]
