"""Runs specs one after another, on the same events in the same order, and keeps what each found."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, Protocol

from streamer.errors import SourceError
from streamer.replay.datasets import Interactions, Log
from streamer.replay.evaluation.offline import OfflineResult, OfflineRun
from streamer.replay.evaluation.prequential import PrequentialResult, PrequentialRun
from streamer.replay.evaluation.record import Record, Records, by_rank, measured
from streamer.replay.evaluation.selection import refused
from streamer.replay.evaluation.spec import Spec, offline_settings, prequential_settings

Progress = Callable[[float, str], None]
"""Told how far a run is, from 0 to 1, and what it has found so far."""


class Watcher(Protocol):
    """Who is told of runs."""

    def begin(self, spec: Spec) -> Progress:
        """A run begins; what is answered is told how far it is."""
        ...

    def end(self, spec: Spec, record: Record, kept: bool) -> None:
        """A run has ended, or was found to be `kept` from before."""
        ...


class Data:
    """A log, and what has been made of it; offline runs share its arrays.

    Args:
        name: what figures call it.
        log: the log.
    """

    def __init__(self, name: str, log: Log) -> None:
        self.name, self.log = name, log
        self._interactions: Interactions | None = None

    @property
    def interactions(self) -> Interactions:
        """All events as arrays."""
        if self._interactions is None:
            self._interactions = self.log.interactions()
        return self._interactions


def run_all(specs: Sequence[Spec], data: Data, records: Records, watcher: Watcher) -> list[Record]:
    """Run what was not run before; answers what all of them found."""
    found = []
    for spec in specs:
        record = records.get(spec)
        kept = record is not None
        if record is None:
            record = run_one(spec, data, watcher.begin(spec))
            records.put(record)
        watcher.end(spec, record, kept)
        found.append(record)
    return found


def run_one(spec: Spec, data: Data, progress: Progress) -> Record:
    """One method, one seed, on one log.

    Raises:
        StreamerError: the settings are wrong, or the log cannot be read, or nothing in it can be ranked.
    """
    started = time.time()
    record = _offline(spec, data, progress) if spec.protocol == "offline" else _prequential(spec, data, progress)
    record.about |= {
        "started": started,
        "seconds": time.time() - started,
        "version": metadata.version("streamer"),
        "python": platform.python_version(),
        "has_time": data.log.has_time,
        **{name: data.log.describe()[name] for name in ("users", "items", "events")},
    }
    return record


def _record(spec: Spec, **found: Any) -> Record:
    return Record(
        data=spec.data,
        protocol=spec.protocol,
        method=spec.method,
        seed=spec.seed,
        settings=dict(spec.settings),
        log=dict(spec.log),
        content=spec.content,
        **found,
    )


def _step_ms(seconds: float) -> dict[str, Any]:
    """The time of a training step, as it is kept."""
    return {"metric": "step-ms", "k": 0, "slice": "all", "value": 1000 * seconds, "floor": None}


def _offline(spec: Spec, data: Data, progress: Progress) -> Record:
    settings = offline_settings(spec)
    run = OfflineRun(data.interactions, settings)
    last = ""

    def told(entry: dict[str, Any]) -> None:
        nonlocal last
        if f"recall@{settings.ks[0]}" in entry:
            last = f", recall@{settings.ks[0]} {entry[f'recall@{settings.ks[0]}']:.4f}"
        progress(entry["epoch"] / settings.epochs, f"epoch {entry['epoch']}, loss {entry['loss']:.3f}{last}")

    result: OfflineResult = run.run(told)
    return _record(
        spec,
        measures=[*measured(result.measures), _step_ms(result.seconds_per_step)],
        curve=result.curve,
        composition=result.cache,
        ranks=by_rank(result.popularity, result.occurrence),
        about={"users_tested": result.users_tested, "epochs": settings.epochs},
    )


def _prequential(spec: Spec, data: Data, progress: Progress) -> Record:
    settings = prequential_settings(spec)
    chunks = data.log.batches(pass_seed=data.log.seed + spec.seed)
    run = PrequentialRun(chunks, len(data.log), settings)

    def told(done: int, total: int) -> None:
        progress(done / max(total, 1), f"{done:,} events")

    result: PrequentialResult = run.run(told)
    if not result.events["all"]:
        why = refused(result.accounting)
        raise SourceError(f"{data.log.path}: all of its {len(data.log):,} events are refused, none is ranked: {why}")
    return _record(
        spec,
        measures=[*measured(result.measures), _step_ms(result.seconds_per_step)],
        curve=result.curve,
        composition=result.composition,
        ranks=by_rank(result.popularity, result.occurrence),
        about={
            "slices": result.events,
            "events_per_second": result.events_per_second,
            "train_events_per_second": result.train_events_per_second,
            "accounting": result.accounting,
        },
    )
