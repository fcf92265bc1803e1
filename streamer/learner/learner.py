"""How one micro-batch changes what is learned. It knows nothing of where events come
from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.event import NO_USER
from streamer.ingest.batcher import MicroBatch
from streamer.learner.cache import refresh_cache
from streamer.learner.candidates import CandidateGenerator, ObservedCandidates
from streamer.learner.checkpoint import (
    checkpoint_meta,
    checkpoint_settings,
    learner_settings,
    newest_checkpoint,
)
from streamer.learner.eviction import Eviction
from streamer.learner.features import FeatureColumn, Features
from streamer.learner.filters import Filters
from streamer.learner.scorer import Scorer
from streamer.learner.state import State
from streamer.learner.step import Evaluator, Learned, StepEvents, StepHistory
from streamer.model.batch import Batch, Rows, StreamState
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.co_occurrence import MAX_PAIR_DISTANCE
from streamer.model.rows.recent_items import UserHistory
from streamer.model.settings import LearnerSettings
from streamer.model.step import StepResult
from streamer.snapshot import Checkpoint, CheckpointStore


class OnlineLearner:
    """Learns from micro-batches. `streamer.Learner` is its public face.

    What is learned is in `state`; `eviction` keeps it bounded, `features` describes
    users and items, `candidates` finds what the ranker ranks, `filters` says what may be
    recommended, and `scorer` ranks it for queries.

    Args:
        settings: what is learned, and how; None for the defaults, which are those of
            `streamer run`.
        changes: settings that differ from those, by name.

    Raises:
        SettingsError: with every problem at once.
    """

    def __init__(self, settings: LearnerSettings | None = None, **changes: Any) -> None:
        self.settings = learner_settings(settings, changes)
        self.state = State(self.settings)
        self.eviction = Eviction(self.state)
        self.features = Features(self.state, self.eviction)
        self.candidates = CandidateGenerator(self.state)
        self.filters = Filters(self.state)
        self.scorer = Scorer(self.state, self.candidates, self.filters)

    def save(self, directory: str | Path, about: dict[str, Any] | None = None) -> Path:
        """Write a checkpoint into a directory, for `load`, `streamer recommend`,
        `inspect` and `export`.

        Args:
            directory: is created if it is not there.
            about: what else the checkpoint says.

        Raises:
            CheckpointError: it cannot be written.
        """
        arrays, values = self.state.dense()
        meta = checkpoint_meta(self.settings, values) | (about or {})
        meta["step"] = self.state.trainer.steps
        with CheckpointStore(directory) as store:
            return store.save(self.state.chunks(), arrays, meta)

    @classmethod
    def load(cls, directory: str | Path, device: str | None = None) -> OnlineLearner:
        """The learner of the newest checkpoint in a directory.

        Raises:
            CheckpointError: there is none, or none that this version can read.
        """
        return cls.from_checkpoint(newest_checkpoint(directory), device)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, device: str | None = None
    ) -> OnlineLearner:
        """The learner as it was when a checkpoint was written, with the settings it had
        then.

        Raises:
            IncompatibleCheckpoint: another version of Streamer wrote it.
        """
        settings = checkpoint_settings(checkpoint)
        if device:
            settings = dataclasses.replace(settings, device=device)
        learner = cls(settings)
        learner.state.restore(
            checkpoint.chunks(), checkpoint.arrays(), checkpoint.meta["learner"]
        )
        return learner

    # a micro-batch --------------------------------------------------------------------

    def split_catalogue_events(self, batch: MicroBatch) -> Iterator[MicroBatch]:
        """What of a batch is to be learned, a stretch at a time: learn each before the
        next.

        Events of ids that are not admitted yet are left out, and counted in the batch.
        So are those of the catalogue, which take effect when the others are learned,
        and before an event of their item that comes after.
        """
        admitted = self._admitted(batch)
        batch.not_admitted = len(batch) - int(admitted.sum())
        batch.catalogue = batch.users.count(NO_USER)
        if batch.learned == len(batch):
            if len(batch):
                yield batch
            return

        yield from self.features.learn_between(batch, np.flatnonzero(admitted).tolist())

    def learn_batch(
        self,
        batch: MicroBatch,
        evaluator: Evaluator | None = None,
        counted: bool = True,
    ) -> Learned:
        """Take in one micro-batch of at least one event.

        Events that come again after a crash, and that the counts of all trainers hold
        already, are trained without being counted (`counted` False).

        0. what is over the limits goes;
        1. ids become rows, features are remembered;
        2. each event gets its user's recent items, as of the event;
        3. candidates of the events to be evaluated or ranked, as of the event; the
           evidence counts the batch;
        4. test, then train: the evaluator ranks;
        5. popularity counts the batch;
        6. ranker and towers learn;
        7. occurrence, and the next cache.
        """
        state = self.state
        # 0.
        self.eviction.evict()
        known_users = len(state.users)
        known_items = len(state.items)

        # 1.
        events = self._step_events(batch)
        users, own, items, times_s, item_features, weights = events
        if not len(items):
            self._end_step()
            return Learned.nothing()
        state.mark_seen("users", users)
        state.mark_seen("items", items)
        state.observe_partitions(users, batch.origins)
        leaving = state.candidate_features.windows.leaving(len(items))
        state.changes.mark("items", leaving)
        self._set_user_features(events, batch.user_features)
        self.features.set("item", items, item_features)

        # 2.
        history, all_users, codes = self._step_history(
            events, state.recent.observe(users, items[own], times_s[own])
        )
        state.changes.mark("pairs", _paired(items, history))
        self.features.mark_categories_seen("user", codes)
        item_codes = state.trainer.model.item.features.codes(items)
        self.features.mark_categories_seen("item", item_codes)
        recent = self.candidates.recent_items(history)
        placed = _placed(users, own, len(items))
        rows = Batch(placed, items, recent, times_s, codes, weights)

        # 3.
        evaluated = np.empty(0, np.int64)
        if evaluator is not None:
            evaluated = own[evaluator.choose(len(own))]
        candidates = ObservedCandidates(None, [])
        if self.settings.rerank:
            learned = self._ranker_events(len(items))
            candidates = self.candidates.observe(rows, history, evaluated, learned)
        state.seen.observe(users, items[own])

        # 4.
        if evaluator is not None:
            all_rows = dataclasses.replace(rows, users=all_users)
            evaluator(all_rows, evaluated, candidates.to_evaluate)

        # 5.
        state.observe_popularity(items, counted)

        # 6.
        stream = StreamState(
            state.popularity, state.cache, state.occurrence, state.items.is_used
        )
        result = self._train(rows, stream, candidates.to_learn)

        # 7.
        drawn = result.occurrence()
        refresh_cache(state, *drawn, counted)
        self._end_step()
        new_users = len(state.users) - known_users
        new_items = len(state.items) - known_items
        return Learned(users, items, new_users, new_items, result, drawn)

    def _admitted(self, batch: MicroBatch) -> NDArray[np.bool_]:
        """Whether user and item of each event have come often enough; those without a
        user pass.
        """
        admitted = np.ones(len(batch), np.bool_)
        if self.settings.admit_after == 1:
            return admitted
        state = self.state
        for kind, ids in (("users", batch.users), ("items", batch.items)):
            unknown = np.flatnonzero(state.vocabulary(kind).known(ids) < 0).tolist()
            new = [k for k in unknown if batch.users[k] != NO_USER]
            new_ids, own = self._new_ids(batch, new, [ids[k] for k in new])
            admitted[new] &= state.admit(kind, new_ids)[own]
        return admitted

    # what other kinds of learners do differently --------------------------------------

    def _new_ids(
        self, batch: MicroBatch, events: list[int], ids: list[str]
    ) -> tuple[list[str], Rows]:
        """New ids that admission counts, and the places of ours among them.

        Args:
            batch: ours.
            events: of the batch, those with new ids.
            ids: of these events.
        """
        return ids, np.arange(len(ids))

    def _step_events(self, batch: MicroBatch) -> StepEvents:
        """The events that are learned in this step; their users and items get rows, and
        the clock ticks.
        """
        users = self.state.rows_of("users", batch.users)
        times_s = self.state.event_times(batch.timestamps_s, len(batch))
        self.state.clock.tick(times_s)
        items = self.state.rows_of("items", batch.items)
        own = np.arange(len(batch))
        weights = event_weights(batch, self.settings.event_weights)
        return StepEvents(users, own, items, times_s, batch.item_features, weights)

    def _set_user_features(
        self, events: StepEvents, features: FeatureColumn | None
    ) -> None:
        """Remember what our events say of their users."""
        self.features.set("user", events.users, features)

    def _step_history(self, events: StepEvents, history: UserHistory) -> StepHistory:
        """The users of all events of the step, from the history of ours."""
        codes = self.state.trainer.model.user.features.codes(events.users)
        return StepHistory(history, events.users, codes)

    def _ranker_events(self, count: int) -> list[Rows]:
        """Groups of the events of the step that the ranker learns from."""
        return [np.arange(0, count, -(-count // self.settings.ranker_events))]

    def _train(
        self, rows: Batch, stream: StreamState, to_learn: Sequence[Candidates]
    ) -> StepResult:
        """Ranker and towers learn from the step."""
        for candidates in to_learn:
            self.state.ranker.learn(candidates)
        return self.state.trainer.step(rows, stream)

    def _end_step(self) -> None:
        """Nothing more is to do: catalogue events take effect between two steps."""


def event_weights(
    batch: MicroBatch, by_type: Mapping[str, float]
) -> NDArray[np.float32] | None:
    """[b] how much each event counts: by its own weight, or else by its type; None: 1
    each.
    """
    if batch.weights is None and (batch.types is None or not by_type):
        return None
    nothing = [None] * len(batch)
    found = np.ones(len(batch), np.float32)
    pairs = zip(batch.weights or nothing, batch.types or nothing, strict=True)
    for k, (weight, type_) in enumerate(pairs):
        found[k] = by_type.get(type_ or "", 1.0) if weight is None else weight
    return found


def _placed(values: Rows, places: Rows, count: int) -> Rows:
    """[count] values in their places, -1 in the others."""
    if len(values) == count:
        return values
    found = np.full(count, -1)
    found[places] = values
    return found


def _paired(items: Rows, history: UserHistory) -> Rows:
    """Items whose lists of neighbours change with these events."""
    recent = history.items[:, :MAX_PAIR_DISTANCE]
    return np.concatenate([items, recent[recent >= 0].astype(np.int64)])
