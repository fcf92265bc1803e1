"""How one micro-batch changes what is learned. It knows nothing of where events come
from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from streamer.errors import CheckpointError
from streamer.event import NO_USER, Features
from streamer.ingest.batcher import MicroBatch
from streamer.learner.described import DescribedState
from streamer.learner.state import (
    DIGEST_EVERY,
    are_among,
    checkpoint_meta,
    checkpoint_settings,
)
from streamer.lockstep.events import (
    CatalogueEvent,
    Span,
    Step,
    gather_events,
    gather_ids,
    gather_rows,
    gather_values,
)
from streamer.lockstep.group import Share
from streamer.lockstep.key_check import sample_new_users
from streamer.model.batch import Batch, Recent, Rows, StreamState
from streamer.model.ranking.candidates import Candidates
from streamer.model.ranking.co_occurrence import MAX_PAIR_DISTANCE
from streamer.model.ranking.features import TOWERS
from streamer.model.rows.recent_items import UserHistory
from streamer.model.trainer import StepResult
from streamer.recommender import Recommendation, Recommender
from streamer.settings import PipelineSettings
from streamer.snapshot import Checkpoint, CheckpointStore

MAX_COLD_ITEMS = 4096
NEAREST_COLD_ITEMS = 10
"""Of items that nobody has had yet, how many a step looks at, and how many of these are
candidates of an event.
"""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a micro-batch did to the learner."""

    users: Rows
    items: Rows
    new_users: int
    new_items: int
    step: StepResult
    drawn: tuple[Rows, NDArray[np.float32]]
    """Items that were resampled, and how often; an item may occur twice."""


class Evaluator(Protocol):
    """Tests before it is trained."""

    def choose(self, events: int) -> Rows:
        """Which events of the next batch to rank, ascending."""
        ...

    def __call__(
        self, batch: Batch, chosen: Rows, candidates: Candidates | None
    ) -> None:
        """Rank the chosen events among their candidates; None: the towers alone rank
        all items.
        """
        ...


