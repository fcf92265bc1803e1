"""One run of a comparison: what is run, on what, with which settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec

from replay.evaluation.offline import OfflineSettings
from replay.evaluation.prequential import PrequentialSettings
from streamer.errors import SettingsError

PROTOCOLS = ("offline", "prequential")

ALIASES = {"lambda": "cache_weight", "draws": "draws", "cache": "cache_size", "batch": "batch_size"}
"""What the paper's readers call some settings."""
RUNS = {"method": "--methods", "seed": "--seeds"}
"""Options that choose runs, by the names that they have as settings."""

Values = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spec:
    """What determines the figures of a run.

    Args:
        data: name of the log.
        protocol: `offline` or `prequential`.
        method: one of `model.losses.METHODS`.
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
        SettingsError: there is no such setting, or a value does not fit.
    """
    own = {name for name in PrequentialSettings.__dataclass_fields__ if name not in ("learner", "events")}
    ours = {name: value for name, value in spec.settings.items() if name in own}
    theirs = {name: value for name, value in spec.settings.items() if name not in own}
    learner = learner_settings(theirs | {"method": spec.method, "seed": spec.seed})
    return _converted(PrequentialSettings, {"learner": learner}, ours)


def learner_settings(changes: Values) -> Any:
    """The defaults of `streamer run` with some options changed, by their names without dashes.

    Raises:
        SettingsError: `run` has no such option, or a value does not fit.
    """
    from streamer import wiring
    from streamer.commands.run import run
    from streamer.options import defaults_of

    return wiring.learner_settings(defaults_of(run, changes))


def _converted(kind: type[T], fixed: Values, changes: Values) -> T:
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise SettingsError([f"there is no setting {name!r}: choose among {', '.join(known)}" for name in unknown])
    return kind(**fixed, **{name: _fitting(kind, name, value) for name, value in changes.items()})


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
        SettingsError: one is no such pair, or no setting.
    """
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise SettingsError([f"--{option} is {text!r}: write NAME=VALUE"])
        plain = name.strip().replace("-", "_")
        if plain in RUNS:
            raise SettingsError([f"--{option} {text}: {plain} is no setting, {RUNS[plain]} chooses it"])
        found[ALIASES.get(plain, plain)] = value.strip()
    return found
