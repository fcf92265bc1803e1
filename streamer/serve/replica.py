"""A learner that never trains: it follows the snapshots of a trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from streamer.errors import CorruptCheckpoint
from streamer.learner import OnlineLearner, checkpoint_settings
from streamer.model.batch import Rows
from streamer.model.rows.by_rows import Arrays
from streamer.recommender import Recommender
from streamer.serve.vectors import EXACT_ITEMS, KeptVectors
from streamer.snapshot.chain import Checkpoint
from streamer.snapshot.frames import RowChunk
from streamer.snapshot.publisher import LINES, UNCHANGED, is_served, table_of
from streamer.snapshot.snapshot import Snapshot, SnapshotEnd


class Replica:
    """The state of a trainer after one of its snapshots.

    Args:
        state: a published one, or a checkpoint.
        exact_items: up to this many items, all are scored.

    Raises:
        CorruptCheckpoint: it is damaged.
        IncompatibleCheckpoint: another version wrote it.
    """

    def __init__(self, state: Checkpoint, exact_items: int = EXACT_ITEMS) -> None:
        settings = checkpoint_settings(state)
        # it needs no optimizer state
        self.learner = OnlineLearner(
            dataclasses.replace(settings, device="cpu", optimizer="sgd")
        )
        learned = self.learner.state
        self.vectors = KeptVectors(
            learned.trainer, lambda: learned.items.unused, exact_items
        )
        learned.retriever = self.vectors
        self.recommender = Recommender(self.learner)
        self._put(state.end, state.chunks(), state.arrays())
        every = np.arange(self.learner.state.items.size)
        self.learner.state.find_cold_items(every)
        self.vectors.renew(every, len(every))
        self._compile()

    def _compile(self) -> None:
        """Ask once for each kind of answer: loops that are not compiled yet would take
        longer than a visitor waits.
        """
        items = self.learner.state.items
        known = items.ids_of(items.used[:1].tolist())
        recommender = self.recommender
        query = recommender.user("", [(item, 0.0) for item in known])
        (best,) = recommender.recommend([query], 1)
        recommender.reasons(query, [found.item for found in best])

    def title_of(self, item: str) -> str | None:
        """What people call an item; None if nobody said."""
        state = self.learner.state
        row = state.items.row_of(item)
        return None if row is None else state.titles.of(row)

    def read(self, snapshot: Snapshot) -> ReadDelta:
        """A delta, checked as a whole before any of it is applied.

        Raises:
            CorruptCheckpoint: it is damaged, or does not follow what was applied last.
        """
        end = snapshot.end
        if end.previous != self.end.link:
            raise CorruptCheckpoint(f"{end} does not follow {self.end}")
        chunks = [one for one in snapshot.chunks() if one.values != UNCHANGED]
        return ReadDelta(end, chunks, snapshot.arrays())

    def apply(self, delta: ReadDelta) -> None:
        """Take a delta over, all of it."""
        self._put(delta.end, delta.chunks, delta.arrays)
        if not delta.chunks:
            return  # a sign of life: nothing has changed
        rows: list[Rows] = [np.empty(0, np.int64)]
        for chunk in delta.chunks:
            if chunk.kind == "items":
                rows.append(chunk.rows)
        changed = np.concatenate(rows)
        self.learner.state.find_cold_items(changed)
        self.vectors.renew(changed, self.learner.state.items.size)

    def _put(
        self, end: SnapshotEnd, chunks: Iterable[RowChunk], arrays: Arrays
    ) -> None:
        try:
            for chunk in chunks:
                if is_served(chunk.kind):
                    fitting = self._fitting(chunk)
                    self.learner.state.put(chunk.kind, chunk.rows, fitting)
            self.learner.state.load_dense(arrays, end.meta["learner"])
        except (KeyError, ValueError) as error:
            raise CorruptCheckpoint(
                f"{end} does not fit its settings: {error}"
            ) from error
        self.end = end

    def _fitting(self, chunk: RowChunk) -> Arrays:
        """What rows hold, with as much of their table's lines as there is room for:
        optimizer state is left out.
        """
        if LINES not in chunk.arrays:
            return dict(chunk.arrays)
        given = chunk.arrays[LINES]
        tables = self.learner.state.trainer.model.tables
        width = tables[table_of(chunk.kind)].lines.shape[1]
        lines = np.zeros((len(given), width), np.float32)
        common = min(width, given.shape[1])
        lines[:, :common] = given[:, :common]
        return {**chunk.arrays, LINES: lines}


@dataclasses.dataclass(frozen=True, slots=True)
class ReadDelta:
    """What a delta changes."""

    end: SnapshotEnd
    chunks: list[RowChunk]
    arrays: Arrays
