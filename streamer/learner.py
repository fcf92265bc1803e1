"""Everything that is learned from a stream, and how one micro-batch changes it.

The learner is one recovery unit: id maps, users' recent items, what is counted, popularity, occurrence, cache, weights,
optimizer and random state are saved and restored together. It knows nothing of where events come from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from streamer.accounting import Accounting
from streamer.admission import Admission
from streamer.checkpoint import Checkpoint, CheckpointStore, Chunk
from streamer.checkpoint.capture import marked
from streamer.checkpoint.frames import CHUNK_ROWS
from streamer.errors import CheckpointError, IncompatibleCheckpoint, SettingsError
from streamer.event import NO_USER, TITLE, Features
from streamer.group.events import Span, Step, gather_events, gather_ids, gather_rows, gather_values
from streamer.group.group import Group, Share
from streamer.group.keyed import KeyedByUser, sightings
from streamer.ingest.batcher import MicroBatch
from streamer.limits import Limits, limits_of
from streamer.model.batch import Batch, Recent, Rows, StreamState
from streamer.model.by_rows import Arrays
from streamer.model.device import resolve_device
from streamer.model.homes import Homes
from streamer.model.occurrence import Occurrence
from streamer.model.popularity import ExactPopularity, HashPopularity, Popularity
from streamer.model.ranking.co_occurrence import REACH
from streamer.model.ranking.evidence import TOWERS, Candidates, Evidence
from streamer.model.ranking.ranker import Ranker
from streamer.model.ranking.recent import History, RecentItems
from streamer.model.ranking.seen_items import UserItems
from streamer.model.recency import Recency, StepClock
from streamer.model.retired import RetiredItems
from streamer.model.retrieval import Retriever
from streamer.model.settings import LearnerSettings
from streamer.model.trainer import StepResult, Trainer
from streamer.recommender import LAST_S, Recommendation, Recommender
from streamer.settings import PipelineSettings
from streamer.vocabulary import Titles, Vocabulary

MOST_UNTOUCHED, NEAR_UNTOUCHED = 4096, 10
"""Of items that nobody has had yet, how many a step looks at, and how many of these are candidates of an event."""
MOST_AT_ONCE = 4096
"""Ids that go between two steps, if no more are new."""
LARGEST_NUMBER = float(np.finfo(np.float32).max)
_TRUTH = {"true": 1.0, "false": 0.0}


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


DIGEST_EVERY, DIGEST_ROWS = 256, 4096
"""Steps between two comparisons of the ranks of a group, and rows of items that one looks at."""
OF_USERS = ("users.", "clock.", "items.retired.")
"""Dense state that depends on which users a rank has begins with these."""


class Evaluator(Protocol):
    """Tests before it is trained."""

    def choose(self, events: int) -> Rows:
        """Which events of the next batch to rank, ascending."""
        ...

    def __call__(self, batch: Batch, chosen: Rows, candidates: Candidates | None, due: Any = None) -> None:
        """Rank the chosen events among their candidates; None: the towers alone rank all items.

        `due` says which events are learned from by then, with a feedback delay.
        """
        ...


class Learner:
    """Learns from micro-batches.

    Args:
        settings: what is learned, and how; None for the defaults, which are those of `streamer run`.
        changes: settings that differ from those, by name.

    Raises:
        SettingsError: with every problem at once.
    """

    def __init__(self, settings: LearnerSettings | None = None, **changes: Any) -> None:
        settings = learner_settings(settings, changes)
        if problems := settings.problems():
            raise SettingsError(problems)
        try:
            self.trainer = Trainer(settings, resolve_device(settings.device))
        except ValueError as error:
            raise SettingsError([str(error)]) from error
        self.settings = settings
        self.limits = limits_of(settings)
        self.users, self.items, self.retired = Vocabulary(), Vocabulary(reuse=False), RetiredItems()
        self.titles = Titles()
        self.untouched: Rows = np.empty(0, np.int64)
        """Items that the catalogue describes and nobody has had yet, ascending."""
        self.categories = {
            side: {name: Vocabulary(first=1) for name in tower.categorical}
            for side, tower in (("user", settings.user_tower), ("item", settings.item_tower))
        }
        history = max(settings.recent_items, settings.history if settings.rerank else 0)
        self.recent = RecentItems(history, self.retired)
        self.evidence = Evidence(settings.co_occurring_items, self.retired)
        self.seen = UserItems(self.retired)
        self.homes = Homes()
        self.ranker = Ranker(settings.ranker_learning_rate, settings.seed)
        self.retriever = Retriever(self.trainer, lambda: self.items.unused)
        self.exact = ExactPopularity()
        self.ageing = ExactPopularity(settings.popularity_half_life or None)
        self.hashed = HashPopularity(
            slots=settings.hash_slots, alpha=settings.hash_alpha, clock=settings.hash_clock, seed=settings.seed
        )
        self.occurrence = Occurrence(settings.occurrence_half_life or None)
        self.cache: Rows = np.empty(0, np.int64)
        self.group = Group()
        """The processes that train this model together; alone, unless a run joins one."""
        self.keyed = KeyedByUser()
        self._draws = np.random.default_rng([settings.seed, 2])
        self.clock = StepClock()
        self.admission = {kind: Admission(settings.admit_after) for kind in ("users", "items")}
        self.evicted: Counter[tuple[str, str]] = Counter()
        """Ids that went since this learner was made, by kind and reason."""
        self.evicted_age_s: dict[str, int] = {}
        """How long ago, by event time, the last ids of a kind were seen that a limit made go."""
        self.on_retire: list[Callable[[str, Rows, str], None]] = []
        """Called with the kind and the rows that are about to be retired, and why."""
        self.on_reuse: list[Callable[[str, Rows], None]] = []
        """Called with the rows of users or items that may be used again by others."""
        self.changes = self.trainer.changes
        self.occurrence.before_rescaling = self._mark_all_items
        self._parts = self._by_kind()

    def _by_kind(self) -> dict[str, dict[str, Any]]:
        """All parts whose state is kept by rows, by the kind of the rows."""
        tables, found = self.trainer.model.tables, {}
        own: dict[str, dict[str, Any]] = {
            "user": {
                "ids": self.users,
                "recency": Recency(),
                "recent": self.recent,
                "seen": self.seen,
                "home": self.homes,
            },
            "item": {
                "ids": self.items,
                "titles": self.titles,
                "recency": Recency(),
                "retired": self.retired,
                "exact": self.exact,
                "ageing": self.ageing,
                "occurrence": self.occurrence,
                "evidence": self.evidence,
            },
        }
        for side, tower in (("user", self.trainer.model.user), ("item", self.trainer.model.item)):
            found[f"{side}s"] = own[side] | {"features": tower.features}
            if f"{side}.id" in tables:
                found[f"{side}s"]["table"] = tables[f"{side}.id"]
            for name, vocabulary in self.categories[side].items():
                found[f"{side}.{name}"] = {
                    "ids": vocabulary,
                    "recency": Recency(),
                    "table": tables[f"{side}.{name}"],
                }
        found |= {"pairs": {"lists": self.evidence.co_occurrence}, "hash": {"slots": self.hashed}}
        if self.settings.admit_after > 1:
            found |= {f"admission.{kind}": {"counts": sketch} for kind, sketch in self.admission.items()}
        return found

    def _mark_all_items(self) -> None:
        self.changes.mark("items", self.rows("items"))

    @property
    def popularity(self) -> Popularity:
        """The estimate that corrects the sampling bias."""
        wanted = self.settings.popularity
        if wanted == "auto":
            wanted = "hash" if self.trainer.method.popularity == "hash" else "exact"
        if wanted == "hash":
            return self.hashed
        return self.ageing if self.settings.popularity_half_life else self.exact

    # the public part -------------------------------------------------------------------------------------------------

    def learn(self, events: Iterable[Sequence[Any]], batch_size: int = PipelineSettings.batch_size) -> int:
        """Learn from events in their order, and return their number.

        Args:
            events: (user, item) or (user, item, time) each, time in seconds since the epoch; ids become text.
            batch_size: events of a training step.
        """
        count, left = 0, iter(events)
        while chunk := list(itertools.islice(left, batch_size)):
            users, items = [str(event[0]) for event in chunk], [str(event[1]) for event in chunk]
            times, last = [], float(self.evidence.now_s)
            for event in chunk:  # one without a time comes a second after the one before
                last = float(event[2]) if len(event) > 2 else last + 1
                times.append(last)
            for stretch in self.stretches(MicroBatch(users, items, times)):
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
        """The best items for a user, or for a session without one; best first, each with its score.

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
        query = recommender.user(str(user)) if recent is None else recommender.session([str(i) for i in recent])
        return recommender.recommend([query], k, exclude_seen=exclude_seen)[0]

    def rank(self, user: object, items: Iterable[object]) -> list[Recommendation]:
        """Some items by their score for a user, best first; items that are not known are left out."""
        rows = [self.items.row_of(str(item)) for item in items]
        among = np.unique([row for row in rows if row is not None]).astype(np.int64)
        if not len(among):
            return []
        recommender = Recommender(self)
        return recommender.recommend([recommender.user(str(user))], len(self.items), among=among)[0]

    def save(self, directory: str | Path) -> Path:
        """Write a checkpoint into a directory, for `load`, `streamer recommend`, `inspect` and `export`.

        Raises:
            CheckpointError: it cannot be written.
        """
        arrays, values = self.dense()
        with CheckpointStore(directory) as store:
            return store.save(self.chunks(), arrays, checkpoint_meta(self, values))

    @classmethod
    def load(cls, directory: str | Path, device: str | None = None) -> Learner:
        """The learner of the newest checkpoint in a directory, written by `save` or by `streamer run`.

        Raises:
            CheckpointError: there is none, or none that this version can read.
        """
        checkpoint = CheckpointStore(directory, readonly=True).load()
        if checkpoint is None:
            raise CheckpointError(f"there is no checkpoint in {directory}")
        return cls.from_checkpoint(checkpoint, device)

    # a micro-batch ----------------------------------------------------------------------------------------------------

    def learn_batch(self, batch: MicroBatch, evaluator: Evaluator | None = None, counted: bool = True) -> Learned:
        """Take in one micro-batch of at least one event.

        Events that come again after a crash, and that the counts of all trainers hold already, are trained without
        being counted (`counted` False).

        0. what is over the limits goes;
        1. ids become rows, features are remembered;
        2. each event gets its user's recent items, as of the event;
        3. candidates of the events to be evaluated or ranked, as of the event; the evidence counts the batch;
        4. test, then train: the evaluator ranks;
        5. popularity counts the batch;
        6. ranker and towers learn;
        7. occurrence, and the next cache.

        In a group the batch is this rank's part of the step: 1 and 2 gather what the others read, 6 adds up what all
        have computed, and everything that belongs to items is the same on every rank.
        """
        # 0.
        self.evict()
        known_users, known_items = len(self.users), len(self.items)
        # 1.
        users, new_users = self._users(batch)
        step = self._step(batch, new_users)
        items, own = step.items, step.own
        if not len(items):  # nothing but deletions
            self.retire_items(step.deleted)
            return Learned(items, items, 0, 0, StepResult.empty(), (items, np.empty(0, np.float32)))
        self.see("users", users)
        self.see("items", items)
        for origin in batch.origins:
            self.homes.observe(users[origin.start : origin.stop], origin.partition.number)
        self.changes.mark("items", self.evidence.leaving(len(items)))
        self._set_features("user", *self._user_features(users, step, batch.user_features))
        self._set_features("item", items, step.item_features)
        # 2.
        history, all_users, codes = self._gather(users, step, self.recent.observe(users, items[own], step.times_s[own]))
        self.changes.mark("pairs", _paired(items, history))
        self._see_categories("user", codes)
        self._see_categories("item", self.trainer.model.item.codes(items))
        rows = Batch(step.of_own(users), items, self.recent_items(history), step.times_s, codes)
        # 3.
        evaluated = own[evaluator.choose(len(own))] if evaluator is not None else np.empty(0, np.int64)
        to_evaluate, to_learn = self._observe(rows, history, evaluated, step) if self.settings.rerank else (None, {})
        self.seen.observe(users, items[own])
        # 4.
        if evaluator is not None:
            evaluator(dataclasses.replace(rows, users=all_users), evaluated, to_evaluate)
        # 5.
        self.changes.mark("hash", self.hashed.slots_of(items))
        self.hashed.observe(items)
        self.ageing.observe(items)
        if counted:
            self.count(items)
        # 6.
        result = self._learn(rows, to_learn, step)
        # 7.
        drawn = result.occurrence()
        self._refresh_cache(*drawn, counted)
        self.retire_items(step.deleted)
        if self.group.size > 1 and self.trainer.steps % DIGEST_EVERY == 0:
            self.group.compare(self.digest(), f"after step {self.trainer.steps:,}")
        return Learned(users, items, len(self.users) - known_users, len(self.items) - known_items, result, drawn)

    # what the ranks of a group do together; alone, each of these has nothing to gather -------------------------------

    def _step(self, batch: MicroBatch, new_users: Rows) -> Step:
        """All events that the group trains in this step; their items have rows, and the clock ticks."""
        times_s = self._times(batch)
        if self.group.parts == 1:
            self.clock.tick(times_s)
            every, one = np.arange(len(batch)), np.zeros(len(batch), np.int64)
            return Step(every, one, one, self.rows_of("items", batch.items), times_s, batch.item_features)
        wanted = self.settings.item_tower
        features = batch.item_features if wanted.categorical or wanted.numeric else None
        spans = _spans(batch)
        rows = self.items.known(batch.items)
        partition = np.repeat([span.partition for span in spans], [span.events for span in spans])
        met = sightings([batch.users[k] for k in new_users.tolist()], partition[new_users].tolist())
        step = gather_events(self.group, spans, batch.items, rows, times_s, features, batch.deleted, met)
        if self.group.rank == 0:
            self.keyed.observe(step.sightings)
        self.clock.tick(step.times_s)
        known, new = step.items >= 0, self.rows_of("items", step.new_items)
        step.items[~known] = new[-1 - step.items[~known]]
        return step

    def _users(self, batch: MicroBatch) -> tuple[Rows, Rows]:
        """The rows of our users; and in a group, which of the events are those of new ones.

        Rows of users differ from rank to rank, so there their first vectors depend on the ids.
        """
        if self.group.parts == 1:
            return self.rows_of("users", batch.users), np.empty(0, np.int64)
        new = np.flatnonzero(self.users.known(batch.users) < 0)
        users, table = self.rows_of("users", batch.users), self.trainer.model.tables.get("user.id")
        if table is not None and len(new):
            digests = [hashlib.blake2b(batch.users[k].encode(), digest_size=8).digest() for k in new.tolist()]
            numbers = np.array([int.from_bytes(digest, "little") >> 2 for digest in digests], np.int64)
            table.begin(users[new], numbers)
        return users, new

    def _user_features(
        self, users: Rows, step: Step, features: Sequence[Features | None] | None
    ) -> tuple[Rows, Sequence[Features | None] | None]:
        """What all events say of their users; in a group with numbers in place of rows, which tell all users apart."""
        wanted = self.settings.user_tower
        if self.group.parts == 1 or not (wanted.categorical or wanted.numeric):
            return users, features
        numbers = gather_rows(self.group, step, users) * self.group.size + step.rank
        return numbers, gather_values(self.group, step, features or [None] * len(users))

    def _gather(self, users: Rows, step: Step, history: History) -> tuple[History, Rows, Rows]:
        """The history of all events, of others' as far as it is counted; numbers that tell all users apart; and
        [B, C] the users' categories.
        """
        codes = self.trainer.model.user.codes(users)
        if self.group.parts == 1:
            return history, users, codes
        known = min(max(REACH, self.settings.recent_items), self.recent.length)
        repeated = (history.items[:, known:] == step.items[step.own, None]).any(1)  # counted too, wherever it stands
        again = np.where(repeated, step.items[step.own], -1)
        columns = [users[:, None], again[:, None], history.items[:, :known], history.times_s[:, :known], codes]
        found = gather_rows(self.group, step, np.concatenate(columns, axis=1).astype(np.int32))
        shape = (len(step.items), self.recent.length)
        of_all = History(np.full(shape, -1, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.uint8))
        of_all.items[:, :known], of_all.times_s[:, :known] = np.split(found[:, 2 : 2 + 2 * known], 2, axis=1)
        if known < self.recent.length:
            of_all.items[:, known] = found[:, 1]
        for name, ours in history._asdict().items():
            getattr(of_all, name)[step.own] = ours
        numbers = found[:, 0].astype(np.int64) * self.group.size + step.rank
        return of_all, numbers, found[:, 2 + 2 * known :].astype(np.int64)

    def digest(self) -> bytes:
        """A digest of what all ranks hold alike: everything dense, and some rows of items, others at each step."""
        known, turn = self.items.size, self.trainer.steps // DIGEST_EVERY
        rows = np.unique((turn * DIGEST_ROWS + np.arange(min(DIGEST_ROWS, known))) % max(known, 1))
        found = hashlib.blake2b(digest_size=16)
        arrays, _ = self.dense()
        shared = {name: array for name, array in arrays.items() if not name.startswith(OF_USERS)}
        for arrays in (shared, self.take("items", rows), self.take("pairs", rows)):
            for name in sorted(arrays):
                found.update(np.ascontiguousarray(arrays[name]).tobytes())
        return found.digest()

    def _learn(self, rows: Batch, to_learn: dict[int, Candidates], step: Step) -> StepResult:
        """Ranker and towers learn from the sum of all parts' gradients."""
        view = StreamState(self.popularity, self.cache, self.occurrence, self.items.is_used)
        if self.group.parts == 1:
            for candidates in to_learn.values():
                self.ranker.learn(candidates)
            return self.trainer.step(rows, view)
        prepared = self.trainer.prepare(rows, view)
        ranker_size, shares = self.ranker.gradient_size if self.settings.rerank else 0, {}
        nothing = np.zeros(ranker_size, np.float32)
        for part in self.group.own:
            if len(events := step.events_of([part])):
                share = self.trainer.share(prepared, events)
                ranked = self.ranker.gradients(to_learn[part]) if part in to_learn else nothing
                shares[part] = Share(share.rows.cpu().numpy(), np.append(share.vector.cpu().numpy(), ranked))

        def touched(parts: Sequence[int]) -> Rows:
            return prepared.touched_by(step.events_of(parts))

        shape = (prepared.vectors.shape[0], prepared.vectors.shape[1])
        total = self.group.total(shares, touched, shape, self.trainer.vector_size(prepared) + ranker_size)
        vector, ranked = np.split(total.vector, [len(total.vector) - ranker_size])
        if self.settings.rerank:
            self.ranker.apply(ranked)
        result = self.trainer.finish(prepared, torch.from_numpy(total.rows), torch.from_numpy(vector))
        self.trainer.apply(result.gradients)
        return result

    def stretches(self, batch: MicroBatch) -> Iterator[MicroBatch]:
        """What of a batch is to be learned, a stretch at a time: learn each before the next.

        Events of ids that are not admitted yet are left out, and counted in the batch. So are those of the catalogue,
        which take effect when the others are learned, and before an event of their item that comes after.
        """
        if self.group.parts > 1:
            yield from self._stretch_of_group(batch)
            return
        admitted = self._admitted(batch)
        batch.not_admitted, batch.catalogue = len(batch) - int(admitted.sum()), batch.users.count(NO_USER)
        if batch.learned == len(batch):
            yield from [batch] if len(batch) else []
            return
        stretch: list[int] = []
        catalogue: dict[str, int] = {}  # the event of each item
        for k in np.flatnonzero(admitted).tolist():
            if batch.items[k] in catalogue:
                yield from [batch.only(stretch)] if stretch else []
                self.learn_catalogue(batch.only(list(catalogue.values())))
                stretch, catalogue = [], {}
            if batch.users[k] == NO_USER:
                catalogue[batch.items[k]] = k
            else:
                stretch.append(k)
        yield from [batch.only(stretch)] if stretch else []
        if catalogue:
            self.learn_catalogue(batch.only(list(catalogue.values())))

    def learn_catalogue(self, batch: MicroBatch) -> None:
        """Take in catalogue events of distinct items: retire those that are deleted, create and describe the others.

        What an event does not say leaves what is known. An item of which nothing is said waits for its first event.
        Until then, the vector of one that is described is that of its features: its id adds nothing.
        """
        self.evict()
        features = batch.item_features or [None] * len(batch)
        self.retire_items([item for item, said in zip(batch.items, features, strict=True) if said is None])
        said = [k for k, of_item in enumerate(features) if of_item]
        if not said:
            return
        self.clock.tick(self._times(batch))
        rows = self.rows_of("items", [batch.items[k] for k in said])
        self.see("items", rows)
        given = [features[k] or {} for k in said]
        self._set_features("item", rows, given)
        titles = {row: str(f[TITLE]) for row, f in zip(rows.tolist(), given, strict=True) if TITLE in f}
        self.titles.set(titles)
        model = self.trainer.model
        self.find_untouched(rows)
        if model.item.settings.ids:
            model.tables["item.id"].begin_at_zero(rows[self.are_untouched(rows)])

    def find_untouched(self, rows: Rows) -> None:
        """See which of some items are described, and were had by nobody."""
        found = (self.exact.counts(rows) == 0) & self.trainer.model.item.features.are_known(rows)
        self._touch(rows)
        self.untouched = np.union1d(self.untouched, rows[found])

    def are_untouched(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each item is one that the catalogue describes and nobody has had yet."""
        if not len(self.untouched):
            return np.zeros(rows.shape, np.bool_)
        at = np.searchsorted(self.untouched, rows)
        found: NDArray[np.bool_] = self.untouched[np.minimum(at, len(self.untouched) - 1)] == rows
        return found

    def are_reachable(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each item can be recommended: somebody has had it, or it is untouched."""
        found: NDArray[np.bool_] = (self.exact.counts(rows) > 0) | self.are_untouched(rows)
        return found

    @property
    def reachable_items(self) -> int:
        """One more than the largest row of an item that can be recommended."""
        return max(self.exact.size, int(self.untouched[-1]) + 1 if len(self.untouched) else 0)

    def _stretch_of_group(self, batch: MicroBatch) -> Iterator[MicroBatch]:
        """Our events of a step, in which every rank takes part; items are retired after it."""
        if batch.others:
            admitted = self._admitted(batch)
            kept = [k for k in np.flatnonzero(admitted).tolist() if batch.users[k] != NO_USER]
            stretch = batch.only(kept) if len(kept) < len(batch) else batch
            pairs = zip(batch.users, batch.items, strict=True)
            stretch.deleted = [item for user, item in pairs if user == NO_USER]
            batch.not_admitted, batch.catalogue = len(batch) - int(admitted.sum()), len(stretch.deleted)
            yield stretch

    def _admitted(self, batch: MicroBatch) -> NDArray[np.bool_]:
        """Whether user and item of each event have come often enough; those without a user pass.

        In a group every rank counts what is new to any of them, in the order of the stream.
        """
        admitted = np.ones(len(batch), np.bool_)
        if self.settings.admit_after == 1:
            return admitted
        for kind, ids in (("users", batch.users), ("items", batch.items)):
            known = self._vocabulary(kind).known(ids)
            new = [k for k in np.flatnonzero(known < 0).tolist() if batch.users[k] != NO_USER]
            of_new, own = [ids[k] for k in new], np.arange(len(new))
            if self.group.parts > 1:
                of_new, own = gather_ids(self.group, _spans(batch.only(new)), of_new)
            sketch = self.admission[kind]
            every = sketch.halves(len(of_new))
            self.changes.mark(f"admission.{kind}", sketch.rows() if every else sketch.slots_of(of_new))
            admitted[new] &= sketch.admit(of_new)[own]
        return admitted

    def rows_of(self, kind: str, ids: Sequence[str]) -> Rows:
        """The rows of users or items; a new id gets one."""
        vocabulary = self._vocabulary(kind)
        known = vocabulary.known(ids)
        self.changes.mark(kind, known[known >= 0])
        rows = vocabulary.rows(ids, lambda free: self.changes.mark(kind, free)) if (known < 0).any() else known
        self.trainer.model.grow(self.users.size, self.items.size)
        return rows

    def see(self, kind: str, rows: Rows) -> None:
        """Note that rows are seen in this step."""
        self.changes.mark(kind, rows)
        self._parts[kind]["recency"].see(rows, self.clock.step)

    def count(self, items: Rows) -> None:
        """Events of these items have come: the exact counts, which trainers share."""
        self.exact.observe(items)
        self._touch(items)

    def _touch(self, items: Rows) -> None:
        """These items are not among the untouched any more."""
        if len(gone := items[self.are_untouched(items)]):
            self.untouched = np.delete(self.untouched, np.searchsorted(self.untouched, gone))

    def _refresh_cache(self, items: Rows, counts: NDArray[np.float32], counted: bool) -> None:
        if not self.trainer.method.resamples:
            return
        self.occurrence.step()
        self.changes.mark("items", items)
        if counted:
            self.occurrence.add(items, counts)
        if self.trainer.method.extra != "cache":
            return
        if self.settings.cache_scope == "touched":
            self.cache = self.occurrence.draw_among(np.unique(items), self.settings.cache_size, self._draws)
        else:
            drawn = self.occurrence.draw(self.settings.cache_size, self._draws, self.items.size)
            self.cache = drawn[self.items.is_used(drawn)]

    def _set_features(self, side: str, rows: Rows, features: Sequence[Features | None] | None) -> None:
        """Remember the features that the model uses; what an event does not say leaves what is known.

        In a group `rows` of users are those of `_user_features`: categories and the scale of numbers are shared.
        """
        tower, group = getattr(self.trainer.model, side), self.group
        wanted = tower.settings
        if features is None or not (wanted.categorical or wanted.numeric):
            return
        told = _merged(rows, features)
        at = np.fromiter(told, np.int64, len(told))
        own, sample = np.ones(len(at), np.bool_), None
        codes = np.zeros((len(at), len(wanted.categorical)), np.int64)
        numbers = np.full((len(at), len(wanted.numeric)), np.nan, np.float32)
        for c, name in enumerate(wanted.categorical):
            given = [(k, str(f[name])) for k, f in enumerate(told.values()) if f.get(name, "") != ""]
            codes[[k for k, _ in given], c] = self._categories(f"{side}.{name}", [value for _, value in given])
        for c, name in enumerate(wanted.numeric):
            numbers[:, c] = [_number(f.get(name, math.nan)) for f in told.values()]
        if side == "user" and group.parts > 1:
            own, at, sample = at % group.size == group.rank, at // group.size, numbers
        known = tower.codes(at[own])
        tower.features.set(at[own], np.where(codes[own] > 0, codes[own], known), numbers[own], sample)

    def _see_categories(self, side: str, codes: Rows) -> None:
        """Events have these categories [B, C]."""
        for name, of_feature in zip(self.categories[side], codes.T, strict=True):
            self.see(f"{side}.{name}", of_feature[of_feature > 0])

    def _categories(self, kind: str, values: list[str]) -> Rows:
        return self._vocabulary(kind).rows(values, lambda free: self.changes.mark(kind, free))

    # limits -----------------------------------------------------------------------------------------------------------

    def evict(self) -> None:
        """Retire what is over the limits, and what was not seen for longer than it may be; a few thousand at once."""
        settings, limits = self.settings, self.limits
        self._evict("users", limits.users, min(limits.users // 64, MOST_AT_ONCE), settings.user_ttl_s)
        self._evict("items", limits.items, min(limits.items // 64, MOST_AT_ONCE), settings.item_ttl_s)
        for side, vocabularies in self.categories.items():
            for name in vocabularies:
                self._evict(f"{side}.{name}", limits.categories, limits.categories // 8)  # looks at all rows of a side
        oldest = [parts["recency"].step_of_oldest for parts in self._parts.values() if "recency" in parts]
        self.clock.forget_before(min((step for step in oldest if step is not None), default=0))

    def _evict(self, kind: str, limit: int, margin: int, ttl_s: float = 0.0) -> None:
        recency, clock = self._parts[kind]["recency"], self.clock
        over, step = len(self._vocabulary(kind)) - limit, recency.step_of_oldest
        if over > 0:
            rows = recency.oldest(over + margin)
            self.evicted_age_s[kind] = clock.now_s - clock.time_of(int(recency.last_steps(rows[-1:])[0]))
            self.retire(kind, rows, "limit")
        elif ttl_s and step is not None and clock.time_of(step) + ttl_s < clock.now_s:
            rows = recency.oldest(MOST_AT_ONCE)
            late = [clock.time_of(step) + ttl_s < clock.now_s for step in recency.last_steps(rows).tolist()]
            self.retire(kind, rows[late], "ttl")

    def retire_items(self, ids: Sequence[str]) -> None:
        """Retire items that do not exist any more; those that are not known are passed over."""
        rows = np.unique(self.items.known(ids))
        self.retire("items", rows[rows >= 0], "deleted")

    def retire(self, kind: str, rows: Rows, reason: str) -> None:
        """Retire rows, each given once, and count why."""
        if len(rows):
            self.evicted[kind, reason] += len(rows)
            for hook in self.on_retire:
                hook(kind, rows, reason)
            self.forget(kind, rows)

    def forget(self, kind: str, rows: Rows) -> None:
        """Clear rows of a kind everywhere, and give them back; an id that comes back is new.

        Lists that hold a retired item are swept bit by bit (`streamer.model.retired`).
        """
        self.changes.mark(kind, rows)
        for part in self._parts[kind].values():
            part.forget(rows)
        if kind == "items":
            self.changes.mark("pairs", rows)
            self.evidence.co_occurrence.forget(rows)
            self.cache = self.cache[~np.isin(self.cache, rows)]
            self._touch(rows)
            self._sweep(len(rows))
        elif kind == "users":
            self._reuse(kind, rows)
        else:
            side, _, name = kind.partition(".")
            tower = getattr(self.trainer.model, side)
            feature = tower.settings.categorical.index(name)
            having = tower.features.with_codes(feature, rows)
            self.changes.mark(f"{side}s", having)
            tower.features.forget_codes(feature, having)

    def _sweep(self, retired: int) -> None:
        """Take retired items out of some lists; when all were swept, rows that no list holds are used again."""
        items, users = self.retired.share(retired, self.items.size, self.users.size)
        items, users = (
            self.evidence.co_occurrence.with_retired(items),
            np.union1d(self.recent.with_retired(users), self.seen.with_retired(users)),
        )
        self.changes.mark("pairs", items)
        self.changes.mark("users", users)
        self.evidence.co_occurrence.sweep(items)
        self.recent.sweep(users)
        self.seen.sweep(users)
        if self.retired.is_swept(self.items.size):
            free = self.retired.unreferenced()
            self._reuse("items", free)
            self.changes.mark("items", self.retired.rows())
            self.items.give_back(free)
            self.retired.begin_sweep()

    def sweep_users(self) -> None:
        """If a sweep is under way, take retired items out of all users' lists: others' users are among them now."""
        if not self.retired.swept:
            return
        users = np.arange(self.users.size)
        self.recent.sweep(self.recent.with_retired(users))
        self.seen.sweep(self.seen.with_retired(users))
        self.retired.at[1] = len(users)

    def _reuse(self, kind: str, rows: Rows) -> None:
        for hook in self.on_reuse if len(rows) else ():
            hook(kind, rows)

    def memory(self) -> dict[str, dict[str, int]]:
        """Bytes in use, by kind of rows and part; pairs and retired items are those of items."""
        return {kind: {name: part.nbytes for name, part in parts.items()} for kind, parts in self._parts.items()}

    def age_s(self, kind: str) -> int:
        """How long ago, by event time, the id of a kind was seen that was not seen for longest."""
        step = self._parts[kind]["recency"].step_of_oldest
        return 0 if step is None else self.clock.now_s - self.clock.time_of(step)

    # candidates -------------------------------------------------------------------------------------------------------

    def user_features(self, features: Features) -> Arrays:
        """Features of a user who has no row, as those of a row: what the model does not know is left out."""
        wanted = self.settings.user_tower
        numbers = [_number(features.get(name, math.nan)) for name in wanted.numeric]
        codes = [self.categories["user"][name].row_of(str(features.get(name, ""))) or 0 for name in wanted.categorical]
        given = np.array([numbers], np.float32).reshape(1, -1)
        return {
            "codes": np.array([codes], np.int64).reshape(1, -1),
            "numbers": np.nan_to_num(given),
            "known": ~np.isnan(given),
        }

    def _observe(
        self, rows: Batch, history: History, evaluated: Rows, step: Step
    ) -> tuple[Candidates, dict[int, Candidates]]:
        """Candidates of the events to be evaluated, and by part of those to learn from, as of each; all are counted.

        Of the former, as of users who are served, the items nearest by the towers are candidates too. That is a search
        among all items; the ranker learns with those alone that nobody has had yet, of which nothing else would make
        candidates. So what is learned does not depend on what is evaluated.
        """
        learned = np.arange(0, len(rows), -(-len(rows) // self.settings.ranker_events))
        learned = learned[step.rank[learned] == self.group.rank]
        both = np.concatenate([evaluated, learned])
        order = np.argsort(both, kind="stable")
        wanted, is_evaluated = both[order], order < len(evaluated)
        nearest = np.full((len(wanted), self.settings.retrieved_items), -1)
        nearest[is_evaluated] = self._nearest(rows.only(evaluated), nearest.shape[1])
        untouched = self._some_untouched()
        if len(untouched) and len(learned):
            asked, count = rows.only(learned), min(NEAR_UNTOUCHED, nearest.shape[1])
            near = self.retriever.nearest_among(untouched, asked.users, asked.recent, count)
            nearest[~is_evaluated, : near.shape[1]] = near
        assert rows.times_s is not None
        found = self.evidence.observe(rows.items, rows.times_s, history, wanted, nearest)
        found.mark_seen(*self.seen.before(rows.users, rows.items, wanted))

        def some(chosen: NDArray[np.bool_]) -> Candidates:
            candidates = found.only(np.flatnonzero(chosen))
            self._add_towers(candidates, rows.only(wanted[chosen]))
            return candidates

        part = np.where(is_evaluated, -1, step.part[wanted])
        return some(is_evaluated), {int(k): some(part == k) for k in np.unique(part[~is_evaluated])}

    def _times(self, batch: MicroBatch) -> Rows:
        """Seconds since the epoch; events without a time come a second after the one before."""
        if batch.timestamps_s:
            return np.clip(batch.timestamps_s, 0, LAST_S).astype(np.int64)
        return self.evidence.now_s + 1 + np.arange(len(batch))

    def recent_items(self, history: History) -> Recent | None:
        """What the user tower reads of it."""
        length = self.settings.recent_items
        return np.ascontiguousarray(history.items[:, :length]) if length else None

    def _nearest(self, rows: Batch, count: int | Rows) -> Rows:
        """[n, most] the items nearest to the users by the towers, `count` of each; -1 where one cannot be reached."""
        most, known = int(np.max(count, initial=0)), self.reachable_items
        found = np.full((len(rows), most), -1)
        if len(rows) and known and most:
            best, _ = self.retriever.top(self.retriever.items(known), rows.users, most, rows.recent)
            wanted = np.arange(best.shape[1]) < np.reshape(count, (-1, 1))
            found[:, : best.shape[1]] = np.where(wanted & self.are_reachable(best), best, -1)
        return found

    def _some_untouched(self) -> Rows:
        """The untouched items, or a sample of them; the same on every rank of a group."""
        if len(self.untouched) <= MOST_UNTOUCHED:
            return self.untouched
        return self.untouched[self._draws.choice(len(self.untouched), MOST_UNTOUCHED, replace=False, shuffle=False)]

    def _add_towers(self, candidates: Candidates, rows: Batch) -> None:
        if len(rows):
            found = self.retriever.similarities(rows.users, rows.recent, candidates.first, candidates.items)
            candidates.features[:, TOWERS] = found

    def candidates(self, rows: Batch, history: History, extra: Rows | None = None, least: int | Rows = 0) -> Candidates:
        """Candidates of some users, described by what was learned so far; nothing is counted.

        Args:
            rows: users, targets (-1 for none), and times (None: that of the latest event).
            history: of the users.
            extra: [n, x] further candidates of each, -1 for none.
            least: how many candidates each must have, if there are as many items; [n] or the same for all.
        """
        rows = dataclasses.replace(rows, recent=self.recent_items(history))
        nearest = self._nearest(rows, np.maximum(least, self.settings.retrieved_items))
        extra = nearest if extra is None else np.concatenate([nearest, extra], axis=1)
        found = self.evidence.candidates(history, extra, rows.items, rows.times_s)
        self._add_towers(found, rows)
        return found

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, device: str | None = None) -> Learner:
        """The learner as it was when a checkpoint was written, with the settings it had then.

        Raises:
            IncompatibleCheckpoint: another version of Streamer wrote it.
        """
        settings = checkpoint_settings(checkpoint)
        learner = cls(dataclasses.replace(settings, device=device) if device else settings)
        learner.restore(checkpoint.chunks(), checkpoint.arrays(), checkpoint.meta["learner"])
        return learner

    # the recovery unit -----------------------------------------------------------------------------------------------

    def kinds(self) -> tuple[str, ...]:
        """The kinds of rows that everything belongs to, but for what is `dense`."""
        return tuple(self._parts)

    def rows(self, kind: str) -> Rows:
        """The rows of a kind that are in use, ascending."""
        if "ids" not in self._parts[kind] and kind != "pairs":
            found: Rows = next(iter(self._parts[kind].values())).rows()
            return found
        return np.arange(self._vocabulary(kind).size)

    def used(self, kind: str) -> NDArray[np.bool_]:
        """Of each row of a kind, whether it is in use: what `rows` says, at a fraction of its memory."""
        if "ids" not in self._parts[kind] and kind != "pairs":
            return marked(self.rows(kind))
        return np.ones(self._vocabulary(kind).size, np.bool_)

    def _vocabulary(self, kind: str) -> Vocabulary:
        found: Vocabulary = self._parts["items" if kind == "pairs" else kind]["ids"]
        return found

    def take(self, kind: str, rows: Rows) -> Arrays:
        """A copy of what rows of a kind hold."""
        taken = {name: part.take(rows) for name, part in self._parts[kind].items()}
        return {f"{name}.{key}": array for name, arrays in taken.items() for key, array in arrays.items()}

    def put(self, kind: str, rows: Rows, arrays: Arrays) -> None:
        """Make rows of a kind hold what `take` returned of them.

        Raises:
            ValueError, KeyError: they are those of a learner with other settings.
        """
        for name, part in self._parts[kind].items():
            part.put(rows, _of(arrays, name))

    def dense(self) -> tuple[Arrays, dict[str, Any]]:
        """A copy of what belongs to no row: arrays, and plain values."""
        arrays, values = self.trainer.dense()
        found = {f"trainer.{name}": array for name, array in arrays.items()}
        for kind, parts in self._parts.items():
            for name, part in parts.items():
                found |= {f"{kind}.{name}.{key}": array for key, array in part.dense().items()}
        found |= {f"ranker.{name}": array.copy() for name, array in self.ranker.state().items()}
        found |= {f"clock.{name}": array for name, array in self.clock.dense().items()}
        found["cache"] = self.cache.copy()
        own = {"draws": self._draws.bit_generator.state, "limits": list(self.limits), "fixed": self.settings.fixed()}
        return found, {"trainer": values, **own}

    def load_dense(self, arrays: Arrays, values: dict[str, Any]) -> None:
        """Take over what `dense` returned, when all rows are there.

        Raises:
            ValueError, KeyError: it is that of a learner with other settings.
        """
        self.trainer.load_dense(_of(arrays, "trainer"), values["trainer"])
        for kind, parts in self._parts.items():
            for name, part in parts.items():
                part.load_dense(_of(arrays, f"{kind}.{name}"))
        self.ranker.load_state(_of(arrays, "ranker"))
        self.clock.load_dense(_of(arrays, "clock"))
        self.cache = arrays["cache"].copy()
        self.limits = limits_of(self.settings, Limits(*values["limits"]))
        self._draws.bit_generator.state = values["draws"]

    def check_settings(self, values: dict[str, Any]) -> None:
        """See that the values that `dense` returned are of a learner with these settings.

        Raises:
            ValueError: they are not; the message says which differ.
        """
        theirs, ours = values.get("fixed", {}), self.settings.fixed()
        if differ := [f"{n} was {theirs.get(n)} and is {ours[n]} now" for n in ours if theirs.get(n) != ours[n]]:
            raise ValueError("; ".join(differ))

    def chunks(self) -> Iterator[Chunk]:
        """A copy of every row, in slices; nothing may be learned meanwhile."""
        for kind in self.kinds():
            rows = self.rows(kind)
            for k in range(0, len(rows), CHUNK_ROWS):
                at = rows[k : k + CHUNK_ROWS]
                yield Chunk(kind, at, self.take(kind, at))

    def restore(self, chunks: Iterable[Chunk], arrays: Arrays, values: dict[str, Any]) -> None:
        """Become, as a new learner, the one whose rows these are, and whose `dense` these arrays and values.

        Raises:
            IncompatibleCheckpoint: it had other settings.
        """
        try:
            self.check_settings(values)
            for chunk in chunks:
                self.put(chunk.kind, chunk.rows, chunk.arrays)
            self.load_dense(arrays, values)
            self.find_untouched(self.items.used)
        except (KeyError, ValueError) as error:
            raise IncompatibleCheckpoint(
                f"the checkpoint does not fit these settings: {error}. "
                "Start with the settings it was made with, or with another --checkpoint-dir"
            ) from error


def checkpoint_meta(learner: Learner, values: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says beside rows and arrays; a run adds its offsets and accounting."""
    return {
        "settings": msgspec.to_builtins(learner.settings),
        "learner": values,
        "positions": [],
        "accounting": Accounting().to_json(),
        "threads": torch.get_num_threads(),
        "saved_at": time.time(),
    }


def learner_settings(settings: LearnerSettings | None, changes: dict[str, Any]) -> LearnerSettings:
    """The settings of a learner, from those of a whole run or from the defaults, with some changed.

    Raises:
        SettingsError: there is no such setting.
    """
    if unknown := [name for name in changes if name not in LearnerSettings.all()]:
        known = ", ".join(LearnerSettings.all())
        raise SettingsError([f"a learner has no setting {name!r}: choose among {known}" for name in unknown])
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
        raise IncompatibleCheckpoint(f"{checkpoint.path} was written by another version: {error}") from error


def _spans(batch: MicroBatch) -> list[Span]:
    """Which events of a batch are whose."""
    return [Span(*origin.partition, origin.stop - origin.start) for origin in batch.origins]


def _paired(items: Rows, history: History) -> Rows:
    """Items whose lists of neighbours change with these events."""
    recent = history.items[:, :REACH]
    return np.concatenate([items, recent[recent >= 0].astype(np.int64)])


def _merged(rows: Rows, features: Sequence[Features | None]) -> dict[int, Features]:
    """What the events of a batch say of each row; the later event wins."""
    told: dict[int, Features] = {}
    for row, given in zip(rows.tolist(), features, strict=True):
        if given:
            told.setdefault(row, {}).update(given)
    return told


def _number(value: str | float) -> float:
    """A feature as a number that a float32 holds; NaN if it is not one. Integers are text: they may be categories."""
    try:
        number = float(_TRUTH.get(value, value))  # type: ignore[arg-type]
    except ValueError:
        return math.nan
    return number if abs(number) <= LARGEST_NUMBER else math.nan


def _of(arrays: Arrays, name: str) -> Arrays:
    """Those whose names begin with this one and a dot, by the rest of their names."""
    prefix = f"{name}."
    return {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}
