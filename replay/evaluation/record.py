"""What is run, what it found, and the file of each run: a comparison that was stopped
goes on with those it has.
"""

from __future__ import annotations

import errno
import hashlib
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import SettingsError, StreamerError
from streamer.metrics.composition import curve

RANK_POINTS = 200
DELAYS = ("delay_events", "delay_seconds")
BASELINES_DEPEND_ON = ("batch_size", *DELAYS)
"""Settings that change a baseline's figures; the batch size only which events count as
popular.
"""
CurvePoint = dict[str, Any]
"""A point of a curve: names and values."""


class Measure(msgspec.Struct, frozen=True):
    """A figure, and what it is about."""

    metric: str
    """`recall`, `ndcg`, `authors-ndcg`, `hr`, `mrr`; `hr-without-towers`, where the
    ranker reads zero for their inner product; `towers-recall`, of the towers' own
    lists; `cold-share`, of cold items in the lists, which the
    catalogue describes; `step-ms`, the milliseconds of a training step; or
    `events-per-second`, ranked and learned from."""
    k: int
    """Length of the list that it looks at; 0 if it looks at none."""
    slice: str
    """Over which events or users: `all`, `new`, ..., `second-half/all`, ..."""
    value: float
    baseline: str | None = None
    """The trivial recommender that it belongs to; None if it is the method's own."""


@dataclass(slots=True)
class RunResult:
    """What a run of either protocol found."""

    measures: list[Measure] = field(default_factory=list)
    """Figures of the method, of a training step, and of the baselines if the protocol has
    any.
    """
    curve: list[CurvePoint] = field(default_factory=list)
    """Points of the learning curves."""
    composition: list[CurvePoint] = field(default_factory=list)
    """Points of the cache's composition, if the method has a cache."""
    occurrence: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    """[N] how often each item was resampled, by row; zeros if the method draws nothing."""
    popularity: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    """[N] how often each item was trained."""
    about: dict[str, Any] = field(default_factory=dict)
    """Sizes, seconds, versions: what else a reader wants to know."""

    def value(
        self, metric: str, k: int, slice_: str = "all", baseline: str | None = None
    ) -> float | None:
        """One figure; None if there is none."""
        wanted = (metric, k, slice_, baseline)
        return next(
            (
                m.value
                for m in self.measures
                if (m.metric, m.k, m.slice, m.baseline) == wanted
            ),
            None,
        )


def step_measure(step_seconds: Sequence[float]) -> Measure:
    """The median time of the training steps."""
    return Measure("step-ms", 0, "all", 1000 * statistics.median(step_seconds or [0.0]))


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
    """What the log holds, as a name; logs that are called alike differ in it."""

    @property
    def key(self) -> str:
        """A name that changes with everything that changes the figures of a log."""
        digest = hashlib.sha256(
            msgspec.json.encode(
                [dict(sorted(d.items())) for d in (self.settings, self.log)]
            )
        )
        return f"{self.data}-{self.protocol}-{self.method}-{self.seed}-{digest.hexdigest()[:10]}"


class Record(Spec, frozen=True, kw_only=True):
    """A run, and what it found, see `RunResult`."""

    measures: list[Measure]
    curve: list[CurvePoint] = []
    composition: list[CurvePoint] = []
    by_rank: list[CurvePoint] = msgspec.field(name="ranks", default=[])
    """Shares of `popularity` and `occurrence` of an item by its popularity `rank`,
    thinned out on a log axis.
    """
    about: dict[str, Any] = {}

    def settings_of(self, baseline: str | None) -> dict[str, Any]:
        """The settings that change the figures of a baseline, or of the method itself."""
        return {
            name: value
            for name, value in self.settings.items()
            if baseline is None or name in BASELINES_DEPEND_ON
        }

    @property
    def baselines(self) -> list[str]:
        """The baselines that were measured beside the method."""
        return list(dict.fromkeys(m.baseline for m in self.measures if m.baseline))