class Learner(DescribedState):
    """Learns from micro-batches.

    Args:
        settings: what is learned, and how; None for the defaults, which are those of
            `streamer run`.
        changes: settings that differ from those, by name.

    Raises:
        SettingsError: with every problem at once.
    """

    # the public part --------------------------------------------------------------------------------------------------

    def learn(
        self,
        events: Iterable[Sequence[Any]],
        batch_size: int = PipelineSettings.batch_size,
    ) -> int:
        """Learn from events in their order, and return their number.

        Args:
            events: (user, item) or (user, item, time) each, time in seconds since the
                epoch; ids become text.
            batch_size: events of a training step.
        """
        count = 0
        left = iter(events)
        while chunk := list(itertools.islice(left, batch_size)):
            users = [str(event[0]) for event in chunk]
            items = [str(event[1]) for event in chunk]
            times = []
            last = float(self.candidate_features.windows.now_s)
            for (
                event
            ) in chunk:  # one without a time comes a second after the one before
                last = float(event[2]) if len(event) > 2 else last + 1
                times.append(last)
            for stretch in self.split_catalogue_events(MicroBatch(users, items, times)):
                self.learn_batch(stretch)
            count += len(chunk)
        return count

    def recommend(
        self,
        user: object | None = None,
        k: int = 10,
        *,
        recent: Sequence[object] | None = None,
        exclude_seen: bool = False,
    ) -> list[Recommendation]:
        """The best items for a user, or for a session without one; best first, each
        with its score.

        Args:
            user: id; an unknown one gets what a user without history gets.
            k: how many items.
            recent: instead of a user: the items of a session, oldest first.
            exclude_seen: leave out what the user had, or the items of the session.

        Raises:
            ValueError: neither or both of `user` and `recent` are given.
        """
        if (user is None) == (recent is None):
            raise ValueError("give either a user or the recent items of a session")
        if not len(self.items):
            return []
        recommender = Recommender(self)
        query = (
            recommender.user(str(user))
            if recent is None
            else recommender.session([str(i) for i in recent])
        )
        return recommender.recommend([query], k, exclude_seen=exclude_seen)[0]

    def rank(self, user: object, items: Iterable[object]) -> list[Recommendation]:
        """Some items by their score for a user, best first; items that are not known
        are left out.
        """
        rows = [self.items.row_of(str(item)) for item in items]
        among = np.unique([row for row in rows if row is not None]).astype(np.int64)
        if not len(among):
            return []
        recommender = Recommender(self)
        return recommender.recommend(
            [recommender.user(str(user))], len(self.items), among=among
        )[0]

    def save(self, directory: str | Path) -> Path:
        """Write a checkpoint into a directory, for `load`, `streamer recommend`,
        `inspect` and `export`.

        Raises:
            CheckpointError: it cannot be written.
        """
        arrays, values = self.dense()
        with CheckpointStore(directory) as store:
            return store.save(self.chunks(), arrays, checkpoint_meta(self, values))

    @classmethod
    def load(cls, directory: str | Path, device: str | None = None) -> Learner:
        """The learner of the newest checkpoint in a directory, written by `save` or by
        `streamer run`.

        Raises:
            CheckpointError: there is none, or none that this version can read.
        """
        checkpoint = CheckpointStore(directory, readonly=True).load()
        if checkpoint is None:
            raise CheckpointError(f"there is no checkpoint in {directory}")
        return cls.from_checkpoint(checkpoint, device)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, device: str | None = None
    ) -> Learner:
        """The learner as it was when a checkpoint was written, with the settings it had
        then.

        Raises:
            IncompatibleCheckpoint: another version of Streamer wrote it.
        """
        settings = checkpoint_settings(checkpoint)
        learner = cls(
            dataclasses.replace(settings, device=device) if device else settings
        )
        learner.restore(
            checkpoint.chunks(), checkpoint.arrays(), checkpoint.meta["learner"]
        )
        return learner

    # a micro-batch ----------------------------------------------------------------------------------------------------

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

        In a group the batch is this rank's part of the step: 1 and 2 gather what the
        others read, 6 adds up what all have computed, and everything that belongs to
        items is the same on every rank.
        """
        # 0.
        self.evict()
        known_users = len(self.users)
        known_items = len(self.items)
        # 1.
        users, new_users = self._users(batch)
        step = self._step(batch, new_users)
        items = step.items
        own = step.own
        if not len(items):  # nothing but the catalogue
            self._learn_catalogue_of(step)
            return Learned(
                items, items, 0, 0, StepResult.empty(), (items, np.empty(0, np.float32))
            )
        self.see("users", users)
        self.see("items", items)
        for origin in batch.origins:
            self.user_partitions.observe(
                users[origin.start : origin.stop], origin.partition.number
            )
        self.changes.mark("items", self.candidate_features.windows.leaving(len(items)))
        self._set_features(
            "user", *self._user_features(users, step, batch.user_features)
        )
        self._set_features("item", items, step.item_features)
        # 2.
        history, all_users, codes = self._gather(
            users, step, self.recent.observe(users, items[own], step.times_s[own])
        )
        self.changes.mark("pairs", _paired(items, history))
        self._see_categories("user", codes)
        self._see_categories("item", self.trainer.model.item.codes(items))
        rows = Batch(
            step.of_own(users), items, self.recent_items(history), step.times_s, codes
        )
        # 3.
        evaluated = (
            own[evaluator.choose(len(own))]
            if evaluator is not None
            else np.empty(0, np.int64)
        )
        to_evaluate, to_learn = (
            self._observe(rows, history, evaluated, step)
            if self.settings.rerank
            else (None, {})
        )
        self.seen.observe(users, items[own])
        # 4.
        if evaluator is not None:
            evaluator(
                dataclasses.replace(rows, users=all_users), evaluated, to_evaluate
            )
        # 5.
        self.changes.mark("hash", self.hashed.slots_of(items))
        self.hashed.observe(items)
        self.decayed_popularity.observe(items)
        if counted:
            self.count(items)
        # 6.
        result = self._learn(rows, to_learn, step)
        # 7.
        drawn = result.occurrence()
        self._refresh_cache(*drawn, counted)
        self._learn_catalogue_of(step)
        if self.group.size > 1 and self.trainer.steps % DIGEST_EVERY == 0:
            self.group.compare(self.digest(), f"after step {self.trainer.steps:,}")
        return Learned(
            users,
            items,
            len(self.users) - known_users,
            len(self.items) - known_items,
            result,
            drawn,
        )

    def _refresh_cache(
        self, items: Rows, counts: NDArray[np.float32], counted: bool
    ) -> None:
        if not self.trainer.method.resamples:
            return
        self.occurrence.step()
        self.changes.mark("items", items)
        if counted:
            self.occurrence.add(items, counts)
        if self.trainer.method.extra != "cache":
            return
        if self.settings.cache_scope == "touched":
            self.cache = self.occurrence.draw_among(
                np.unique(items), self.settings.cache_size, self._draws
            )
        else:
            drawn = self.occurrence.draw(
                self.settings.cache_size, self._draws, self.items.size
            )
            self.cache = drawn[self.items.is_used(drawn)]

    def split_catalogue_events(self, batch: MicroBatch) -> Iterator[MicroBatch]:
        """What of a batch is to be learned, a stretch at a time: learn each before the
        next.

        Events of ids that are not admitted yet are left out, and counted in the batch.
        So are those of the catalogue, which take effect when the others are learned,
        and before an event of their item that comes after.
        """
        if self.group.parts > 1:
            yield from self._stretch_of_group(batch)
            return
        admitted = self._admitted(batch)
        batch.not_admitted, batch.catalogue = (
            len(batch) - int(admitted.sum()),
            batch.users.count(NO_USER),
        )
        if batch.learned == len(batch):
            yield from [batch] if len(batch) else []
            return
        stretch: list[int] = []
        catalogue: dict[str, int] = {}  # the event of each item
        for k in np.flatnonzero(admitted).tolist():
            if batch.items[k] in catalogue:
                yield from [batch.only(stretch)] if stretch else []
                self.learn_catalogue(batch.only(list(catalogue.values())))
                stretch = []
                catalogue = {}
            if batch.users[k] == NO_USER:
                catalogue[batch.items[k]] = k
            else:
                stretch.append(k)
        yield from [batch.only(stretch)] if stretch else []
        if catalogue:
            self.learn_catalogue(batch.only(list(catalogue.values())))

    def _admitted(self, batch: MicroBatch) -> NDArray[np.bool_]:
        """Whether user and item of each event have come often enough; those without a
        user pass.

        In a group every rank counts what is new to any of them, in the order of the
        stream.
        """
        admitted = np.ones(len(batch), np.bool_)
        if self.settings.admit_after == 1:
            return admitted
        for kind, ids in (("users", batch.users), ("items", batch.items)):
            known = self._vocabulary(kind).known(ids)
            new = [
                k
                for k in np.flatnonzero(known < 0).tolist()
                if batch.users[k] != NO_USER
            ]
            of_new = [ids[k] for k in new]
            own = np.arange(len(new))
            if self.group.parts > 1:
                of_new, own = gather_ids(self.group, _spans(batch.only(new)), of_new)
            sketch = self.admission[kind]
            every = sketch.halves(len(of_new))
            self.changes.mark(
                f"admission.{kind}", sketch.rows() if every else sketch.slots_of(of_new)
            )
            admitted[new] &= sketch.admit(of_new)[own]
        return admitted

    # candidates -------------------------------------------------------------------------------------------------------

    def _observe(
        self, rows: Batch, history: UserHistory, evaluated: Rows, step: Step
    ) -> tuple[Candidates, dict[int, Candidates]]:
        """Candidates of the events to be evaluated, and by part of those to learn from,
        as of each; all are counted.

        Of the former, as of users who are served, the items nearest by the towers are
        candidates too. That is a search among all items; the ranker learns with those
        alone that nobody has had yet, of which nothing else would make candidates. So
        what is learned does not depend on what is evaluated.
        """
        learned = np.arange(0, len(rows), -(-len(rows) // self.settings.ranker_events))
        learned = learned[step.rank[learned] == self.group.rank]
        both = np.concatenate([evaluated, learned])
        order = np.argsort(both, kind="stable")
        wanted = both[order]
        is_evaluated = order < len(evaluated)
        nearest = np.full((len(wanted), self.settings.retrieved_items), -1)
        nearest[is_evaluated] = self._nearest(rows.only(evaluated), nearest.shape[1])
        cold_items = self._some_cold_items()
        if len(cold_items) and len(learned):
            asked = rows.only(learned)
            count = min(NEAREST_COLD_ITEMS, nearest.shape[1])
            near = self.retriever.nearest_among(
                cold_items, asked.users, asked.recent, count
            )
            nearest[~is_evaluated, : near.shape[1]] = near
        assert rows.times_s is not None
        found = self.candidate_features.observe(
            rows.items, rows.times_s, history, wanted, nearest, learned=~is_evaluated
        )
        found.mark_seen(
            self.seen.contains(rows.users, rows.items, wanted, found.first, found.items)
        )

        def some(chosen: NDArray[np.bool_]) -> Candidates:
            candidates = found.only(np.flatnonzero(chosen))
            self._add_towers(candidates, rows.only(wanted[chosen]))
            return candidates

        part = np.where(is_evaluated, -1, step.part[wanted])
        return some(is_evaluated), {
            int(k): some(part == k) for k in np.unique(part[~is_evaluated])
        }

    def candidates(
        self,
        rows: Batch,
        history: UserHistory,
        extra: Rows | None = None,
        least: int | Rows = 0,
        seen: Sequence[Rows] | None = None,
    ) -> Candidates:
        """Candidates of some users, described by what was learned so far; nothing is
        counted.

        Args:
            rows: users, targets (-1 for none), and times (None: that of the latest
                event).
            history: of the users.
            extra: [n, x] further candidates of each, -1 for none.
            least: how many candidates each must have, if there are as many items; [n]
                or the same for all.
            seen: [n] the items that each had, ascending; None: as they were learned.
        """
        rows = dataclasses.replace(rows, recent=self.recent_items(history))
        nearest = self._nearest(rows, np.maximum(least, self.settings.retrieved_items))
        extra = nearest if extra is None else np.concatenate([nearest, extra], axis=1)
        found = self.candidate_features.candidates(
            history, extra, rows.items, rows.times_s
        )
        found.mark_seen(
            _among(found, seen or [self.seen.of(user) for user in rows.users.tolist()])
        )
        self._add_towers(found, rows)
        return found

    def recent_items(self, history: UserHistory) -> Recent | None:
        """What the user tower reads of it."""
        length = self.settings.recent_items
        return np.ascontiguousarray(history.items[:, :length]) if length else None

    def _nearest(self, rows: Batch, count: int | Rows) -> Rows:
        """[n, most] the items nearest to the users by the towers, `count` of each; -1
        where one cannot be reached.
        """
        most = int(np.max(count, initial=0))
        known = self.reachable_items
        found = np.full((len(rows), most), -1)
        if len(rows) and known and most:
            best, _ = self.retriever.top(
                self.retriever.items(known), rows.users, most, rows.recent
            )
            wanted = np.arange(best.shape[1]) < np.reshape(count, (-1, 1))
            found[:, : best.shape[1]] = np.where(
                wanted & self.are_reachable(best), best, -1
            )
        return found

    def _some_cold_items(self) -> Rows:
        """The cold_items items, or a sample of them; the same on every rank of a group."""
        if len(self.cold_items) <= MAX_COLD_ITEMS:
            return self.cold_items
        return self.cold_items[
            self._draws.choice(
                len(self.cold_items), MAX_COLD_ITEMS, replace=False, shuffle=False
            )
        ]

    def _add_towers(self, candidates: Candidates, rows: Batch) -> None:
        if len(rows):
            found = self.retriever.similarities(
                rows.users, rows.recent, candidates.first, candidates.items
            )
            candidates.features[:, TOWERS] = found

    # what the ranks of a group do together; alone, each of these has nothing to gather --------------------------------

    def _step(self, batch: MicroBatch, new_users: Rows) -> Step:
        """All events that the group trains in this step; their items have rows, and the
        clock ticks.
        """
        times_s = self._times(batch)
        if self.group.parts == 1:
            self.clock.tick(times_s)
            every = np.arange(len(batch))
            one = np.zeros(len(batch), np.int64)
            return Step(
                every,
                one,
                one,
                self.rows_of("items", batch.items),
                times_s,
                batch.item_features,
            )
        wanted = self.settings.item_tower
        features = batch.item_features if wanted.categorical or wanted.numeric else None
        spans = _spans(batch)
        catalogue = (
            _catalogue_events(batch.of_catalogue, self._times(batch.of_catalogue))
            if batch.of_catalogue
            else []
        )
        rows = self.items.known(batch.items)
        partition = np.repeat(
            [span.partition for span in spans], [span.events for span in spans]
        )
        met = sample_new_users(
            [batch.users[k] for k in new_users.tolist()], partition[new_users].tolist()
        )
        step = gather_events(
            self.group, spans, batch.items, rows, times_s, features, catalogue, met
        )
        if self.group.rank == 0:
            self.key_check.observe(step.new_users)
        self.clock.tick(step.times_s)
        known = step.items >= 0
        new = self.rows_of("items", step.new_items)
        step.items[~known] = new[-1 - step.items[~known]]
        return step

    def _users(self, batch: MicroBatch) -> tuple[Rows, Rows]:
        """The rows of our users; and in a group, which of the events are those of new
        ones.

        Rows of users differ from rank to rank, so there their first vectors depend on
        the ids.
        """
        if self.group.parts == 1:
            return self.rows_of("users", batch.users), np.empty(0, np.int64)
        new = np.flatnonzero(self.users.known(batch.users) < 0)
        users = self.rows_of("users", batch.users)
        table = self.trainer.model.tables.get("user.id")
        if table is not None and len(new):
            digests = [
                hashlib.blake2b(batch.users[k].encode(), digest_size=8).digest()
                for k in new.tolist()
            ]
            numbers = np.array(
                [int.from_bytes(digest, "little") >> 2 for digest in digests], np.int64
            )
            table.begin(users[new], numbers)
        return users, new

    def _user_features(
        self, users: Rows, step: Step, features: Sequence[Features | None] | None
    ) -> tuple[Rows, Sequence[Features | None] | None]:
        """What all events say of their users; in a group with numbers in place of rows,
        which tell all users apart.
        """
        wanted = self.settings.user_tower
        if self.group.parts == 1 or not (wanted.categorical or wanted.numeric):
            return users, features
        numbers = gather_rows(self.group, step, users) * self.group.size + step.rank
        return numbers, gather_values(self.group, step, features or [None] * len(users))

    def _gather(
        self, users: Rows, step: Step, history: UserHistory
    ) -> tuple[UserHistory, Rows, Rows]:
        """The history of all events, of others' as far as it is counted; numbers that
        tell all users apart; and [B, C] the users' categories.
        """
        codes = self.trainer.model.user.codes(users)
        if self.group.parts == 1:
            return history, users, codes
        known = min(
            max(MAX_PAIR_DISTANCE, self.settings.recent_items), self.recent.length
        )
        repeated = (history.items[:, known:] == step.items[step.own, None]).any(
            1
        )  # counted too, wherever it stands
        again = np.where(repeated, step.items[step.own], -1)
        columns = [
            users[:, None],
            again[:, None],
            history.items[:, :known],
            history.times_s[:, :known],
            codes,
        ]
        found = gather_rows(
            self.group, step, np.concatenate(columns, axis=1).astype(np.int32)
        )
        shape = (len(step.items), self.recent.length)
        of_all = UserHistory(
            np.full(shape, -1, np.int32),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.uint8),
        )
        of_all.items[:, :known], of_all.times_s[:, :known] = np.split(
            found[:, 2 : 2 + 2 * known], 2, axis=1
        )
        if known < self.recent.length:
            of_all.items[:, known] = found[:, 1]
        for name, ours in history._asdict().items():
            getattr(of_all, name)[step.own] = ours
        numbers = found[:, 0].astype(np.int64) * self.group.size + step.rank
        return of_all, numbers, found[:, 2 + 2 * known :].astype(np.int64)

    def _stretch_of_group(self, batch: MicroBatch) -> Iterator[MicroBatch]:
        """Our events of a step, in which every rank takes part; those of the catalogue
        take effect after it.
        """
        if batch.step_events:
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

    def _learn_catalogue_of(self, step: Step) -> None:
        """What the catalogue said in this step, wherever it was read: first of all
        items, then what it said again.
        """
        left = list(step.catalogue)
        while left:
            first = {event.item: event for event in reversed(left)}
            events = [event for event in left if first[event.item] is event]
            left = [event for event in left if first[event.item] is not event]
            _, _, items, times_s, features = map(list, zip(*events, strict=True))
            self.learn_catalogue(
                MicroBatch(
                    [NO_USER] * len(items), items, times_s, item_features=features
                )
            )

    def _learn(
        self, rows: Batch, to_learn: dict[int, Candidates], step: Step
    ) -> StepResult:
        """Ranker and towers learn from the sum of all parts' gradients."""
        view = StreamState(
            self.popularity, self.cache, self.occurrence, self.items.is_used
        )
        if self.group.parts == 1:
            for candidates in to_learn.values():
                self.ranker.learn(candidates)
            return self.trainer.step(rows, view)
        prepared = self.trainer.prepare(rows, view)
        ranker_size = self.ranker.gradient_size if self.settings.rerank else 0
        shares = {}
        nothing = np.zeros(ranker_size, np.float32)
        for part in self.group.own:
            if len(events := step.events_of([part])):
                share = self.trainer.share(prepared, events)
                ranked = (
                    self.ranker.gradients(to_learn[part])
                    if part in to_learn
                    else nothing
                )
                shares[part] = Share(
                    share.rows.cpu().numpy(),
                    np.append(share.vector.cpu().numpy(), ranked),
                )

        def touched(parts: Sequence[int]) -> Rows:
            return prepared.touched_by(step.events_of(parts))

        shape = (prepared.vectors.shape[0], prepared.vectors.shape[1])
        total = self.group.total(
            shares, touched, shape, self.trainer.vector_size(prepared) + ranker_size
        )
        vector, ranked = np.split(total.vector, [len(total.vector) - ranker_size])
        if self.settings.rerank:
            self.ranker.apply(ranked)
        result = self.trainer.finish(
            prepared, torch.from_numpy(total.rows), torch.from_numpy(vector)
        )
        self.trainer.apply(result.gradients)
        return result


def _among(candidates: Candidates, items: Sequence[Rows]) -> NDArray[np.bool_]:
    """[c] whether candidates are among their user's items, which ascend."""
    found = np.zeros(len(candidates.items), np.bool_)
    for of_user, (begin, end) in zip(
        items, itertools.pairwise(candidates.first.tolist()), strict=True
    ):
        found[begin:end] = are_among(of_user, candidates.items[begin:end])
    return found


def _catalogue_events(batch: MicroBatch, times_s: Rows) -> list[CatalogueEvent]:
    features = batch.item_features or [None] * len(batch)
    return [
        CatalogueEvent(*origin.partition, batch.items[k], int(times_s[k]), features[k])
        for origin in batch.origins
        for k in range(origin.start, origin.stop)
    ]


def _spans(batch: MicroBatch) -> list[Span]:
    """Which events of a batch are whose."""
    return [
        Span(*origin.partition, origin.stop - origin.start) for origin in batch.origins
    ]


def _paired(items: Rows, history: UserHistory) -> Rows:
    """Items whose lists of neighbours change with these events."""
    recent = history.items[:, :MAX_PAIR_DISTANCE]
    return np.concatenate([items, recent[recent >= 0].astype(np.int64)])
