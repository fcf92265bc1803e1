"""A learner that never trains: it follows what one generation of a trainer publishes."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np

from streamer.errors import CorruptCheckpoint
from streamer.learner import Learner
from streamer.model.batch import Rows
from streamer.model.rows.by_rows import Arrays
from streamer.model.settings import LearnerSettings
from streamer.publish.points import BEGIN, End, Frames, Point
from streamer.publish.publisher import LINES, table_of
from streamer.recommender import Recommender
from streamer.serve.vectors import EXACT_ITEMS, KeptVectors
from streamer.snapshot.frames import Chunk


class Replica:
    """The state of a trainer after one of its deltas.

    Args:
        point: a base.
        exact_items: up to this many items, all are scored.

    Raises:
        CorruptCheckpoint: the base is damaged, or of another version.
    """

    def __init__(self, point: Point, exact_items: int = EXACT_ITEMS) -> None:
        frames = Frames()
        chunks = frames.unpack(point.frames)
        begin = next(chunks, None)
        if not isinstance(begin, Chunk) or begin.kind != BEGIN:
            raise CorruptCheckpoint(f"{point.id} does not begin as a base does")
        try:
            settings = msgspec.convert(begin.values["settings"], LearnerSettings)
        except (KeyError, msgspec.ValidationError) as error:
            raise CorruptCheckpoint(
                f"{point.id} was published by another version: {error}"
            ) from error
        self.learner = Learner(
            dataclasses.replace(settings, device="cpu", optimizer="sgd")
        )  # no optimizer state
        self.learner.state.retriever = self.vectors = KeptVectors(
            self.learner.state.trainer, exact_items
        )
        self.recommender = Recommender(self.learner)
        for chunk in chunks:
            if isinstance(chunk, Chunk):
                self._put(point, chunk)
            else:
                self._finish(point, *chunk)
        every = np.arange(self.learner.state.items.size)
        self.learner.state.find_cold_items(every)
        self.vectors.renew(every, len(every))
        self._chain = self.end.before

    def title_of(self, item: str) -> str | None:
        """What people call an item; None if nobody said."""
        learner = self.learner
        row = learner.state.items.row_of(item) if learner.state.titles else None
        return None if row is None else learner.state.titles.of(row)

    def read(self, point: Point) -> Delta:
        """A delta, checked as a whole before any of it is applied.

        Raises:
            CorruptCheckpoint: it is damaged, or does not follow what was applied last.
        """
        frames = Frames()
        rows = []
        for chunk in frames.unpack(point.frames):
            if isinstance(chunk, Chunk):
                rows.append(chunk)
                continue
            end, dense = chunk
            _check(point, end)
            if (
                end.sequence != self.end.sequence + 1
                or end.generation != self.end.generation
            ):
                raise CorruptCheckpoint(
                    f"{point.id} does not follow delta {self.end.sequence}"
                )
            if end.before != self._chain:
                raise CorruptCheckpoint(
                    f"{point.id} does not follow the delta {self.end.sequence} that came"
                )
            return Delta(end, rows, dense, frames.checksum)
        raise AssertionError("a point without an end is refused before")

    def apply(self, delta: Delta) -> None:
        """Take a delta over, all of it."""
        point = Point(delta.end.id, ())
        for chunk in delta.rows:
            self._put(point, chunk)
        self._finish(point, delta.end, delta.dense)
        some: list[Rows] = [chunk.rows for chunk in delta.rows if chunk.kind == "items"]
        if delta.end.dense is not None:
            changed = np.concatenate([*some, np.empty(0, np.int64)])
            self.learner.state.find_cold_items(changed)
            self.vectors.renew(changed, self.learner.state.items.size)
        self._chain = delta.checksum

    def _put(self, point: Point, chunk: Chunk) -> None:
        try:
            self.learner.state.put(chunk.kind, chunk.rows, self._with_room(chunk))
        except (KeyError, ValueError) as error:
            raise CorruptCheckpoint(
                f"{point.id} does not fit its base: {error}"
            ) from error

    def _with_room(self, chunk: Chunk) -> Arrays:
        """Lines of a table with room for the optimizer state that is not published."""
        if LINES not in chunk.arrays:
            return dict(chunk.arrays)
        weights = chunk.arrays[LINES]
        width = self.learner.state.trainer.model.tables[
            table_of(chunk.kind)
        ].lines.shape[1]
        lines = np.zeros((len(weights), width), np.float32)
        lines[:, : weights.shape[1]] = weights
        return {**chunk.arrays, LINES: lines}

    def _finish(self, point: Point, end: End, dense: Chunk) -> None:
        _check(point, end)
        if end.dense is not None:
            try:
                self.learner.state.load_dense(dict(dense.arrays), end.dense)
            except (KeyError, ValueError) as error:
                raise CorruptCheckpoint(
                    f"{point.id} does not fit its base: {error}"
                ) from error
        self.end = end


@dataclasses.dataclass(frozen=True, slots=True)
class Delta:
    """What a delta changes."""

    end: End
    rows: list[Chunk]
    dense: Chunk
    checksum: int


def _check(point: Point, end: End) -> None:
    if end.id != point.id:
        raise CorruptCheckpoint(f"{point.id} says of itself that it is {end.id}")
