"""What a run found, as it is kept: a file for each run, so that a comparison can be stopped and goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import SettingsError, StreamerError
from streamer.metrics.composition import curve
from streamer.replay.evaluation.measure import Measure
from streamer.replay.evaluation.spec import Spec

RANK_POINTS = 200
DELAYS = ("delay_events", "delay_seconds")
FLOORS_DEPEND_ON = ("batch_size", *DELAYS)
"""Settings that change a floor's figures; the batch size only which events count as popular."""
Row = dict[str, Any]


class Record(msgspec.Struct, kw_only=True):
    """Figures and curves of one run.

    Args:
        data, protocol, method, seed, settings, log, content: of its `Spec`.
        measures: rows of `metric`, `k`, `slice`, `value`, `floor` (null: the method's own).
        curve: points of the learning curves.
        composition: points of the cache's composition.
        ranks: shares of `popularity` and `occurrence` of an item by its popularity `rank`, thinned out on a log axis.
        about: sizes, seconds, versions: what a reader wants to know.
    """

    data: str
    protocol: str
    method: str
    seed: int
    settings: dict[str, Any]
    log: dict[str, Any]
    measures: list[Row]
    curve: list[dict[str, Any]] = []
    composition: list[dict[str, Any]] = []
    ranks: list[dict[str, float]] = []
    about: dict[str, Any] = {}
    content: str = ""

    @property
    def spec(self) -> Spec:
        """What was run."""
        return Spec(self.data, self.protocol, self.method, self.seed, self.settings, self.log, self.content)

    @property
    def floor_settings(self) -> dict[str, Any]:
        """Those of the settings that change the floors' figures."""
        return {name: value for name, value in self.settings.items() if name in FLOORS_DEPEND_ON}

    def rows(self) -> list[Row]:
        """Rows of `results.json`; a floor's have `floor` instead of `method`, and only settings that change it."""
        common = {"data": self.data, "protocol": self.protocol}
        ours, theirs = ({"settings": s} if s else {} for s in (self.settings, self.floor_settings))
        found = []
        for m in self.measures:
            who = {"floor": m["floor"]} | theirs if m["floor"] else {"method": self.method} | ours
            figure = {name: m[name] for name in ("metric", "k", "slice", "value")}
            found.append(common | who | {"seed": self.seed} | figure)
        return found


def result_rows(records: Sequence[Record]) -> list[Row]:
    """Rows of all records; those of a floor once, although every method of a comparison measures it again."""
    found, floors = [], set()
    for record in records:
        settings = tuple(sorted(record.floor_settings.items()))
        for row in record.rows():
            if "floor" in row:
                at = tuple(row[name] for name in ("data", "protocol", "seed", "floor", "metric", "k", "slice"))
                at += settings
                if at in floors:
                    continue
                floors.add(at)
            found.append(row)
    return found


def measured(measures: Sequence[Measure]) -> list[Row]:
    """Measures as they are kept."""
    return [{"metric": m.metric, "k": m.k, "slice": m.slice, "value": m.value, "floor": m.floor} for m in measures]


def by_rank(popularity: NDArray[Any], occurrence: NDArray[Any]) -> list[dict[str, float]]:
    """Shares of popularity and occurrence by popularity rank; both are [N], by row."""
    order = np.argsort(-popularity, kind="stable")
    return [point._asdict() for point in curve(popularity[order], occurrence[order], RANK_POINTS)]


class Records:
    """The runs of a comparison, in a directory.

    Args:
        directory: created if it is not there.

    Raises:
        SettingsError: it cannot be.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._runs = directory / "runs"
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError([f"figures cannot be kept in {directory}: {error.strerror}"]) from error

    def get(self, spec: Spec) -> Record | None:
        """What this run found; None if it was not run, or on a log of another content, or its file is broken."""
        path = self._path(spec)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return found if found.content == spec.content else None

    def put(self, record: Record) -> None:
        """Keep what a run found."""
        written(self._path(record.spec), msgspec.json.encode(record))

    def check(self, specs: Sequence[Spec]) -> None:
        """See that what these runs find can be kept.

        Raises:
            SettingsError: with every file that cannot be written.
        """
        check_written([self._path(spec) for spec in specs])

    def all(self) -> list[Record]:
        """Every run that is there, in the order of their names."""
        paths = sorted(self._runs.glob("*.json"))
        return [msgspec.json.decode(path.read_bytes(), type=Record) for path in paths]

    def _path(self, spec: Spec) -> Path:
        safe = "".join(c if c.isalnum() or c in "-._" else "_" for c in spec.key)
        return self._runs / f"{safe}.json"


def written(path: Path, content: bytes) -> None:
    """Write a file beside, then put it in place: it is there whole, or not at all.

    Raises:
        StreamerError: it cannot be.
    """
    beside = _beside(path)
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise StreamerError(_unwritten(path, error)) from error


def check_written(paths: Sequence[Path]) -> None:
    """See that files can be written, before there is something to write.

    Raises:
        SettingsError: with all that cannot.
    """
    problems = []
    for path in paths:
        try:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            _beside(path).touch()
            _beside(path).unlink()
        except OSError as error:
            problems.append(_unwritten(path, error))
    if problems:
        raise SettingsError(problems)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _unwritten(path: Path, error: OSError) -> str:
    shorter = "give a shorter --name" if error.errno == errno.ENAMETOOLONG else "choose another --out"
    return f"{path} cannot be written: {error.strerror}; {shorter}"
