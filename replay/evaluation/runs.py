"""From the settings of a comparison to its runs, one after another on the same events
in the same order.

What is wrong with one is reported before the first run begins; what a run found is
kept.
"""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

import msgspec

from streamer.errors import SettingsError, SourceError
from streamer.model.device import resolve_device
from streamer.model.losses import METHODS
from streamer.model.setting import parse_settings
from streamer.replay.datasets import Interactions, Log
from streamer.replay.evaluation.offline import OfflineRun
from streamer.replay.evaluation.prequential import PrequentialRun
from streamer.replay.evaluation.record import Record, Records, Spec, by_rank, refused
from streamer.replay.evaluation.settings import OfflineSettings, PrequentialSettings
from streamer.replay.settings import EvaluationSettings, LogSettings
from streamer.settings import RunSettings

PAPER_NAMES = {"lambda": "cache_weight", "cache": "cache_size", "batch": "batch_size"}
"""What the paper's readers call some settings."""
OPTIONS = {
    "method": "--methods",
    "seed": "--seeds",
    "threads": "--threads",
    "min_rating": "--min-rating",
    "event_type": "--event-type",
    "max_events": "--limit",
    "limit": "--limit",
    "field": "--column",
}
"""What an option chooses, and not `--set`: which runs there are, and what of the log is
used.
"""
SAME_EVENTS = ("delimiter", "header", "memory_limit", "temp_dir", "threads")
"""Settings of a log that do not choose its events; what the files hold is part of a
run's `content`.
"""

OnProgress = Callable[[Spec, float, str], None]
"""Called with a run, the share of it that is done, and a text: 0 as it begins, 1 when
it has ended, once each.
"""


