"""`streamer inspect`: what is in a checkpoint, or in what trainers share (`streamer.cli.inspect_store`).

A report is gathered first, as JSON values by section; then it is printed, or described to a person section by section.
A section of another origin needs an entry in the report and one in `SECTIONS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from streamer.cli.loading import (
    CHECKPOINT,
    Loaded,
    age_shown,
    columns,
    load,
    shown,
    size_shown,
    time_shown,
)
from streamer.cli.options import GroupedCommand, option, settings_options
from streamer.cli.store import STORE
from streamer.model.settings import LearnerSettings, TowerShape
from streamer.settings import RunSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamer.learner import Learner

Report = dict[str, Any]
Sections = dict[str, Callable[[Report], Iterator[str]]]

HEAD_ITEMS = 100
"""The hash estimate is also judged on so many of the most popular items, which it is made for."""


@click.command(cls=GroupedCommand)
@option("Report", "--top", type=click.IntRange(0), default=5, help="How many items to list of each kind.")
@option("Report", "--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options(RunSettings, only=(*CHECKPOINT, *STORE))
def inspect(settings: RunSettings, top: int, as_json: bool) -> None:
    """Show what the newest checkpoint holds: sizes, settings, offsets, accounting, popularity, cache.

    With --redis-url, show what trainers share instead: trainers, partitions, counts, occurrence, cache, log, memory; or
    both, if the directory is given too. May be called while `streamer run` goes on.
    """
    report: Report = {}
    sections: Sections = {}
    if not settings.redis_url or _names_a_directory():
        report |= _checkpoint_report(settings.checkpoints, top)
        sections |= SECTIONS
    if settings.redis_url:
        from streamer.cli import inspect_store

        report["store"] = inspect_store.gathered(settings, top)
        sections |= inspect_store.SECTIONS
    if as_json:
        click.echo(json.dumps(report))
        return
    click.echo(
        "\n\n".join("\n".join([click.style(title, bold=True), *lines(report)]) for title, lines in sections.items())
    )


def _names_a_directory() -> bool:
    """Whether the user says where checkpoints are."""
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    return any(context.get_parameter_source(name) is not default for name in CHECKPOINT)


def _checkpoint_report(directory: Path, top: int) -> Report:
    from streamer.checkpoint import CheckpointStore

    paths = CheckpointStore(directory, readonly=True).list()  # before loading: what is newer then was skipped
    return gathered(load(directory), paths, top)


# the report -----------------------------------------------------------------------------------------------------------


def gathered(loaded: Loaded, paths: Sequence[Path], top: int) -> Report:
    """Everything that is shown, as JSON values."""
    learner, meta = loaded.learner, loaded.meta
    return {
        "checkpoint": str(loaded.path),
        "saved_at": meta["saved_at"],
        "checkpoints": [_file(path, loaded) for path in paths],
        "settings": meta["settings"],
        "sizes": _sizes(learner) | {"bytes": _bytes(loaded.path)},
        "steps": learner.trainer.steps,
        "positions": _positions(meta["positions"]),
        "released": _positions(meta["released"]),
        "accounting": meta["accounting"],
        "popularity": _popularity(learner, top),
        "cache": _cache(learner, top),
        "occurrence": _occurrence(learner, top),
    }


def _positions(listed: Sequence[tuple[str, int, int]]) -> list[Report]:
    return [{"topic": topic, "partition": number, "offset": offset} for topic, number, offset in listed]


def _file(path: Path, loaded: Loaded) -> Report:
    """A checkpoint from outside; `state` is that of the newest, of one before it, or of one that was skipped."""
    number = int(path.name.rpartition("-")[2])
    state = "newest" if number == loaded.sequence else "older" if number < loaded.sequence else "corrupt"
    meta = loaded.meta if state == "newest" else _meta(path)
    return {
        "path": str(path),
        "bytes": _bytes(path),
        "state": state,
        "saved_at": meta.get("saved_at"),
        "consumed": meta.get("accounting", {}).get("consumed"),
    }


def _meta(path: Path) -> Report:
    """The description in a checkpoint; empty if it is damaged, or a trainer has just removed it."""
    from streamer.checkpoint.files import META

    try:
        found = json.loads((path / META).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _bytes(path: Path) -> int:
    try:
        return sum(file.stat().st_size for file in path.iterdir())
    except OSError:
        return 0


def _sizes(learner: Learner) -> Report:
    model = learner.trainer.model
    embeddings = sum(table.size * table.dim for table in model.tables.values())
    dense = sum(parameter.numel() for parameter in model.parameters())
    return {"users": len(learner.users), "items": len(learner.items), "parameters": embeddings + dense}


def _popularity(learner: Learner, top: int) -> Report:
    import numpy as np

    from streamer.model.popularity import estimation_error

    rows = np.arange(len(learner.items))
    counts = learner.exact.counts(rows)
    lately = learner.prior.counts(rows) / max(learner.prior.total, 1e-12)
    head = np.argsort(-counts, kind="stable")
    entries = _top(learner, counts, top, "events")
    for entry, row in zip(entries, head, strict=False):
        entry["share_lately"] = float(lately[row])
    return {
        "estimate": "exact" if learner.popularity is learner.exact else "hash",
        "events": learner.exact.total,
        "top": entries,
        "hash_error": estimation_error(learner.hashed, learner.exact, rows),
        "hash_error_head": estimation_error(learner.hashed, learner.exact, head[:HEAD_ITEMS]),
    }


def _cache(learner: Learner, top: int) -> Report:
    import numpy as np

    from streamer.metrics.composition import composition

    slots = np.bincount(learner.cache, minlength=len(learner.items))
    return {
        "slots": len(learner.cache),
        "distinct": int((slots > 0).sum()),
        "bands": composition(learner.cache, learner.exact)._asdict(),
        "top": _top(learner, slots, top, "slots"),
    }


def _occurrence(learner: Learner, top: int) -> Report:
    import numpy as np

    values = learner.occurrence.values(np.arange(len(learner.items)))
    return {"total": learner.occurrence.total(), "top": _top(learner, values, top, "count")}


def _top(learner: Learner, amounts: NDArray[Any], top: int, name: str) -> list[Report]:
    """The items with the largest amounts, and their shares of all."""
    import numpy as np

    total = max(float(amounts.sum()), 1e-12)
    best = [row for row in np.argsort(-amounts, kind="stable")[:top].tolist() if amounts[row] > 0]
    return [
        {"item": learner.items.id_of(row), name: amounts[row].item(), "share": amounts[row].item() / total}
        for row in best
    ]


# for a person ---------------------------------------------------------------------------------------------------------


def _checkpoint_lines(report: Report) -> Iterator[str]:
    yield f"  in {Path(report['checkpoint']).parent}"
    rows = []
    for file in reversed(report["checkpoints"]):
        saved = file["saved_at"]
        when = f"{time_shown(saved)} ({age_shown(saved)})" if saved else "unknown"
        events = f"{file['consumed']:,} events" if file["consumed"] is not None else ""
        mark = "" if file["state"] == "older" else file["state"]
        rows.append((Path(file["path"]).name, size_shown(file["bytes"]), events, when, mark))
    yield from columns(rows, "<>><<")


def _model_lines(report: Report) -> Iterator[str]:
    settings, sizes = report["settings"], report["sizes"]
    model = msgspec.convert(settings, LearnerSettings)
    cache = f", cache of {model.cache_size:,}, weight {model.cache_weight:g}"
    rows = [
        ("users", f"{sizes['users']:,}"),
        ("items", f"{sizes['items']:,}"),
        ("parameters", f"{sizes['parameters']:,}"),
        ("steps", f"{report['steps']:,}"),
        ("method", model.method + (cache if model.method == "xir" else "")),
        ("optimizer", f"{model.optimizer}, learning rate {model.learning_rate:g}, dense {model.dense_learning_rate:g}"),
        ("item tower", _tower(model.item_tower)),
        ("user tower", _tower(model.user_tower, model.recent_items)),
        ("score", f"prior {model.prior}, repeat bias for {model.repeat_ranks} items"),
    ]
    yield from columns(rows, "<<")


def _tower(tower: TowerShape, recent: int = 0) -> str:
    """A tower in one line."""
    inputs = [*(["ids"] if tower.ids else []), *tower.categorical, *tower.numeric]
    inputs += [f"{recent} recent items"] if recent else []
    layers = f", layers {', '.join(map(str, tower.layers))}" if tower.layers else ""
    return f"dim {tower.dim}, from {', '.join(map(shown, inputs))}{layers}"


def _stream_lines(report: Report) -> Iterator[str]:
    accounting = report["accounting"]
    marked = [(position, "") for position in report["positions"]] + [(p, "released") for p in report["released"]]
    rows = [
        (shown(p["topic"]), f"partition {p['partition']}", f"next offset {p['offset']:,}", mark) for p, mark in marked
    ]
    yield from columns(rows, "<<<<") if rows else ["  no positions yet"]
    yield (
        f"  {accounting['consumed']:,} consumed = {accounting['trained']:,} trained + "
        f"{accounting['filtered']:,} filtered + {accounting['dead_lettered']:,} dead-lettered"
    )
    reasons = [(reason, f"{count:,}") for reason, count in sorted(accounting["dead_letters"].items())]
    yield from columns(reasons, "<>", indent="    ") if reasons else []


def _popularity_lines(report: Report) -> Iterator[str]:
    popularity = report["popularity"]
    rows = [
        (shown(entry["item"]), f"{entry['events']:,.0f}", f"{entry['share']:.2%}", f"{entry['share_lately']:.2%}")
        for entry in popularity["top"]
    ]
    yield from columns([("item", "events", "share", "lately"), *rows], "<>>>") if rows else []
    yield f"  sampling is corrected by the {popularity['estimate']} estimate"
    everywhere, at_head = exp(popularity["hash_error"]), exp(popularity["hash_error_head"])
    yield (
        f"  the hash estimate is off by a factor of {everywhere:.2f} on average, "
        f"{at_head:.2f} on the {HEAD_ITEMS} most popular items"
    )


def _cache_lines(report: Report) -> Iterator[str]:
    cache = report["cache"]
    if not cache["slots"]:
        yield "  empty: only the method xir fills it"
        return
    bands = ", ".join(f"{name} {share:.0%}" for name, share in cache["bands"].items())
    yield f"  {cache['slots']:,} slots, {cache['distinct']:,} distinct items: {bands}"
    yield from _amounts(cache["top"], "slots")


def _occurrence_lines(report: Report) -> Iterator[str]:
    occurrence = report["occurrence"]
    if not occurrence["total"]:
        yield "  nothing was resampled: only the methods bir and xir do"
        return
    yield f"  {occurrence['total']:,.0f} draws"
    yield from _amounts(occurrence["top"], "count", "draws")


def _amounts(entries: Sequence[Report], name: str, heading: str | None = None) -> Iterator[str]:
    rows = [(shown(entry["item"]), f"{entry[name]:,.0f}", f"{entry['share']:.2%}") for entry in entries]
    yield from columns([("item", heading or name, "share"), *rows], "<>>") if rows else []


SECTIONS: Sections = {
    "checkpoints": _checkpoint_lines,
    "model": _model_lines,
    "stream": _stream_lines,
    "popularity": _popularity_lines,
    "cache": _cache_lines,
    "occurrence": _occurrence_lines,
}
"""Headings and what stands under them, in this order."""
