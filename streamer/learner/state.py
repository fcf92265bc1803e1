"""Everything that is learned from a stream: one recovery unit, kept by rows.

Id maps, users' recent items, what is counted, popularity, occurrence, cache, weights,
optimizer and random state are saved and restored together.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from streamer.accounting import Accounting
from streamer.admission import Admission
from streamer.errors import IncompatibleCheckpoint, SettingsError
from streamer.ingest.batcher import MicroBatch
from streamer.limits import Limits, limits_of
from streamer.model.batch import Rows
from streamer.model.device import resolve_device
from streamer.model.occurrence import Occurrence
from streamer.model.popularity import (
    ExactPopularity,
    HashPopularity,
    PopularityEstimate,
)
from streamer.model.ranking.candidates import CandidateFeatures
from streamer.model.ranking.ranker import Ranker
from streamer.model.retrieval import Retriever
from streamer.model.rows.by_rows import Arrays
from streamer.model.rows.recency import Recency, StepClock
from streamer.model.rows.recent_items import RecentItems
from streamer.model.rows.retired import RetiredItems
from streamer.model.rows.seen_items import UserItems
from streamer.model.rows.user_partition import UserPartitions
from streamer.model.settings import LearnerSettings
from streamer.model.trainer import Trainer
from streamer.recommender import LAST_S
from streamer.snapshot import Checkpoint, Chunk
from streamer.snapshot.capture import marked
from streamer.snapshot.frames import CHUNK_ROWS
from streamer.vocabulary import Titles, Vocabulary


class State:
    """What a learner knows, kept by rows of users, items and other kinds.

    Args:
        settings: what is learned, and how.

    Raises:
        SettingsError: with every problem at once.
    """

    def __init__(self, settings: LearnerSettings) -> None:
        if problems := settings.problems():
            raise SettingsError(problems)
        try:
            self.trainer = Trainer(settings, resolve_device(settings.device))
        except ValueError as error:
            raise SettingsError([str(error)]) from error
        self.settings = settings
        self.limits = limits_of(settings)
        self.users = Vocabulary()
        self.items = Vocabulary(reuse=False)
        self.retired = RetiredItems()
        self.titles = Titles()
        self.cold_items: Rows = np.empty(0, np.int64)
        """Items that the catalogue describes and nobody has had yet, ascending."""
        self.categories = {
            side: {name: Vocabulary(first=1) for name in tower.categorical}
            for side, tower in (
                ("user", settings.user_tower),
                ("item", settings.item_tower),
            )
        }
        history = max(settings.recent_items, settings.history if settings.rerank else 0)
        self.recent = RecentItems(history, self.retired)
        self.candidate_features = CandidateFeatures(
            settings.co_occurring_items, self.retired
        )
        self.seen = UserItems(self.retired)
        self.user_partitions = UserPartitions()
        self.ranker = Ranker(settings.ranker_learning_rate, settings.seed)
        self.retriever = Retriever(self.trainer, lambda: self.items.unused)
        self.item_counts = ExactPopularity()
        self.decayed_popularity = ExactPopularity(settings.popularity_half_life or None)
        self.hashed = HashPopularity(
            slots=settings.hash_slots,
            alpha=settings.hash_alpha,
            clock=settings.hash_clock,
            seed=settings.seed,
        )
        self.occurrence = Occurrence(settings.occurrence_half_life or None)
        self.cache: Rows = np.empty(0, np.int64)
        self.draws = np.random.default_rng([settings.seed, 2])
        self.clock = StepClock()
        self.admission = {
            kind: Admission(settings.admit_after) for kind in ("users", "items")
        }
        self.changes = self.trainer.changes
        self.occurrence.before_rescaling = self._mark_all_items
        self.by_kind = self._parts_by_kind()

    def _parts_by_kind(self) -> dict[str, dict[str, Any]]:
        """All parts whose state is kept by rows, by the kind of the rows."""
        tables = self.trainer.model.tables
        found = {}
        own: dict[str, dict[str, Any]] = {
            "user": {
                "ids": self.users,
                "recency": Recency(),
                "recent": self.recent,
                "seen": self.seen,
                "partition": self.user_partitions,
            },
            "item": {
                "ids": self.items,
                "titles": self.titles,
                "recency": Recency(),
                "retired": self.retired,
                "item_counts": self.item_counts,
                "decayed_popularity": self.decayed_popularity,
                "occurrence": self.occurrence,
                "windows": self.candidate_features.windows,
            },
        }
        for side, tower in (
            ("user", self.trainer.model.user),
            ("item", self.trainer.model.item),
        ):
            found[f"{side}s"] = own[side] | {"features": tower.features}
            if f"{side}.id" in tables:
                found[f"{side}s"]["table"] = tables[f"{side}.id"]
            for name, vocabulary in self.categories[side].items():
                found[f"{side}.{name}"] = {
                    "ids": vocabulary,
                    "recency": Recency(),
                    "table": tables[f"{side}.{name}"],
                }
        found |= {
            "pairs": {"lists": self.candidate_features.co_occurrence},
            "hash": {"slots": self.hashed},
        }
        if self.settings.admit_after > 1:
            found |= {
                f"admission.{kind}": {"counts": sketch}
                for kind, sketch in self.admission.items()
            }
        return found

    def _mark_all_items(self) -> None:
        self.changes.mark("items", self.rows("items"))

    @property
    def popularity(self) -> PopularityEstimate:
        """The estimate that corrects the sampling bias."""
        wanted = self.settings.popularity
        if wanted == "auto":
            wanted = "hash" if self.trainer.method.popularity == "hash" else "exact"
        if wanted == "hash":
            return self.hashed
        return (
            self.decayed_popularity
            if self.settings.popularity_half_life
            else self.item_counts
        )

    def vocabulary(self, kind: str) -> Vocabulary:
        found: Vocabulary = self.by_kind["items" if kind == "pairs" else kind]["ids"]
        return found

    def rows_of(self, kind: str, ids: Sequence[str]) -> Rows:
        """The rows of users or items; a new id gets one."""
        vocabulary = self.vocabulary(kind)
        known = vocabulary.known(ids)
        self.changes.mark(kind, known[known >= 0])
        rows = (
            vocabulary.rows(ids, lambda free: self.changes.mark(kind, free))
            if (known < 0).any()
            else known
        )
        self.trainer.model.grow(self.users.size, self.items.size)
        return rows

    def mark_seen(self, kind: str, rows: Rows) -> None:
        """Note that rows are seen in this step."""
        self.changes.mark(kind, rows)
        self.by_kind[kind]["recency"].see(rows, self.clock.step)

    def event_times(self, batch: MicroBatch) -> Rows:
        """Seconds since the epoch; events without a time come a second after the one
        before.
        """
        if batch.timestamps_s:
            return np.clip(batch.timestamps_s, 0, LAST_S).astype(np.int64)
        return self.candidate_features.windows.now_s + 1 + np.arange(len(batch))

    def count(self, items: Rows) -> None:
        """Events of these items have come: the exact counts, which trainers share."""
        self.item_counts.observe(items)
        self.remove_cold_items(items)

    def remove_cold_items(self, items: Rows) -> None:
        """These items are not among the untouched any more."""
        if len(gone := items[self.are_cold(items)]):
            self.cold_items = np.delete(
                self.cold_items, np.searchsorted(self.cold_items, gone)
            )

    def find_cold_items(self, rows: Rows) -> None:
        """See which of some items are described, and were had by nobody."""
        found = (
            self.item_counts.counts(rows) == 0
        ) & self.trainer.model.item.features.are_known(rows)
        self.remove_cold_items(rows)
        self.cold_items = np.union1d(self.cold_items, rows[found])

    def are_cold(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each item is one that the catalogue describes and nobody has had yet."""
        return are_among(self.cold_items, rows)

    def are_reachable(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each item can be recommended: somebody has had it, or it is
        untouched.
        """
        found: NDArray[np.bool_] = (self.item_counts.counts(rows) > 0) | self.are_cold(
            rows
        )
        return found

    @property
    def reachable_items(self) -> int:
        """One more than the largest row of an item that can be recommended."""
        return max(
            self.item_counts.size,
            int(self.cold_items[-1]) + 1 if len(self.cold_items) else 0,
        )

    def memory(self) -> dict[str, dict[str, int]]:
        """Bytes in use, by kind of rows and part; pairs and retired items are those of
        items.
        """
        return {
            kind: {name: part.nbytes for name, part in parts.items()}
            for kind, parts in self.by_kind.items()
        }

    def age_s(self, kind: str) -> int:
        """How long ago, by event time, the id of a kind was seen that was not seen for
        longest.
        """
        step = self.by_kind[kind]["recency"].step_of_oldest
        return 0 if step is None else self.clock.now_s - self.clock.time_of(step)

    # the recovery unit ------------------------------------------------------------------------------------------------

    def kinds(self) -> tuple[str, ...]:
        """The kinds of rows that everything belongs to, but for what is `dense`."""
        return tuple(self.by_kind)

    def rows(self, kind: str) -> Rows:
        """The rows of a kind that are in use, ascending."""
        if "ids" not in self.by_kind[kind] and kind != "pairs":
            found: Rows = next(iter(self.by_kind[kind].values())).rows()
            return found
        return np.arange(self.vocabulary(kind).size)

    def used(self, kind: str) -> NDArray[np.bool_]:
        """Of each row of a kind, whether it is in use: what `rows` says, at a fraction
        of its memory.
        """
        if "ids" not in self.by_kind[kind] and kind != "pairs":
            return marked(self.rows(kind))
        return np.ones(self.vocabulary(kind).size, np.bool_)

    def take(self, kind: str, rows: Rows) -> Arrays:
        """A copy of what rows of a kind hold."""
        taken = {name: part.take(rows) for name, part in self.by_kind[kind].items()}
        return {
            f"{name}.{key}": array
            for name, arrays in taken.items()
            for key, array in arrays.items()
        }

    def put(self, kind: str, rows: Rows, arrays: Arrays) -> None:
        """Make rows of a kind hold what `take` returned of them.

        Raises:
            ValueError, KeyError: they are those of a learner with other settings.
        """
        for name, part in self.by_kind[kind].items():
            part.put(rows, _of(arrays, name))

    def dense(self) -> tuple[Arrays, dict[str, Any]]:
        """A copy of what belongs to no row: arrays, and plain values."""
        arrays, values = self.trainer.dense()
        found = {f"trainer.{name}": array for name, array in arrays.items()}
        for kind, parts in self.by_kind.items():
            for name, part in parts.items():
                found |= {
                    f"{kind}.{name}.{key}": array for key, array in part.dense().items()
                }
        found |= {
            f"ranker.{name}": array.copy()
            for name, array in self.ranker.state().items()
        }
        found |= {f"clock.{name}": array for name, array in self.clock.dense().items()}
        found["cache"] = self.cache.copy()
        own = {
            "draws": self.draws.bit_generator.state,
            "limits": list(self.limits),
            "fixed": self.settings.fixed(),
        }
        return found, {"trainer": values, **own}

    def load_dense(self, arrays: Arrays, values: dict[str, Any]) -> None:
        """Take over what `dense` returned, when all rows are there.

        Raises:
            ValueError, KeyError: it is that of a learner with other settings.
        """
        self.trainer.load_dense(_of(arrays, "trainer"), values["trainer"])
        for kind, parts in self.by_kind.items():
            for name, part in parts.items():
                part.load_dense(_of(arrays, f"{kind}.{name}"))
        self.ranker.load_state(_of(arrays, "ranker"))
        self.clock.load_dense(_of(arrays, "clock"))
        self.cache = arrays["cache"].copy()
        self.limits = limits_of(self.settings, Limits(*values["limits"]))
        self.draws.bit_generator.state = values["draws"]

    def check_settings(self, values: dict[str, Any]) -> None:
        """See that the values that `dense` returned are of a learner with these
        settings.

        Raises:
            ValueError: they are not; the message says which differ.
        """
        theirs = values.get("fixed", {})
        ours = self.settings.fixed()
        if differ := [
            f"{n} was {theirs.get(n)} and is {ours[n]} now"
            for n in ours
            if theirs.get(n) != ours[n]
        ]:
            raise ValueError("; ".join(differ))

    def chunks(self) -> Iterator[Chunk]:
        """A copy of every row, in slices; nothing may be learned meanwhile."""
        for kind in self.kinds():
            rows = self.rows(kind)
            for k in range(0, len(rows), CHUNK_ROWS):
                at = rows[k : k + CHUNK_ROWS]
                yield Chunk(kind, at, self.take(kind, at))

    def restore(
        self, chunks: Iterable[Chunk], arrays: Arrays, values: dict[str, Any]
    ) -> None:
        """Become, as a new learner, the one whose rows these are, and whose `dense`
        these arrays and values.

        Raises:
            IncompatibleCheckpoint: it had other settings.
        """
        try:
            self.check_settings(values)
            for chunk in chunks:
                self.put(chunk.kind, chunk.rows, chunk.arrays)
            self.load_dense(arrays, values)
            self.find_cold_items(self.items.used)
        except (KeyError, ValueError) as error:
            raise IncompatibleCheckpoint(
                f"the checkpoint does not fit these settings: {error}. "
                "Start with the settings it was made with, or with another --checkpoint-dir"
            ) from error


def are_among(ascending: Rows, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row is one of those that ascend: many times faster than `np.isin`
    where these are few.
    """
    if not len(ascending):
        return np.zeros(rows.shape, np.bool_)
    found: NDArray[np.bool_] = (
        ascending[np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)]
        == rows
    )
    return found


