"""What is run, what it found, and the file of all runs: a comparison that was stopped
goes on with those it has.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import SettingsError, StreamerError
from streamer.snapshot.directory import whole_file

BASELINES_DEPEND_ON = ("batch_size", "delay_seconds", "sample")
"""Settings that change a baseline's figures; the batch size only which events count as
popular.
"""


class Measure(msgspec.Struct, frozen=True):
    """A figure, and what it is about."""

    metric: str
    """`recall`, `ndcg`, `hr`, `mrr`; `hr-without-towers`, where the ranker reads zero
    for their inner product; `towers-recall`, of the towers' own lists; `cold-share`, of
    cold items in the lists, which the catalogue describes; or `step-ms`, the
    milliseconds of a training step.
    """
    k: int
    """Length of the list that it looks at; 0 if it looks at none."""
    slice: str
    """Over which events or users: `all`, `new`, ..., `second-half/all`, ..."""
    value: float
    baseline: str | None = None
    """The trivial recommender that it belongs to; None if it is the method's own."""
    error: float | None = None
    """Standard error over what was asked, where that is known."""
    stretches: list[float] = []
    """Its means over equal stretches of what was asked, in their order, if they are
    known: two that were asked the same are compared stretch by stretch.
    """


STRETCHES = 50


def stretches_of(values: NDArray[np.float64]) -> list[float]:
    """The means over equal stretches of values; none of so few that some are empty."""
    if len(values) < STRETCHES:
        return []
    return [float(part.mean()) for part in np.array_split(values, STRETCHES)]


@dataclass(slots=True)
class RunResult:
    """What a run of any protocol found."""

    measures: list[Measure] = field(default_factory=list)
    """Figures of the method, and of the baselines if the protocol has any."""
    about: dict[str, Any] = field(default_factory=dict)
    """What else a reader wants to know."""

    def value(
        self, metric: str, k: int, slice_: str = "all", baseline: str | None = None
    ) -> float | None:
        """One figure; None if there is none."""
        wanted = (metric, k, slice_, baseline)
        for m in self.measures:
            if (m.metric, m.k, m.slice, m.baseline) == wanted:
                return m.value
        return None


def step_measure(step_seconds: Sequence[float]) -> Measure:
    """The median time of the training steps."""
    median_s = statistics.median(step_seconds or [0.0])
    return Measure("step-ms", 0, "all", 1000 * median_s)


class Spec(msgspec.Struct, frozen=True):
    """What determines the figures of a run."""

    data: str
    """Name of the log."""
    protocol: str
    method: str
    seed: int
    settings: dict[str, Any] = {}
    """What differs from the protocol's defaults, by name."""
    log: dict[str, Any] = {}
    """What of the log is used, if not all of it."""
    content: str = ""
    """What the log holds, as a name."""

    @property
    def key(self) -> bytes:
        """Changes with everything that changes the figures."""
        values = [getattr(self, name) for name in Spec.__struct_fields__]
        return msgspec.json.encode(values, order="deterministic")

    def settings_of(self, baseline: str | None) -> dict[str, Any]:
        """The settings that change the figures of a baseline, or of the method itself."""
        names = self.settings if baseline is None else BASELINES_DEPEND_ON
        return {n: value for n, value in self.settings.items() if n in names}


class Run(Spec, frozen=True, kw_only=True):
    """A run, and what it found, see `RunResult`."""

    measures: list[Measure]
    about: dict[str, Any] = {}


class Results:
    """All runs in `results.json` of a directory, which is created if it is not there;
    without a directory nothing is kept.

    Raises:
        SettingsError: the directory cannot be written.
    """

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / "results.json"
        self.runs: list[Run] = []
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self.runs = msgspec.json.decode(self._path.read_bytes(), type=list[Run])
            self._write()
        except (OSError, StreamerError, msgspec.MsgspecError) as error:
            problem = f"figures cannot be kept in {self._path}: {error}"
            raise SettingsError([f"{problem}; choose another --out"]) from error

    def get(self, spec: Spec) -> Run | None:
        """What this run found; None if it was not run."""
        return next((run for run in self.runs if run.key == spec.key), None)

    def add(self, run: Run) -> None:
        """Keep what a run found."""
        self.runs.append(run)
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            with whole_file(self._path) as file:
                file.write(msgspec.json.encode(self.runs))


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings for a person."""
    parts = []
    for name, value in sorted(settings.items()):
        if isinstance(value, (list, tuple)):
            value = "+".join(map(str, value))
        parts.append(f"{name}={value}")
    return ", ".join(parts)
