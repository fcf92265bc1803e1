"""One run of a comparison: what is run, on what, with which settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec

from streamer.errors import SettingsError
from streamer.model.losses import METHODS
from streamer.replay.evaluation.offline import OfflineSettings
from streamer.replay.evaluation.prequential import PrequentialSettings

ALIASES = {"lambda": "cache_weight", "cache": "cache_size", "batch": "batch_size"}
"""What the paper's readers call some settings."""
ELSEWHERE = {
    "method": "--methods",
    "seed": "--seeds",
    "threads": "--threads",
    "min_rating": "--min-rating",
    "event_type": "--event-type",
    "max_events": "--limit",
    "limit": "--limit",
    "field": "--column",
}
"""Options that choose runs, or what of the log is used, by the names that they have in `streamer run`."""
FEATURES = {
    "item_feature": "item",
    "item_number": "item",
    "user_feature": "user",
    "user_number": "user",
}
"""Settings that name features of the log, several by their commas; and whose features."""
CHOSEN = ("method", "seed")
"""What a spec says beside its settings."""

Values = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spec:
    """What determines the figures of a run.

    Args:
        data: name of the log.
        protocol: `offline` or `prequential`.
        method: one of `streamer.model.losses.METHODS`.
        seed: of everything random.
        settings: what differs from the protocol's defaults, by name.
        log: what of the log is used, if not all of it.
        content: what the log holds, as a name; logs that are called alike differ in it.
    """

    data: str
    protocol: str
    method: str
    seed: int
    settings: Values = field(default_factory=dict)
    log: Values = field(default_factory=dict)
    content: str = ""

    @property
    def key(self) -> str:
        """A name that changes with everything that changes the figures of a log."""
        told = msgspec.json.encode([dict(sorted(self.settings.items())), dict(sorted(self.log.items()))])
        return f"{self.data}-{self.protocol}-{self.method}-{self.seed}-{hashlib.sha256(told).hexdigest()[:10]}"


def offline_settings(spec: Spec) -> OfflineSettings:
    """The paper's protocol, with what the spec changes.

    Raises:
        SettingsError: there is no such setting, or a value does not fit.
    """
    return _converted(OfflineSettings, {"method": spec.method, "seed": spec.seed}, spec.settings)


def prequential_settings(spec: Spec) -> PrequentialSettings:
    """The defaults of `streamer run`, with what the spec changes.

    Raises:
        SettingsError: there is no such setting, it would change nothing, or a value does not fit.
    """
    own = [name for name in PrequentialSettings.__dataclass_fields__ if name != "learner"]
    _check_known(spec.settings, [*own, *learner_names()])
    ours = {name: value for name, value in spec.settings.items() if name in own}
    theirs = {name: value for name, value in spec.settings.items() if name not in own}
    learner = learner_settings(theirs | {"method": spec.method, "seed": spec.seed})
    return _converted(PrequentialSettings, {"learner": learner}, ours)


def learner_settings(changes: Values) -> Any:
    """The defaults of `streamer run` with some options changed, by their names without dashes.

    Raises:
        SettingsError: `run` has no such option, or a value does not fit.
    """
    from streamer import build as wiring
    from streamer.cli.options import defaults_of
    from streamer.cli.run import run

    listed = {name: named(value) if name in FEATURES else value for name, value in changes.items()}
    return wiring.learner_settings(defaults_of(run, listed))


@cache
def learner_names() -> tuple[str, ...]:
    """The options of `streamer run` that its learner reads, by their names without dashes."""
    from streamer import build as wiring
    from streamer.cli.options import defaults_of
    from streamer.cli.run import run

    options = _Noted(defaults_of(run, {}))
    wiring.learner_settings(options)
    return tuple(name for name, parameter in _run_options().items() if parameter in options.read)


class _Noted(dict[str, Any]):
    """Options that remember which of them were read."""

    def __init__(self, options: Values) -> None:
        super().__init__(options)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)


def _run_options() -> dict[str, str]:
    """All options of `streamer run` by their names without dashes, and what its function calls them."""
    from streamer.cli.run import run

    return {p.opts[0].removeprefix("--").replace("-", "_"): str(p.name) for p in run.params}


def methods_of(protocol: str) -> tuple[str, ...]:
    """The methods that a protocol can run."""
    if protocol == "offline":
        return tuple(METHODS)
    from streamer.cli.run import run

    choice: Any = next(p.type for p in run.params if p.name == "method")
    return tuple(choice.choices)


def features_of(spec: Spec) -> set[tuple[str, str]]:
    """The features of the log that a run learns from: whose (`item` or `user`), and what they are called."""
    return {(FEATURES[s], name) for s, value in spec.settings.items() if s in FEATURES for name in named(value)}


def named(value: Any) -> list[str]:
    """Several names, as a list or with commas between."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)


def _converted(kind: type[T], fixed: Values, changes: Values) -> T:
    _check_known(changes, kind.__dataclass_fields__)  # type: ignore[attr-defined]
    return kind(**fixed, **{name: _fitting(kind, name, value) for name, value in changes.items()})


def _check_known(changes: Values, known: Iterable[str]) -> None:
    """See that every setting changes something.

    Raises:
        SettingsError: with all that do not.
    """
    known, of_run = [name for name in known if name not in CHOSEN], _run_options()
    problems = [
        f"{name}, of `streamer run`, changes nothing here" if name in of_run else f"there is no setting {name!r}"
        for name in changes
        if name not in known
    ]
    if problems:
        problems[-1] += f": choose among {', '.join(known)}"
        raise SettingsError(problems)


def _fitting(kind: type, name: str, value: Any) -> Any:
    """A value of the type that a field wants; text becomes a number where one is wanted, or several by its commas."""
    wanted = get_type_hints(kind)[name]
    if get_origin(wanted) is tuple and isinstance(value, str):
        value = value.split(",")
    try:
        return msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError([f"{name} is {value!r}: {error}"]) from error


def parsed(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """NAME=VALUE as given on the command line, by the names of the settings.

    Raises:
        SettingsError: with all that are no such pair, or no setting.
    """
    found: dict[str, str] = {}
    problems = []
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        plain = name.replace("-", "_")
        setting = ALIASES.get(plain, plain)
        if not name or not value:
            problems.append(f"--{option} is {text!r}: write NAME=VALUE")
        elif plain in ELSEWHERE:
            problems.append(f"--{option} {text}: {plain} is no setting, {ELSEWHERE[plain]} chooses it")
        elif setting in FEATURES and setting in found:
            found[setting] += f",{value}"
        else:
            found[setting] = value
    if problems:
        raise SettingsError(problems)
    return found