def parse_changes(texts: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE as given on the command line, by the names of the settings."""
    found: dict[str, str] = {}
    problems = []
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        plain = name.replace("-", "_")
        setting = PAPER_NAMES.get(plain, plain)
        if not name or not value:
            problems.append(f"--{option} is {text!r}: write NAME=VALUE")
        elif plain in OPTIONS:
            problems.append(
                f"--{option} {text}: {plain} is not a setting, {OPTIONS[plain]} chooses it"
            )
        elif (
            setting in found
            and (known := PrequentialSettings.named(setting))
            and known.is_list
        ):
            found[setting] += f",{value}"
        else:
            found[setting] = value
    if problems:
        raise SettingsError(problems)
    return found


def common_changes(settings: EvaluationSettings) -> dict[str, Any]:
    """Settings of every run. Features of the log that are asked for are learned from,
    unless --set names others.
    """
    features: dict[str, Any] = {}
    for side, asked in (
        ("item", settings.item_features or ()),
        ("user", settings.user_features or ()),
    ):
        if asked and settings.protocol == "offline":
            raise SettingsError(
                [
                    f"--{side}-feature: the offline protocol learns from ids alone; leave it out"
                ]
            )
        names = [name for name in asked if not name.endswith(":float")]
        numbers = [
            name.removesuffix(":float") for name in asked if name.endswith(":float")
        ]
        features |= {f"{side}_features": names, f"{side}_numeric_features": numbers}
    return {name: value for name, value in features.items() if value} | parse_changes(
        settings.changes, "set"
    )


def plan_runs(
    settings: EvaluationSettings,
    methods: Sequence[str],
    changes: Sequence[Mapping[str, Any]],
) -> list[Spec]:
    """Every method with every change and every seed, of a log that has no name yet;
    each run once.
    """
    known = f"choose among {', '.join(METHODS)}"
    problems = [
        f"there is no method {method!r}: {known}"
        for method in methods
        if method not in METHODS
    ]
    if problems or not methods:
        raise SettingsError(problems or [f"no method is named: {known}"])
    common = common_changes(settings)
    log = _used(settings)
    specs = [
        Spec("", settings.protocol, method, seed, common | dict(change), log)
        for change in changes
        for seed in range(settings.seeds)
        for method in methods
    ]
    for spec in specs:
        try:
            run_settings = spec_settings(spec)
            problems += run_settings.problems()
            resolve_device(run_settings.device)
        except SettingsError as error:
            problems += error.problems
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    return list({spec.key: spec for spec in specs}.values())


def _used(settings: LogSettings) -> dict[str, Any]:
    """What of a log is used, where it is not all of it."""
    chosen = {
        name: getattr(settings, name)
        for name in LogSettings.all()
        if name not in SAME_EVENTS
    }
    used = {
        name: value
        for name, value in chosen.items()
        if value != LogSettings.all()[name].default
    }
    return {
        n: [f"{ours}={c}" for ours, c in v.items()] if isinstance(v, Mapping) else v
        for n, v in used.items()
    }


def spec_settings(spec: Spec) -> OfflineSettings | PrequentialSettings:
    """The defaults of the protocol (the paper's, or those of `streamer run`) with what
    the spec changes.
    """
    kind: type[OfflineSettings | PrequentialSettings]
    kind = OfflineSettings if spec.protocol == "offline" else PrequentialSettings
    others = [
        name
        for name in spec.settings
        if kind.named(name) is None and RunSettings.named(name) is not None
    ]
    if others:
        raise SettingsError(
            [
                f"{name} is a setting of `streamer run` that has no effect here"
                for name in others
            ]
        )
    try:
        return parse_settings(kind, spec.settings, method=spec.method, seed=spec.seed)
    except ValueError as error:
        raise SettingsError(error.args[0]) from error


def check_features(specs: Sequence[Spec], log: Log) -> None:
    """Check that a log has the features that runs learn from; it is read until all of
    them have been seen.
    """
    # item or user, and the name of the feature
    wanted = set[tuple[str, str]]()
    found = set[tuple[str, str]]()
    for settings in map(spec_settings, specs):
        for side in ("item", "user"):
            names = (
                *getattr(settings, f"{side}_features"),
                *getattr(settings, f"{side}_numeric_features"),
            )
            wanted |= {(side, name) for name in names}
    for events in log.batches() if wanted else ():
        for side, column in (
            ("item", events.item_features),
            ("user", events.user_features),
        ):
            found |= {
                (side, name) for features in column or () for name in features or ()
            }
        if wanted <= found:
            return
    if wanted:
        read = {
            side: ", ".join(sorted(name for s, name in found if s == side)) or "none"
            for side in ("item", "user")
        }
        raise SettingsError(
            [
                f"no event of {log.path} has the {side} feature {name!r}, of those that are read ({read[side]}); "
                f"name a column of the log by --{side}-feature"
                for side, name in sorted(wanted - found)
            ]
        )


def run_all(
    specs: Sequence[Spec], log: Log, records: Records, on_progress: OnProgress
) -> list[Record]:
    """Run what was not run before; returns what all of them found."""
    # offline runs share the arrays
    found = []
    interactions = functools.cache(log.interactions)
    for spec in specs:
        record = records.get(spec)
        ended = "kept from before"
        if record is None:
            on_progress(spec, 0.0, "started")
            record = run_one(spec, log, interactions, on_progress)
            records.put(record)
            ended = f"{record.about['seconds']:.0f} s"
        on_progress(spec, 1.0, ended)
        found.append(record)
    return found


def run_one(
    spec: Spec,
    log: Log,
    interactions: Callable[[], Interactions],
    on_progress: OnProgress,
) -> Record:
    """One method, one seed, on one log."""

    def advance(share: float, text: str) -> None:
        if share < 1:
            on_progress(spec, share, text)

    settings = spec_settings(spec)
    started = time.time()
    if isinstance(settings, OfflineSettings):
        result = OfflineRun(interactions(), settings).run(advance)
    else:
        catalogue = log.catalogue() if settings.catalogue else []
        events = log.batches(pass_seed=log.seed + spec.seed)
        result = PrequentialRun(events, len(log), settings, catalogue).run(advance)
        if not result.about["slices"]["all"]:
            why = refused(result.about["accounting"])
            raise SourceError(
                f"{log.path}: all of its {len(log):,} events were refused, and none was ranked: {why}"
            )
    described = log.describe()
    about = result.about | {
        "started": started,
        "seconds": time.time() - started,
        "version": metadata.version("streamer"),
        "python": platform.python_version(),
        "has_time": log.has_time,
        **{name: described[name] for name in ("users", "items", "events")},
    }
    return Record(
        **msgspec.structs.asdict(spec),
        measures=result.measures,
        curve=result.curve,
        composition=result.composition,
        by_rank=by_rank(result.popularity, result.occurrence),
        about=about,
    )
