"""From the settings of a comparison to its runs, one after another on the same events
in the same order.

What is wrong with one is reported before the first run begins; what a run found is
kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from streamer.errors import SettingsError, SourceError
from streamer.model.device import resolve_device
from streamer.model.losses import METHODS
from streamer.model.setting import parse_pairs, parse_settings
from streamer.model.settings import LearnerSettings
from streamer.replay.datasets import Log
from streamer.replay.evaluation.offline import OfflineRun
from streamer.replay.evaluation.prequential import PrequentialRun
from streamer.replay.evaluation.results import (
    Results,
    Run,
    RunResult,
    Spec,
    settings_text,
)
from streamer.replay.evaluation.sessions import SessionRun
from streamer.replay.evaluation.settings import (
    OfflineSettings,
    PrequentialSettings,
    SessionSettings,
)
from streamer.replay.settings import EvaluationSettings, LogSettings

PROTOCOLS: dict[str, type[LearnerSettings]] = {
    "offline": OfflineSettings,
    "prequential": PrequentialSettings,
    "sessions": SessionSettings,
    "periods": SessionSettings,
}
PAPER_NAMES = {"lambda": "cache_weight"}
"""What the paper's readers call some settings."""
OPTIONS = {
    "method": "--methods",
    "seed": "--seeds",
    "item_features": "--item-feature",
    "user_features": "--user-feature",
    "item_numeric_features": "--item-feature NAME:float",
    "user_numeric_features": "--user-feature NAME:float",
}
"""Settings that an option chooses, and not `--set`."""
SAME_EVENTS = ("delimiter", "header", "memory_limit", "threads")
"""Settings of a log that do not choose its events."""

OnProgress = Callable[[Spec, float, str], None]
"""Called with a run, the share of it that is done, and a text, after each tenth."""


def parse_changes(texts: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE as given on the command line, by the names of the settings."""
    try:
        pairs = parse_pairs(texts)
    except ValueError as error:
        raise SettingsError([str(error)]) from error
    found = {}
    for name, value in pairs.items():
        plain = name.replace("-", "_")
        plain = PAPER_NAMES.get(plain, plain)
        known = PrequentialSettings.named(plain) or OfflineSettings.named(plain)
        found[known.name if known else plain] = value
    if chosen := [name for name in found if name in OPTIONS]:
        raise SettingsError(
            [f"--set {name}: {OPTIONS[name]} chooses it" for name in chosen]
        )
    return found


def plan_runs(settings: EvaluationSettings, methods: Sequence[str]) -> list[Spec]:
    """Every method with every seed and every value of a setting that is swept; each run
    once.
    """
    common = _features(settings) | parse_changes(settings.changes)
    if settings.sample is not None:
        common["sample"] = str(settings.sample)
    changes: list[dict[str, str]] = []
    for text in settings.over:
        ((name, values),) = parse_changes([text]).items()
        changes += [{name: value.strip()} for value in values.split(",")]
    used = _used(settings)
    specs = {}
    for change in changes or [{}]:
        for seed in range(settings.seeds):
            for method in methods:
                spec = Spec(
                    settings.log_name,
                    settings.protocol,
                    method,
                    seed,
                    common | change,
                    used,
                )
                specs[spec.key] = spec
    problems = list(dict.fromkeys(_problems(list(specs.values()))))
    if not specs:
        problems.append(f"no method is named: choose among {', '.join(METHODS)}")
    if problems:
        raise SettingsError(problems)
    return list(specs.values())


def _problems(specs: Sequence[Spec]) -> list[str]:
    """What is wrong with any of them."""
    problems: list[str] = []
    for spec in specs:
        try:
            run_settings = spec_settings(spec)
            problems += run_settings.problems()
            resolve_device(run_settings.device)
        except SettingsError as error:
            problems += error.problems
        except ValueError as error:
            problems.append(str(error))
    return problems


def _features(settings: EvaluationSettings) -> dict[str, Any]:
    """Features of the log that are asked for are learned from."""
    found: dict[str, Any] = {}
    for side in ("item", "user"):
        asked = getattr(settings, f"{side}_features") or ()
        if asked and settings.protocol != "prequential":
            problem = f"the {settings.protocol} protocol learns from ids alone"
            raise SettingsError([f"--{side}-feature: {problem}; leave it out"])
        for name in asked:
            kind = "numeric_features" if name.endswith(":float") else "features"
            names = found.setdefault(f"{side}_{kind}", [])
            names.append(name.removesuffix(":float"))
    return found


def _used(settings: LogSettings) -> dict[str, Any]:
    """What of a log is used, where it is not all of it."""
    used = {}
    for name, known in LogSettings.all().items():
        value = getattr(settings, name)
        if name not in SAME_EVENTS and value != known.default:
            used[name] = value
    return used


def spec_settings(spec: Spec) -> LearnerSettings:
    """The defaults of the protocol (the paper's, or those of `streamer run`) with what
    the spec changes.
    """
    kind = PROTOCOLS[spec.protocol]
    try:
        return parse_settings(kind, spec.settings, method=spec.method, seed=spec.seed)
    except ValueError as error:
        raise SettingsError(error.args[0]) from error


def run_all(
    specs: Sequence[Spec],
    logs: Sequence[Log],
    results: Results,
    on_progress: OnProgress,
) -> list[Run]:
    """Run what was not run before; returns what all of them found.

    Args:
        logs: what is learned, and then what is tested, if that is another log; of the
            periods protocol, all periods.
    """
    found = []
    for spec in specs:
        run = results.get(spec)
        if run is None:
            run = run_spec(spec, logs, on_progress)
            results.add(run)
        on_progress(spec, 1.0, f"took {run.about['seconds']:.0f} s")
        found.append(run)
    return found


def run_spec(spec: Spec, logs: Sequence[Log], on_progress: OnProgress) -> Run:
    """One method and seed by one protocol."""
    tenth = -1

    def advance(share: float, text: str) -> None:
        nonlocal tenth
        if share < 1 and int(10 * share) > tenth:
            tenth = int(10 * share)
            on_progress(spec, share, text)

    settings = spec_settings(spec)
    started = time.time()
    if isinstance(settings, OfflineSettings):
        test = logs[1].interactions() if len(logs) > 1 else None
        result = OfflineRun(logs[0].interactions(), settings, test).run(advance)
    elif isinstance(settings, PrequentialSettings):
        result = _prequential(logs[0], settings, advance)
    else:
        assert isinstance(settings, SessionSettings)
        session_run = SessionRun(settings)
        if spec.protocol == "periods":
            result = session_run.run_periods(logs, advance)
        else:
            train, test_log = logs
            result = session_run.run(train, test_log, advance)
    sizes = logs[0].describe()
    about = {name: sizes[name] for name in ("users", "items", "events")}
    return Run(
        **msgspec.structs.asdict(spec),
        measures=result.measures,
        about=about | result.about | {"seconds": time.time() - started},
    )


def _prequential(
    log: Log, settings: PrequentialSettings, advance: Callable[[float, str], None]
) -> RunResult:
    catalogue = log.catalogue() if settings.catalogue else []
    events = log.batches(pass_seed=log.seed + settings.seed)
    result = PrequentialRun(events, len(log), settings, catalogue).run(advance)
    if not result.about["ranked"]:
        refused = settings_text(result.about["refused"])
        raise SourceError(
            f"{log.path}: all of its {len(log):,} events were refused: {refused}"
        )
    return result
