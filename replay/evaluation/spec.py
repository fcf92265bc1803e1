"""One run of a comparison: what is run, on what, with which settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from streamer.errors import SettingsError
from streamer.model.setting import parse_settings
from streamer.replay.evaluation.offline import OfflineSettings
from streamer.replay.evaluation.prequential import PrequentialSettings
from streamer.settings import RunSettings

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
"""Settings that other options choose: which runs there are, and what of the log is used."""
FEATURES = {"item": ("item_features", "item_numeric_features"), "user": ("user_features", "user_numeric_features")}
"""Settings that name features of the log."""

Values = Mapping[str, Any]
S = TypeVar("S", OfflineSettings, PrequentialSettings)


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
    return _parsed(OfflineSettings, spec)


def prequential_settings(spec: Spec) -> PrequentialSettings:
    """The defaults of `streamer run`, with what the spec changes.

    Raises:
        SettingsError: there is no such setting, it would change nothing, or a value does not fit.
    """
    return _parsed(PrequentialSettings, spec)


def spec_settings(spec: Spec) -> OfflineSettings | PrequentialSettings:
    """The settings of the spec's protocol."""
    return offline_settings(spec) if spec.protocol == "offline" else prequential_settings(spec)


def _parsed(kind: type[S], spec: Spec) -> S:
    others = [name for name in spec.settings if kind.named(name) is None and RunSettings.named(name) is not None]
    if others:
        raise SettingsError([f"{name}, of `streamer run`, changes nothing here" for name in others])
    try:
        return parse_settings(kind, spec.settings, method=spec.method, seed=spec.seed)
    except ValueError as error:
        raise SettingsError(error.args[0]) from error


def features_of(spec: Spec) -> set[tuple[str, str]]:
    """The features of the log that a run learns from: whose (`item` or `user`), and what they are called."""
    settings = spec_settings(spec)
    return {(side, name) for side, fields in FEATURES.items() for field in fields for name in getattr(settings, field)}


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
        elif setting in found and (known := PrequentialSettings.named(setting)) and known.is_list:
            found[setting] += f",{value}"
        else:
            found[setting] = value
    if problems:
        raise SettingsError(problems)
    return found
