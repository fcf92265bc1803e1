"""A learner that is one rank of a group: every rank computes a share of each step, and
all hold the same model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from streamer.event import NO_USER
from streamer.ingest.batcher import MicroBatch
from streamer.learner import OnlineLearner, StepEvents, StepHistory
from streamer.learner.features import FeatureColumn
from streamer.learner.learner import event_weights
from streamer.lockstep.events import (
    CatalogueEvent,
    Span,
    Step,
    gather_events,
    gather_ids,
    gather_rows,
    gather_values,
    partitions_of,
)
from streamer.lockstep.group import Group, PartialSum
from streamer.lockstep.key_check import KeyCheck, sample_new_users
from streamer.model.batch import Batch, Rows, StreamState
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.co_occurrence import MAX_PAIR_DISTANCE
from streamer.model.rows.recent_items import UserHistory
from streamer.model.settings import LearnerSettings
from streamer.model.step import StepResult

DIGEST_EVERY = 256
"""Steps between two comparisons of the ranks."""
DIGEST_ROWS = 4096
"""Rows of items that a comparison looks at."""
OF_USERS = ("users.", "clock.", "items.retired.")
"""Dense state that depends on which users a rank has begins with these."""


class LockstepLearner(OnlineLearner):
    """Learns from this rank's part of each step, together with the other ranks.

    Ranks gather what the others read, and add up what all have computed. Everything
    that belongs to items is the same on every rank; users stay where their partition
    is.

    Args:
        settings: what is learned, and how.
        group: the ranks.
    """

    def __init__(self, settings: LearnerSettings, group: Group) -> None:
        super().__init__(settings)
        self.group = group
        self.key_check = KeyCheck()
        self._step: Step  # the one that is being learned

    def split_catalogue_events(self, batch: MicroBatch) -> Iterator[MicroBatch]:
        """Our events of a step, in which every rank takes part; those of the catalogue
        take effect after it.
        """
        if not batch.step_events:
            return
        admitted = self._admitted(batch)
        catalogue = [k for k, user in enumerate(batch.users) if user == NO_USER]
        batch.not_admitted = len(batch) - int(admitted.sum())
        batch.catalogue = len(catalogue)
        if batch.learned < len(batch):
            admitted[catalogue] = False
            of_catalogue = batch.only(catalogue)
            batch = batch.only(np.flatnonzero(admitted).tolist())
            batch.of_catalogue = of_catalogue
        yield batch

    def _new_ids(
        self,
        batch: MicroBatch,
        events: list[int],
        ids: list[str],
    ) -> tuple[list[str], Rows]:
        """Ids that are new to any rank, in the order of the stream."""
        return gather_ids(self.group, _spans(batch.only(events)), ids)

    def _step_events(self, batch: MicroBatch) -> StepEvents:
        """All events that the group learns in this step."""
        state = self.state
        new = np.flatnonzero(state.users.known(batch.users) < 0)
        users = state.rows_of("users", batch.users)
        new_ids = [batch.users[k] for k in new.tolist()]
        self._begin_users(users[new], new_ids)

        step = self._gather(batch, new)
        if self.group.rank == 0:
            self.key_check.observe(step.new_users)
        state.clock.tick(step.times_s)
        is_new = step.items < 0
        new_items = state.rows_of("items", step.new_items)
        step.items[is_new] = new_items[-1 - step.items[is_new]]
        self._step = step
        return StepEvents(
            users,
            step.own,
            step.items,
            step.times_s,
            step.item_features,
            step.weights,
        )

    def _begin_users(self, rows: Rows, ids: Sequence[str]) -> None:
        """Rows of users differ from rank to rank, so their first vectors depend on the
        ids.
        """
        table = self.state.trainer.model.tables.get("user.id")
        if table is None or not len(rows):
            return
        numbers = []
        for user in ids:
            digest = hashlib.blake2b(user.encode(), digest_size=8).digest()
            numbers.append(int.from_bytes(digest, "little") >> 2)
        table.begin(rows, np.array(numbers, np.int64))

    def _gather(self, batch: MicroBatch, new_users: Rows) -> Step:
        """What all ranks read for this step.

        Args:
            batch: our events.
            new_users: those of them whose users are new.
        """
        state = self.state
        spans = _spans(batch)
        users = [batch.users[event] for event in new_users.tolist()]
        partitions = partitions_of(spans)[new_users]
        sample = sample_new_users(users, partitions.tolist())

        catalogue = []
        said = batch.of_catalogue
        if said is not None:
            times_s = state.event_times(said.timestamps_s, len(said))
            catalogue = _catalogue_events(said, times_s)
        features = None
        if self.features.are_used("item"):
            features = batch.item_features
        return gather_events(
            self.group,
            spans,
            batch.items,
            state.items.known(batch.items),
            state.event_times(batch.timestamps_s, len(batch)),
            features,
            catalogue,
            sample,
            event_weights(batch, self.settings.event_weights),
        )

    def _set_user_features(
        self,
        events: StepEvents,
        features: FeatureColumn | None,
    ) -> None:
        """Remember what is said of our users; codes of categories and the scale of
        numbers are those of all ranks' users.
        """
        if not self.features.are_used("user"):
            return
        group = self.group
        own = features or [None] * len(events.users)
        users = gather_rows(group, self._step, events.users)
        numbers = self._user_numbers(users)
        of_all = gather_values(group, self._step, own)
        given = self.features.of_rows("user", numbers, of_all)
        ours = given.only(given.rows % group.size == group.rank)
        ours = ours._replace(rows=ours.rows // group.size)
        self.features.put("user", ours, sample=given.numbers)

    def _user_numbers(self, rows: Rows) -> Rows:
        """[B] numbers that tell the users of all ranks apart, from their rows."""
        return rows.astype(np.int64) * self.group.size + self._step.rank

    def _step_history(self, events: StepEvents, history: UserHistory) -> StepHistory:
        """The users of all events; of others' history, as much as is counted."""
        length = self.state.recent.length
        counted = min(max(MAX_PAIR_DISTANCE, self.settings.recent_items), length)
        # an item that the user had before is counted too, wherever it stands
        items = events.items[events.own]
        is_repeated = (history.items[:, counted:] == items[:, None]).any(1)
        columns = [
            events.users[:, None],
            np.where(is_repeated, items, -1)[:, None],
            history.items[:, :counted],
            history.times_s[:, :counted],
            self.state.trainer.model.user.features.codes(events.users),
        ]
        ours = np.concatenate(columns, axis=1).astype(np.int32)
        gathered = gather_rows(self.group, self._step, ours)
        bounds = np.cumsum([1, 1, counted, counted])
        users, repeated, recent, times_s, codes = np.split(gathered, bounds, axis=1)

        of_all = _no_history(len(events.items), length)
        of_all.items[:, :counted] = recent
        of_all.times_s[:, :counted] = times_s
        if counted < length:
            of_all.items[:, counted] = repeated[:, 0]
        of_all.items[events.own] = history.items
        of_all.times_s[events.own] = history.times_s
        of_all.counts[events.own] = history.counts
        numbers = self._user_numbers(users[:, 0])
        return StepHistory(of_all, numbers, codes.astype(np.int64))

    def _ranker_events(self, count: int) -> list[Rows]:
        """Of each of our parts, the events that the ranker learns from."""
        [events] = super()._ranker_events(count)
        parts = self._step.part[events]
        return [events[parts == part] for part in self.group.own]

    def _train(
        self,
        rows: Batch,
        stream: StreamState,
        to_learn: Sequence[Candidates],
    ) -> StepResult:
        """Ranker and towers learn from the sum of all parts' gradients."""
        state = self.state
        step = self._step
        prepared = state.trainer.prepare(rows, stream)
        ranker_size = 0
        if self.settings.rerank:
            ranker_size = state.ranker.gradient_size
        candidates_of = dict(zip(self.group.own, to_learn, strict=False))
        shares = {}
        for part in self.group.own:
            events = step.events_of([part])
            if not len(events):
                continue
            share = state.trainer.share(prepared, events)
            ranked = np.zeros(ranker_size, np.float32)
            if part in candidates_of and len(candidates_of[part]):
                ranked = state.ranker.gradients(candidates_of[part])
            vector = np.append(share.vector.cpu().numpy(), ranked)
            shares[part] = PartialSum(share.rows.cpu().numpy(), vector)

        def touched(parts: Sequence[int]) -> Rows:
            return prepared.touched_by(step.events_of(parts))

        shape = (prepared.vectors.shape[0], prepared.vectors.shape[1])
        vector_size = state.trainer.vector_size(prepared)
        total = self.group.total(
            shares,
            touched,
            shape,
            vector_size + ranker_size,
        )
        if self.settings.rerank:
            state.ranker.apply(total.vector[vector_size:])
        rows_sum = torch.from_numpy(total.rows)
        vector_sum = torch.from_numpy(total.vector[:vector_size])
        result = state.trainer.finish(prepared, rows_sum, vector_sum)
        state.trainer.apply(result.gradients)
        return result

    def _end_step(self) -> None:
        """Take in what the catalogue said in this step, wherever it was read; now and
        then, compare the ranks.
        """
        left = list(self._step.catalogue)
        while left:
            # of each item its first event, then what was said of it again
            first: dict[str, CatalogueEvent] = {}
            again = []
            for event in left:
                if event.item in first:
                    again.append(event)
                else:
                    first[event.item] = event
            self.features.learn_catalogue(_catalogue_batch(list(first.values())))
            left = again

        steps = self.state.trainer.steps
        if self.group.size > 1 and steps % DIGEST_EVERY == 0:
            self.group.compare(self.digest(), f"after step {steps:,}")

    def digest(self) -> bytes:
        """A digest of what all ranks hold alike: everything dense, and some rows of
        items, others at each comparison.
        """
        state = self.state
        known = state.items.size
        first = state.trainer.steps // DIGEST_EVERY * DIGEST_ROWS
        some = first + np.arange(min(DIGEST_ROWS, known))
        rows = np.unique(some % max(known, 1))
        dense, _ = state.dense()
        shared = {}
        for name, array in dense.items():
            if not name.startswith(OF_USERS):
                shared[name] = array
        items = state.take("items", rows)
        pairs = state.take("pairs", rows)
        found = hashlib.blake2b(digest_size=16)
        for arrays in (shared, items, pairs):
            for name in sorted(arrays):
                found.update(arrays[name].tobytes())
        return found.digest()


def _spans(batch: MicroBatch) -> list[Span]:
    """Which events of a batch are of which partition."""
    spans = []
    for partition, start, stop in batch.origins:
        spans.append(Span(*partition, stop - start))
    return spans


def _catalogue_events(batch: MicroBatch, times_s: Rows) -> list[CatalogueEvent]:
    features = batch.item_features or [None] * len(batch)
    found = []
    for (topic, number), start, stop in batch.origins:
        for k in range(start, stop):
            event = CatalogueEvent(
                topic,
                number,
                batch.items[k],
                int(times_s[k]),
                features[k],
            )
            found.append(event)
    return found


def _catalogue_batch(events: Sequence[CatalogueEvent]) -> MicroBatch:
    return MicroBatch(
        [NO_USER] * len(events),
        [event.item for event in events],
        [event.time_s for event in events],
        item_features=[event.features for event in events],
    )


def _no_history(events: int, length: int) -> UserHistory:
    shape = (events, length)
    return UserHistory(
        np.full(shape, -1, np.int32),
        np.zeros(shape, np.int32),
        np.zeros(shape, np.uint8),
    )
