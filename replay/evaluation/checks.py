"""What can be wrong with a comparison, told before its first run takes its time."""

from __future__ import annotations

from collections.abc import Sequence

from streamer.errors import SettingsError
from streamer.model.device import resolve_device
from streamer.model.losses import METHODS
from streamer.replay.datasets import Log
from streamer.replay.evaluation.spec import Spec, features_of, spec_settings


def check_methods(methods: Sequence[str]) -> None:
    """Check that there are such methods.

    Raises:
        SettingsError: with all that there are not.
    """
    known = f"choose among {', '.join(METHODS)}"
    problems = [f"there is no method {method!r}: {known}" for method in methods if method not in METHODS]
    if problems or not methods:
        raise SettingsError(problems or [f"no method is named: {known}"])


def check_settings(specs: Sequence[Spec]) -> None:
    """See that every run can be run here.

    Raises:
        SettingsError: with the problems of all of them.
    """
    problems: list[str] = []
    for spec in specs:
        settings = spec_settings(spec)
        found = [*settings.problems(), *_device_problems(settings.device)]
        problems += [problem for problem in found if problem not in problems]
    if problems:
        raise SettingsError(problems)


def _device_problems(name: str) -> list[str]:
    try:
        resolve_device(name)
    except ValueError as error:
        return [str(error)]
    return []


def check_features(specs: Sequence[Spec], log: Log) -> None:
    """See that a log has the features that runs learn from; it is read until all of them have been seen.

    Raises:
        SettingsError: with all that it has not.
    """
    wanted = {feature for spec in specs for feature in features_of(spec)}
    found: set[tuple[str, str]] = set()
    for events in log.batches() if wanted else ():
        for side, column in (("item", events.item_features), ("user", events.user_features)):
            found |= {(side, name) for features in column or () for name in features or ()}
        if wanted <= found:
            return
    if problems := [_missing(log, *feature, found) for feature in sorted(wanted - found)]:
        raise SettingsError(problems)


def _missing(log: Log, side: str, name: str, found: set[tuple[str, str]]) -> str:
    there = ", ".join(sorted(other for whose, other in found if whose == side)) or "none"
    return (
        f"no event of {log.path} has the {side} feature {name!r}, of those that are read ({there}); "
        f"name a column of the log by --{side}-feature"
    )
