"""Everything that is learned from a stream, and how one micro-batch changes it.

The learner is one recovery unit: id maps, users' recent items, what is counted, popularity, occurrence, cache, weights,
optimizer and random state are saved and restored together. It knows nothing of where events come from.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from streamer.accounting import Accounting
from streamer.checkpoint import Checkpoint, CheckpointStore, pack_strings, unpack_strings
from streamer.errors import CheckpointError, IncompatibleCheckpoint, SettingsError
from streamer.event import Features
from streamer.ingest.batcher import MicroBatch
from streamer.model.batch import Batch, Recent, Rows, StreamState
from streamer.model.device import resolve_device
from streamer.model.occurrence import Occurrence
from streamer.model.popularity import ExactPopularity, HashPopularity, Popularity
from streamer.model.ranking.evidence import TOWER, Candidates, Evidence
from streamer.model.ranking.ranker import Ranker
from streamer.model.ranking.recent import History, RecentItems
from streamer.model.ranking.seen_items import UserItems
from streamer.model.retrieval import Retriever
from streamer.model.settings import LearnerSettings
from streamer.model.trainer import StepResult, Trainer
from streamer.recommender import Recommendation, Recommender
from streamer.settings import PipelineSettings
from streamer.vocabulary import Vocabulary

State = dict[str, Any]

FORMAT = 3
"""Of what a checkpoint holds; one of another format cannot be read."""

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


LAST_S = 2**31 - 1
"""Times beyond this count as this: they are kept in 32 bits."""
LARGEST_SCORE = 50.0
"""An inner product beyond this, or one that is not a number, does not ruin the ranker."""


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
        self.users, self.items = Vocabulary(), Vocabulary()
        self.categories = {
            side: {name: Vocabulary(first=1) for name in tower.categorical}
            for side, tower in (("user", settings.user_tower), ("item", settings.item_tower))
        }
        self.recent = RecentItems(max(settings.recent_items, settings.history if settings.rerank else 0))
        self.evidence = Evidence(settings.co_occurring_items)
        self.seen = UserItems()
        self.ranker = Ranker(settings.ranker_learning_rate, settings.seed)
        self.retriever = Retriever(self.trainer)
        self.exact = ExactPopularity()
        self.ageing = ExactPopularity(settings.popularity_half_life or None)
        self.hashed = HashPopularity(
            slots=settings.hash_slots, alpha=settings.hash_alpha, clock=settings.hash_clock, seed=settings.seed
        )
        self.occurrence = Occurrence(settings.occurrence_half_life or None)
        self.cache: Rows = np.empty(0, np.int64)
        self._draws = np.random.default_rng([settings.seed, 2])

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
            self.learn_batch(MicroBatch(users, items, times))
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
        tensors, values = self.snapshot()
        with CheckpointStore(directory) as store:
            return store.save(tensors, checkpoint_meta(self, values))

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

        1. ids become rows, features are remembered;
        2. each event gets its user's recent items, as of the event;
        3. candidates of the events to be evaluated or ranked, as of the event; the evidence counts the batch;
        4. test, then train: the evaluator ranks;
        5. the ranker learns;
        6. popularity counts the batch, and the towers learn;
        7. occurrence, and the next cache.
        """
        known_users, known_items = len(self.users), len(self.items)
        # 1.
        users, items = self.users.rows(batch.users), self.items.rows(batch.items)
        self.trainer.model.grow(len(self.users), len(self.items))
        self._set_features("user", users, batch.user_features)
        self._set_features("item", items, batch.item_features)
        # 2.
        times_s = self._times(batch)
        history = self.recent.observe(users, items, times_s)
        rows = Batch(users, items, self.recent_items(history), times_s)
        # 3.
        evaluated = evaluator.choose(len(rows)) if evaluator is not None else np.empty(0, np.int64)
        to_evaluate, to_learn = self._observe(rows, history, evaluated) if self.settings.rerank else (None, None)
        self.seen.observe(users, items)
        # 4.
        if evaluator is not None:
            evaluator(rows, evaluated, to_evaluate)
        # 5.
        if to_learn is not None:
            self.ranker.learn(to_learn)
        # 6.
        self.hashed.observe(items)
        self.ageing.observe(items)
        if counted:
            self.count(items)
        result = self.trainer.step(rows, StreamState(self.popularity, self.cache, self.occurrence))
        # 7.
        drawn = result.occurrence()
        self._refresh_cache(*drawn, counted)
        return Learned(users, items, len(self.users) - known_users, len(self.items) - known_items, result, drawn)

    def count(self, items: Rows) -> None:
        """Events of these items have come: the exact counts, which trainers share."""
        self.exact.observe(items)

    def _refresh_cache(self, items: Rows, counts: NDArray[np.float32], counted: bool) -> None:
        if not self.trainer.method.resamples:
            return
        self.occurrence.step()
        if counted:
            self.occurrence.add(items, counts)
        if self.trainer.method.extra != "cache":
            return
        if self.settings.cache_scope == "touched":
            self.cache = self.occurrence.draw_among(np.unique(items), self.settings.cache_size, self._draws)
        else:
            self.cache = self.occurrence.draw(self.settings.cache_size, self._draws, len(self.items))

    def _set_features(self, side: str, rows: Rows, features: Sequence[Features | None] | None) -> None:
        """Remember the features that the model uses; what an event does not say leaves what is known."""
        tower = getattr(self.trainer.model, side)
        wanted = tower.settings
        if features is None or not (wanted.categorical or wanted.numeric):
            return
        told = _merged(rows, features)
        at = np.fromiter(told, np.int64, len(told))
        codes = np.zeros((len(at), len(wanted.categorical)), np.int64)
        for c, name in enumerate(wanted.categorical):
            codes[:, c] = tower.features.codes(at, c)
            given = [(k, str(f[name])) for k, f in enumerate(told.values()) if f.get(name, "") != ""]
            codes[[k for k, _ in given], c] = self.categories[side][name].rows([value for _, value in given])
        numbers = np.full((len(at), len(wanted.numeric)), np.nan, np.float32)
        for c, name in enumerate(wanted.numeric):
            numbers[:, c] = [_number(f.get(name, math.nan)) for f in told.values()]
        tower.features.set(at, codes, numbers)

    def _observe(self, rows: Batch, history: History, evaluated: Rows) -> tuple[Candidates, Candidates]:
        """Candidates of the events to be evaluated, and of those to learn from, as of each; all events are counted.

        Of the former, as of users who are served, the items nearest by the towers are candidates too. That is a search
        among all items; the ranker learns without. So what is learned does not depend on what is evaluated.
        """
        learned = np.arange(0, len(rows), -(-len(rows) // self.settings.ranker_events))
        both = np.concatenate([evaluated, learned])
        order = np.argsort(both, kind="stable")
        wanted, is_evaluated = both[order], order < len(evaluated)
        nearest = np.full((len(wanted), self.settings.retrieved_items), -1)
        nearest[is_evaluated] = self._nearest(rows.only(evaluated), nearest.shape[1])
        assert rows.times_s is not None
        found = self.evidence.observe(rows.items, rows.times_s, history, wanted, nearest)
        found.mark_seen(*self.seen.before(rows.users, rows.items, wanted))
        self._add_towers(found, rows.only(wanted))
        return found.only(np.flatnonzero(is_evaluated)), found.only(np.flatnonzero(~is_evaluated))

    def _times(self, batch: MicroBatch) -> Rows:
        """Seconds since the epoch; events without a time come a second after the one before."""
        if batch.timestamps_s:
            return np.clip(batch.timestamps_s, 0, LAST_S).astype(np.int64)
        return self.evidence.now_s + 1 + np.arange(len(batch))

    def recent_items(self, history: History) -> Recent | None:
        """What the user tower reads of it."""
        length = self.settings.recent_items
        return np.ascontiguousarray(history.items[:, :length]) if length else None

    def _nearest(self, rows: Batch, count: int) -> Rows:
        """[n, count] the items nearest to the users by the towers; -1 where there are fewer."""
        found = np.full((len(rows), count), -1)
        known = self.exact.size
        if len(rows) and known and count:
            best, _ = self.retriever.top(self.retriever.items(known), rows.users, count, rows.recent)
            found[:, : best.shape[1]] = best
        return found

    def _add_towers(self, candidates: Candidates, rows: Batch) -> None:
        if len(rows):
            products = self.retriever.inner_products(rows.users, rows.recent, candidates.first, candidates.items)
            candidates.features[:, TOWER] = np.clip(np.nan_to_num(products), -LARGEST_SCORE, LARGEST_SCORE)

    def candidates(self, rows: Batch, history: History, extra: Rows | None = None, least: int = 0) -> Candidates:
        """Candidates of some users, described by what was learned so far; nothing is counted.

        Args:
            rows: users, targets (-1 for none), and times (None: that of the latest event).
            history: of the users.
            extra: [n, x] further candidates of each, -1 for none.
            least: how many candidates each must have, if there are as many items.
        """
        rows = dataclasses.replace(rows, recent=self.recent_items(history))
        nearest = self._nearest(rows, max(least, self.settings.retrieved_items))
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
        learner.restore(checkpoint.tensors, checkpoint.meta["learner"])
        return learner

    # the recovery unit -----------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """A copy of everything, on the host: tensors by name, and plain values. Training may go on at once."""
        tensors, values = self.trainer.state()
        state: State = {f"trainer.{name}": t.detach().to("cpu", copy=True) for name, t in tensors.items()}
        for name, part in self._parts().items():
            state |= {f"{name}.{key}": np.array(value) for key, value in part.state().items()}
        state["cache"] = np.array(self.cache)
        for name, vocabulary in self._vocabularies().items():
            state |= pack_strings(vocabulary.ids, f"ids.{name}")
        return state, {"trainer": values, "draws": self._draws.bit_generator.state, "fixed": self.settings.fixed()}

    def restore(self, state: State, values: dict[str, Any]) -> None:
        """Take over a snapshot.

        Raises:
            IncompatibleCheckpoint: it was made with other settings.
        """
        theirs, ours = values.get("fixed", {}), self.settings.fixed()
        differ = [f"{n} was {theirs.get(n)} and is {ours[n]} now" for n in ours if theirs.get(n) != ours[n]]
        try:
            if differ:
                raise ValueError("; ".join(differ))
            tensors = {k.removeprefix("trainer."): _tensor(v) for k, v in state.items() if k.startswith("trainer.")}
            self.trainer.load_state(tensors, values["trainer"])
            for name, part in self._parts().items():
                part.load_state({key: _array(state[f"{name}.{key}"]) for key in part.state()})
            self.cache = _array(state["cache"]).copy()
            for name, vocabulary in self._vocabularies().items():
                vocabulary.load(unpack_strings(state, f"ids.{name}"))
            self._draws.bit_generator.state = values["draws"]
        except (KeyError, ValueError) as error:
            raise IncompatibleCheckpoint(
                f"the checkpoint does not fit these settings: {error}. "
                "Start with the settings it was made with, or with another --checkpoint-dir"
            ) from error

    def _parts(self) -> dict[str, Any]:
        return {
            "popularity.exact": self.exact,
            "popularity.ageing": self.ageing,
            "popularity.hash": self.hashed,
            "occurrence": self.occurrence,
            "recent": self.recent,
            "evidence": self.evidence,
            "seen": self.seen,
            "ranker": self.ranker,
        }

    def _vocabularies(self) -> dict[str, Vocabulary]:
        found = {"users": self.users, "items": self.items}
        for side, vocabularies in self.categories.items():
            found |= {f"{side}.{name}": vocabulary for name, vocabulary in vocabularies.items()}
        return found


def checkpoint_meta(learner: Learner, values: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says beside the tensors of a snapshot; a run adds its offsets and accounting."""
    return {
        "format": FORMAT,
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


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def _array(value: Any) -> NDArray[Any]:
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
