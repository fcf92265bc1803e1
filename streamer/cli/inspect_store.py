"""The part of `streamer inspect` that shows what trainers share in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from streamer.cli.loading import age_shown, columns, shown, size_shown
from streamer.cli.store import open_admin, require_model
from streamer.settings import SharingSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamer.cache_store.redis.admin import Contents, ModelSummary

Report = dict[str, Any]


def gathered(settings: SharingSettings, top: int) -> Report:
    """Everything that is shown, as JSON values; `ago_s` is by the server's clock.

    Raises:
        SettingsError: the URL is missing, or a name is wrong.
        SharingError: Redis cannot be used, or has no such model.
    """
    with open_admin(settings) as admin:
        require_model(admin)
        summary, contents = admin.contents()
        memory = admin.memory()
    return {
        "url": admin.url,
        "model": admin.keys.model,
        "namespace": admin.keys.namespace,
        "generation": summary.generation,
        "generation_ago_s": summary.now_s - summary.seeded_at_s,
        "trainers": [
            {"trainer": one.trainer, "ago_s": summary.now_s - one.at_s, "partitions": list(one.partitions)}
            for one in summary.trainers
        ],
        "partitions": _partitions(summary),
        "items": summary.items,
        "events": contents.events,
        "popularity": {"top": _top(contents, contents.counts, top, "events")},
        "occurrence": {"total": int(contents.drawn.sum()), "top": _top(contents, contents.drawn, top, "count")},
        "cache": _cache(contents, top),
        "log": {"length": summary.log_length, "number": summary.number},
        "snapshot": {"number": summary.snapshot_number, "ago_s": max(summary.now_s - summary.snapshot_at_s, 0.0)},
        "memory_bytes": {"total": sum(size or 0 for size in memory.values()), **memory},
    }


def _partitions(summary: ModelSummary) -> list[Report]:
    names = sorted(summary.next.keys() | summary.epochs.keys() | summary.owners.keys())
    return [
        {
            "partition": name,
            "next": summary.next.get(name),
            "epoch": summary.epochs.get(name),
            "claimed_ago_s": max(summary.now_s - summary.epochs[name] / 1000, 0.0) if name in summary.epochs else None,
            "owner": summary.owners.get(name),
        }
        for name in names
    ]


def _cache(contents: Contents, top: int) -> Report:
    import numpy as np

    from streamer.metrics.composition import composition
    from streamer.model.popularity import ExactPopularity

    cache = contents.cache if contents.cache is not None else np.empty(0, np.int64)
    popularity = ExactPopularity()
    popularity.replace(np.arange(len(contents.counts)), contents.counts.astype(np.float64))
    slots = np.bincount(cache, minlength=len(contents.ids))
    return {
        "slots": len(cache),
        "distinct": int((slots > 0).sum()),
        "bands": composition(cache, popularity)._asdict(),
        "top": _top(contents, slots, top, "slots"),
        "note": contents.note,
    }


def _top(contents: Contents, amounts: NDArray[Any], top: int, name: str) -> list[Report]:
    """The items with the largest amounts, and their shares of all."""
    import numpy as np

    total = max(int(amounts.sum()), 1)
    best = [row for row in np.argsort(-amounts, kind="stable")[:top].tolist() if amounts[row] > 0]
    return [{"item": contents.ids[row], name: int(amounts[row]), "share": int(amounts[row]) / total} for row in best]


# for a person ---------------------------------------------------------------------------------------------------------


def _store_lines(report: Report) -> Iterator[str]:
    store = report["store"]
    log, snapshot, memory = store["log"], store["snapshot"], store["memory_bytes"]
    largest = sorted(((size, key) for key, size in memory.items() if key != "total" and size), reverse=True)[:3]
    rows = [
        ("model", f"{shown(store['model'])} in {store['url']}"),
        ("generation", f"{store['generation']}, begun {_ago(store['generation_ago_s'])}"),
        ("items", f"{store['items']:,}"),
        ("events", f"{store['events']:,}"),
        ("log", f"{log['length']:,} entries up to number {log['number']:,}"),
        ("snapshot", f"at number {snapshot['number']:,}, written {_ago(snapshot['ago_s'])}"),
        ("memory", f"{size_shown(memory['total'])}: {', '.join(f'{key} {size_shown(s)}' for s, key in largest)}"),
    ]
    yield from columns(rows, "<<")


def _trainer_lines(report: Report) -> Iterator[str]:
    trainers = report["store"]["trainers"]
    if not trainers:
        yield "  none was seen in the last hour"
        return
    yield from columns(
        [(shown(t["trainer"]), f"seen {_ago(t['ago_s'])}", ", ".join(map(shown, t["partitions"]))) for t in trainers],
        "<<<",
    )


def _partition_lines(report: Report) -> Iterator[str]:
    rows = [
        (
            shown(p["partition"]),
            "-" if p["next"] is None else f"{p['next']:,}",
            "-" if p["claimed_ago_s"] is None else _ago(p["claimed_ago_s"]),
            shown(p["owner"]) if p["owner"] else "-",
        )
        for p in report["store"]["partitions"]
    ]
    yield from columns([("partition", "next offset", "claimed", "owner"), *rows], "<>><") if rows else ["  none yet"]


def _count_lines(report: Report) -> Iterator[str]:
    yield f"  {report['store']['events']:,} events"
    yield from _amounts(report["store"]["popularity"]["top"], "events")


def _occurrence_lines(report: Report) -> Iterator[str]:
    occurrence = report["store"]["occurrence"]
    yield f"  {occurrence['total']:,} draws"
    yield from _amounts(occurrence["top"], "count", "draws")


def _cache_lines(report: Report) -> Iterator[str]:
    cache = report["store"]["cache"]
    if cache["note"]:
        yield f"  {cache['note']}"
        return
    if not cache["slots"]:
        yield "  empty: only the method xir fills it"
        return
    bands = ", ".join(f"{name} {share:.0%}" for name, share in cache["bands"].items())
    yield f"  {cache['slots']:,} slots, {cache['distinct']:,} distinct items: {bands}"
    yield from _amounts(cache["top"], "slots")


def _amounts(entries: Sequence[Report], name: str, heading: str | None = None) -> Iterator[str]:
    rows = [(shown(entry["item"]), f"{entry[name]:,}", f"{entry['share']:.2%}") for entry in entries]
    yield from columns([("item", heading or name, "share"), *rows], "<>>") if rows else []


def _ago(seconds: float) -> str:
    return age_shown(0.0, now_s=seconds)


SECTIONS: dict[str, Callable[[Report], Iterator[str]]] = {
    "shared": _store_lines,
    "trainers": _trainer_lines,
    "partitions": _partition_lines,
    "shared popularity": _count_lines,
    "shared occurrence": _occurrence_lines,
    "shared cache": _cache_lines,
}
"""Headings and what stands under them, in this order."""