def result_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Rows of `results.json`; those of a baseline once, although every method of a
    comparison measures it again.

    A method's row names under `below` the best baseline of the same run, if that exceeds
    it.
    """
    rows: dict[Any, dict[str, Any]] = {}
    for record in records:
        best: dict[tuple[str, int, str], Measure] = {}
        compared = [m for m in record.measures if m.baseline and m.k]
        for m in sorted(compared, key=lambda m: m.value):
            best[m.metric, m.k, m.slice] = m
        for m in record.measures:
            settings = record.settings_of(m.baseline)
            who = "baseline" if m.baseline else "method"
            row: dict[str, Any] = {
                "data": record.data,
                "protocol": record.protocol,
                who: m.baseline or record.method,
            }
            if settings:
                row["settings"] = settings
            row["seed"] = record.seed
            row |= {"metric": m.metric, "k": m.k, "slice": m.slice, "value": m.value}
            baseline = best.get((m.metric, m.k, m.slice), m)
            if not m.baseline and baseline.value > m.value:
                row["below"] = baseline.baseline
            key: Any = len(rows)
            if m.baseline:
                values = row | {"value": None, "settings": settings_text(settings)}
                key = tuple(values.items())
            rows.setdefault(key, row)
    return list(rows.values())


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings for a person."""
    listed = {
        name: "+".join(map(str, v)) if isinstance(v, (list, tuple)) else v
        for name, v in settings.items()
    }
    return ", ".join(f"{name}={value}" for name, value in sorted(listed.items()))


def refused(accounting: Mapping[str, Any]) -> str:
    """How many events the line refused, by reason, most first; empty if it refused
    none.
    """
    reasons = sorted(
        accounting.get("dead_letters", {}).items(), key=lambda pair: -pair[1]
    )
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons)


def by_rank(popularity: NDArray[Any], occurrence: NDArray[Any]) -> list[CurvePoint]:
    """Shares of popularity and occurrence by popularity rank; both are [N], by row."""
    order = np.argsort(-popularity, kind="stable")
    return [
        point._asdict()
        for point in curve(popularity[order], occurrence[order], RANK_POINTS)
    ]


class Records:
    """The runs of a comparison, in a directory that is created if it is not there."""

    def __init__(self, directory: Path) -> None:
        self._runs = directory / "runs"
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                [f"figures cannot be kept in {directory}: {error.strerror}"]
            ) from error

    def get(self, spec: Spec) -> Record | None:
        """What this run found; None if it was not run, or on a log of another content,
        or its file is broken.
        """
        try:
            found = msgspec.json.decode(self.path(spec).read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return found if found.content == spec.content else None

    def put(self, record: Record) -> None:
        """Keep what a run found."""
        write_file(self.path(record), msgspec.json.encode(record))

    def all(self) -> list[Record]:
        """Every run that is there, in the order of their names."""
        return [
            msgspec.json.decode(path.read_bytes(), type=Record)
            for path in sorted(self._runs.glob("*.json"))
        ]

    def path(self, spec: Spec) -> Path:
        """The file of a run."""
        return self._runs / (
            "".join(c if c.isalnum() or c in "-._" else "_" for c in spec.key) + ".json"
        )


def write_file(path: Path, content: bytes, *, only_check: bool = False) -> None:
    """Write a file beside, then put it in place: it is there whole, or not at all,
    which raises a StreamerError.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if only_check:
            beside.unlink()
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not only_check:
            beside.replace(path)
    except OSError as error:
        advice = (
            "give a shorter --name"
            if error.errno == errno.ENAMETOOLONG
            else "choose another --out"
        )
        raise StreamerError(
            f"{path} cannot be written: {error.strerror}; {advice}"
        ) from error


def check_writable(paths: Iterable[Path]) -> None:
    """Check that files can be written, before there is something to write."""
    problems = []
    for path in paths:
        try:
            write_file(path, b"", only_check=True)
        except StreamerError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError(problems)