def checkpoint_meta(
    settings: LearnerSettings, values: dict[str, Any]
) -> dict[str, Any]:
    """What a checkpoint says beside rows and arrays; a run adds its offsets and
    accounting.
    """
    return {
        "settings": msgspec.to_builtins(settings),
        "learner": values,
        "positions": [],
        "accounting": Accounting().to_json(),
        "threads": torch.get_num_threads(),
        "saved_at": time.time(),
    }


def learner_settings(
    settings: LearnerSettings | None, changes: dict[str, Any]
) -> LearnerSettings:
    """The settings of a learner, from those of a whole run or from the defaults, with
    some changed.

    Raises:
        SettingsError: there is no such setting.
    """
    if unknown := [name for name in changes if name not in LearnerSettings.all()]:
        known = ", ".join(LearnerSettings.all())
        raise SettingsError(
            [
                f"a learner has no setting {name!r}: choose among {known}"
                for name in unknown
            ]
        )
    base = settings.only(LearnerSettings) if settings is not None else LearnerSettings()
    return dataclasses.replace(base, **changes)


def checkpoint_settings(checkpoint: Checkpoint) -> LearnerSettings:
    """The settings that a checkpoint was written with.

    Raises:
        IncompatibleCheckpoint: another version of Streamer wrote it.
    """
    try:
        return msgspec.convert(checkpoint.meta["settings"], LearnerSettings)
    except (KeyError, msgspec.ValidationError) as error:
        raise IncompatibleCheckpoint(
            f"{checkpoint.path} was written by another version: {error}"
        ) from error


def _of(arrays: Arrays, name: str) -> Arrays:
    """Those whose names begin with this one and a dot, by the rest of their names."""
    prefix = f"{name}."
    return {
        n.removeprefix(prefix): array
        for n, array in arrays.items()
        if n.startswith(prefix)
    }
