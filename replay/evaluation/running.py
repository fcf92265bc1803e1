"""Runs specs one after another, on the same events in the same order, and keeps what each found."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Sequence
from importlib import metadata

import msgspec

from streamer.errors import SourceError
from streamer.replay.datasets import Interactions, Log
from streamer.replay.evaluation.offline import OfflineRun, OfflineSettings
from streamer.replay.evaluation.plan import spec_settings
from streamer.replay.evaluation.prequential import PrequentialRun
from streamer.replay.evaluation.record import Record, Records, Spec, by_rank, refused

OnProgress = Callable[[Spec, float, str], None]
"""Called with a run, the share of it that is done, and a text: 0 as it begins, 1 when it has ended, once each."""


def run_all(specs: Sequence[Spec], log: Log, records: Records, on_progress: OnProgress) -> list[Record]:
    """Run what was not run before; returns what all of them found."""
    found, interactions = [], functools.cache(log.interactions)  # offline runs share the arrays
    for spec in specs:
        record, ended = records.get(spec), "kept from before"
        if record is None:
            on_progress(spec, 0.0, "started")
            record = run_one(spec, log, interactions, on_progress)
            records.put(record)
            ended = f"{record.about['seconds']:.0f} s"
        on_progress(spec, 1.0, ended)
        found.append(record)
    return found


def run_one(spec: Spec, log: Log, interactions: Callable[[], Interactions], on_progress: OnProgress) -> Record:
    """One method, one seed, on one log.

    Raises:
        StreamerError: the settings are wrong, or the log cannot be read, or nothing in it can be ranked.
    """

    def advance(share: float, text: str) -> None:
        if share < 1:
            on_progress(spec, share, text)

    settings, started = spec_settings(spec), time.time()
    if isinstance(settings, OfflineSettings):
        result = OfflineRun(interactions(), settings).run(advance)
    else:
        result = PrequentialRun(log.batches(pass_seed=log.seed + spec.seed), len(log), settings).run(advance)
        if not result.about["slices"]["all"]:
            why = refused(result.about["accounting"])
            raise SourceError(f"{log.path}: all of its {len(log):,} events were refused, and none was ranked: {why}")
    about = result.about | {
        "started": started,
        "seconds": time.time() - started,
        "version": metadata.version("streamer"),
        "python": platform.python_version(),
        "has_time": log.has_time,
        **{name: log.describe()[name] for name in ("users", "items", "events")},
    }
    return Record(
        **msgspec.structs.asdict(spec),
        measures=result.measures,
        curve=result.curve,
        composition=result.composition,
        ranks=by_rank(result.popularity, result.occurrence),
        about=about,
    )
