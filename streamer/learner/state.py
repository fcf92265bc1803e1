"""Everything that is learned from a stream: one recovery unit, kept by rows.

Id maps, users' recent items, what is counted, popularity, occurrence, cache, weights,
optimizer and random state are saved and restored together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.admission import Admission
from streamer.errors import IncompatibleCheckpoint, SettingsError
from streamer.ingest.batcher import Origin
from streamer.learner.titles import Titles
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
from streamer.model.rows.attributes import Attributes
from streamer.model.rows.by_rows import Arrays
from streamer.model.rows.recency import Recency, StepClock
from streamer.model.rows.recent_items import RecentItems
from streamer.model.rows.retired import RetiredItems
from streamer.model.rows.seen_items import UserItems
from streamer.model.rows.user_partition import UserPartitions
from streamer.model.settings import LearnerSettings
from streamer.model.trainer import Trainer
from streamer.recommender import LAST_S
from streamer.snapshot import RowChunk
from streamer.snapshot.capture import marked
from streamer.snapshot.frames import CHUNK_ROWS
from streamer.vocabulary import Vocabulary

LABELS = "labels"
"""Kind of rows: the labels of all attributes."""


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
        self.attributes = Attributes(settings.item_attributes)
        self.cold_items: Rows = np.empty(0, np.int64)
        """Items that the catalogue describes and nobody has had yet, ascending."""
        history = settings.recent_items
        if settings.rerank:
            history = max(history, settings.history)
        self.recent = RecentItems(history, self.retired)
        co_occurring = settings.co_occurring_items
        self.candidate_features = CandidateFeatures(co_occurring, self.retired)
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
        self.occurrence = Occurrence()
        self.cache: Rows = np.empty(0, np.int64)
        self.draws = np.random.default_rng([settings.seed, 2])
        self.clock = StepClock()
        self.admission = {
            kind: Admission(settings.admit_after) for kind in ("users", "items")
        }
        self.changes = self.trainer.changes
        self.by_kind = _parts_by_kind(self)
        self.category_kinds = [LABELS]
        """Kinds whose rows are codes of categories: labels of attributes, and `user.` or
        `item.` and a feature.
        """
        self.category_kinds += [
            k for k in self.by_kind if k in self.trainer.model.tables
        ]

    @property
    def popularity(self) -> PopularityEstimate:
        """The estimate that corrects the sampling bias."""
        wanted = self.settings.popularity
        is_hash = wanted == "hash"
        if wanted == "auto":
            is_hash = self.trainer.method.popularity == "hash"
        if is_hash:
            return self.hashed
        if self.settings.popularity_half_life:
            return self.decayed_popularity
        return self.item_counts

    def vocabulary(self, kind: str) -> Vocabulary:
        if kind == "pairs":
            return self.items
        found: Vocabulary = self.by_kind[kind]["ids"]
        return found

    def rows_of(self, kind: str, ids: Sequence[str]) -> Rows:
        """The rows of users or items; a new id gets one."""
        vocabulary = self.vocabulary(kind)
        rows = vocabulary.known(ids)
        self.changes.mark(kind, rows[rows >= 0])
        if (rows < 0).any():
            rows = vocabulary.rows(ids, lambda free: self.changes.mark(kind, free))
        self.trainer.model.grow(self.users.size, self.items.size)
        return rows

    def mark_seen(self, kind: str, rows: Rows) -> None:
        """Note that rows are seen in this step."""
        self.changes.mark(kind, rows)
        self.by_kind[kind]["recency"].mark_seen(rows, self.clock.stamp)

    def event_times(self, timestamps_s: list[float], size: int) -> Rows:
        """Seconds since the epoch; events without a time come a second after the one
        before.
        """
        if timestamps_s:
            return np.clip(timestamps_s, 0, LAST_S).astype(np.int64)
        return self.candidate_features.windows.now_s + 1 + np.arange(size)

    def admit(self, kind: str, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Count an event of each of these new ids; returns which may get a row."""
        sketch = self.admission[kind]
        slots = sketch.slots_of(ids)
        if sketch.halves(len(ids)):
            slots = sketch.rows()
        self.changes.mark(f"admission.{kind}", slots)
        return sketch.admit(ids)

    def observe_partitions(self, users: Rows, origins: Iterable[Origin]) -> None:
        """Note from which partitions the users' events come."""
        for partition, start, stop in origins:
            self.user_partitions.observe(users[start:stop], partition.number)

    def observe_popularity(self, items: Rows, counted: bool) -> None:
        """Count events of items; the exact counts, which trainers share, only if they
        are `counted`.
        """
        self.changes.mark("hash", self.hashed.slots_of(items))
        self.hashed.observe(items)
        self.decayed_popularity.observe(items)
        if counted:
            self.item_counts.observe(items)
            self.remove_cold_items(items)

    def remove_cold_items(self, items: Rows) -> None:
        """These items are not cold any more, if they were."""
        gone = items[self.are_cold(items)]
        if len(gone):
            places = np.searchsorted(self.cold_items, gone)
            self.cold_items = np.delete(self.cold_items, places)

    def find_cold_items(self, rows: Rows) -> None:
        """See which of some items have features and no events."""
        has_features = self.trainer.model.item.features.are_known(rows)
        found = has_features & (self.item_counts.counts(rows) == 0)
        self.remove_cold_items(rows)
        self.cold_items = np.union1d(self.cold_items, rows[found])

    def are_cold(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each item has features and no events yet."""
        return are_among(self.cold_items, rows)

    def are_reachable(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each item can be recommended: it has events, or it is cold."""
        has_events: NDArray[np.bool_] = self.item_counts.counts(rows) > 0
        return has_events | self.are_cold(rows)

    @property
    def reachable_items(self) -> int:
        """One more than the largest row of an item that can be recommended."""
        cold = int(self.cold_items.max(initial=-1)) + 1
        return max(self.item_counts.size, cold)

    def memory(self) -> dict[str, dict[str, int]]:
        """Bytes in use, by kind of rows and part; pairs and retired items are those of
        items.
        """
        found = {}
        for kind, parts in self.by_kind.items():
            found[kind] = {name: part.nbytes for name, part in parts.items()}
        return found

    def age_s(self, kind: str) -> int:
        """How long ago, by event time, the id of a kind was seen that was not seen for
        longest.
        """
        oldest = self.by_kind[kind]["recency"].oldest(1)
        return int(self.ages_s(kind, oldest).max(initial=0))

    def ages_s(self, kind: str, rows: Rows) -> Rows:
        """How long ago, by event time, rows of a kind were seen."""
        return self.clock.ages_s(self.by_kind[kind]["recency"].last_seen(rows))

    # saving and restoring -------------------------------------------------------------

    def kinds(self) -> tuple[str, ...]:
        """The kinds of rows that everything belongs to, but for what is `dense`."""
        return tuple(self.by_kind)

    def rows(self, kind: str) -> Rows:
        """The rows of a kind that are in use, ascending."""
        if self._has_ids(kind):
            return np.arange(self.vocabulary(kind).size)
        found: Rows = next(iter(self.by_kind[kind].values())).rows()
        return found

    def used(self, kind: str) -> NDArray[np.bool_]:
        """Of each row of a kind, whether it is in use: what `rows` returns, at a
        fraction of its memory.
        """
        if self._has_ids(kind):
            return np.ones(self.vocabulary(kind).size, np.bool_)
        return marked(self.rows(kind))

    def _has_ids(self, kind: str) -> bool:
        """Whether a vocabulary says which rows there are; pairs have the items'."""
        return kind == "pairs" or "ids" in self.by_kind[kind]

    def take(self, kind: str, rows: Rows) -> Arrays:
        """A copy of what rows of a kind hold."""
        found: Arrays = {}
        for name, part in self.by_kind[kind].items():
            found |= _prefixed(name, part.take(rows))
        return found

    def put(self, kind: str, rows: Rows, arrays: Arrays) -> None:
        """Make rows of a kind hold what `take` returned of them.

        Raises:
            ValueError, KeyError: they are those of a learner with other settings.
        """
        self.changes.written[kind] += 1
        for name, part in self.by_kind[kind].items():
            part.put(rows, _of(arrays, name))

    def dense(self) -> tuple[Arrays, dict[str, Any]]:
        """A copy of what belongs to no row: arrays, and plain values."""
        arrays, values = self.trainer.dense()
        found = _prefixed("trainer", arrays)
        for kind, parts in self.by_kind.items():
            for name, part in parts.items():
                found |= _prefixed(f"{kind}.{name}", part.dense())
        weights = {name: array.copy() for name, array in self.ranker.state().items()}
        found |= _prefixed("ranker", weights)
        found |= _prefixed("clock", self.clock.dense())
        found["cache"] = self.cache.copy()
        return found, {
            "trainer": values,
            "draws": self.draws.bit_generator.state,
            "limits": list(self.limits),
            "fixed": self.settings.fixed(),
        }

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

    def chunks(self) -> Iterator[RowChunk]:
        """A copy of every row, in slices; nothing may be learned meanwhile."""
        for kind in self.kinds():
            rows = self.rows(kind)
            for k in range(0, len(rows), CHUNK_ROWS):
                at = rows[k : k + CHUNK_ROWS]
                yield RowChunk(kind, at, self.take(kind, at))

    def restore(
        self,
        chunks: Iterable[RowChunk],
        arrays: Arrays,
        values: dict[str, Any],
    ) -> None:
        """Become, as a new learner, the one whose rows these are, and whose `dense`
        these arrays and values.

        Raises:
            IncompatibleCheckpoint: it had other settings.
        """
        try:
            _check_settings(self.settings, values)
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
    places = np.searchsorted(ascending, rows)
    within = np.minimum(places, len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[within] == rows
    return found


def _prefixed(name: str, arrays: Arrays) -> Arrays:
    """The same arrays, with a name and a dot before theirs."""
    return {f"{name}.{key}": array for key, array in arrays.items()}


def _of(arrays: Arrays, name: str) -> Arrays:
    """Those whose names begin with this one and a dot, by the rest of their names."""
    prefix = f"{name}."
    found = {}
    for key, array in arrays.items():
        if key.startswith(prefix):
            found[key.removeprefix(prefix)] = array
    return found


def _parts_by_kind(state: State) -> dict[str, dict[str, Any]]:
    """All parts whose state is kept by rows, by the kind of the rows."""
    model = state.trainer.model
    users = {
        "ids": state.users,
        "recency": Recency(),
        "recent": state.recent,
        "seen": state.seen,
        "partition": state.user_partitions,
        "features": model.user.features,
    }
    items = {
        "ids": state.items,
        "titles": state.titles,
        "attributes": state.attributes,
        "recency": Recency(),
        "retired": state.retired,
        "item_counts": state.item_counts,
        "decayed_popularity": state.decayed_popularity,
        "occurrence": state.occurrence,
        "windows": state.candidate_features.windows,
        "features": model.item.features,
    }
    found: dict[str, dict[str, Any]] = {}
    for side, parts in (("user", users), ("item", items)):
        found[f"{side}s"] = parts
        if f"{side}.id" in model.tables:
            parts["table"] = model.tables[f"{side}.id"]
        for name in getattr(model, side).settings.categorical:
            kind = f"{side}.{name}"
            found[kind] = {
                "ids": Vocabulary(first=1),  # code 0 stands for an unknown category
                "recency": Recency(),
                "table": model.tables[kind],
            }
    # a label is the name of its attribute, a colon and its text; 0 stands for none
    found[LABELS] = {"ids": Vocabulary(first=1), "recency": Recency()}
    found["pairs"] = {"lists": state.candidate_features.co_occurrence}
    found["hash"] = {"slots": state.hashed}
    if state.settings.admit_after > 1:
        for kind, sketch in state.admission.items():
            found[f"admission.{kind}"] = {"counts": sketch}
    return found


def _check_settings(settings: LearnerSettings, values: dict[str, Any]) -> None:
    """See that the values that `dense` returned are of a learner with these settings.

    Raises:
        ValueError: they are not; the message says which differ.
    """
    saved = values.get("fixed", {})
    differ = []
    for name, value in settings.fixed().items():
        if saved.get(name) != value:
            differ.append(f"{name} was {saved.get(name)} and is {value} now")
    if differ:
        raise ValueError("; ".join(differ))
