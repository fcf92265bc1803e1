"""Everything that is learned from a stream, and how one micro-batch changes it.

The learner is one recovery unit: id maps, users' recent items, items' neighbours, popularity, occurrence, cache,
weights, optimizer and random state are saved and restored together. It knows nothing of where events come from.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from streamer.model.co_occurrence import CoOccurrence
from streamer.model.device import resolve_device
from streamer.model.occurrence import Occurrence
from streamer.model.popularity import ExactPopularity, HashPopularity, Popularity
from streamer.model.ranking import Ranker
from streamer.model.recent import RecentItems
from streamer.model.settings import LearnerSettings
from streamer.model.trainer import StepResult, Trainer
from streamer.recommender import Recommendation, Recommender
from streamer.settings import PipelineSettings
from streamer.vocabulary import Vocabulary

State = dict[str, Any]

FORMAT = 2
"""Of what a checkpoint holds; one of another format cannot be read."""

LARGEST_NUMBER = 1e9
"""A numeric feature beyond this is passed over: squares of larger gradients are infinite, and ruin a tower."""
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
        self.recent = RecentItems(settings.history)
        self.co_occurrence = CoOccurrence(settings.co_occurrence)
        self.exact = ExactPopularity(settings.popularity_half_life or None)
        self.hashed = HashPopularity(
            slots=settings.hash_slots, alpha=settings.hash_alpha, clock=settings.hash_clock, seed=settings.seed
        )
        self.prior = ExactPopularity(settings.prior_half_life or None, floor=0.01)
        self.occurrence = Occurrence(settings.occurrence_half_life or None)
        self.cache: Rows = np.empty(0, np.int64)
        self._draws = np.random.default_rng([settings.seed, 2])

    @property
    def popularity(self) -> Popularity:
        """The estimate that corrects the sampling bias."""
        wanted = self.settings.popularity
        if wanted == "auto":
            wanted = "hash" if self.trainer.method.popularity == "hash" else "exact"
        return self.hashed if wanted == "hash" else self.exact

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
            times = [float(event[2]) if len(event) > 2 else 0.0 for event in chunk]
            self.learn_batch(MicroBatch(users, items, times))
            count += len(chunk)
        return count

    def recommend(
        self,
        user: object | None = None,
        k: int = 10,
        *,
        recent: Sequence[object] | None = None,
        exclude_recent: bool = False,
    ) -> list[Recommendation]:
        """The best items for a user, or for a session without one; best first, each with its score.

        Args:
            user: id; an unknown one gets what a user without history gets.
            k: how many items.
            recent: instead of a user: the items of a session, oldest first.
            exclude_recent: leave out the items that the recommendation is based on.

        Raises:
            ValueError: neither or both of `user` and `recent` are given.
        """
        if (user is None) == (recent is None):
            raise ValueError("give either a user or the recent items of a session")
        if not len(self.items):
            return []
        recommender = Recommender(self)
        query = recommender.user(str(user)) if recent is None else recommender.session([str(i) for i in recent])
        return recommender.recommend([query], k, exclude_recent=exclude_recent)[0]

    def rank(self, user: object, items: Iterable[object]) -> list[Recommendation]:
        """Some items by their score for a user, best first; items that are not known are left out."""
        wanted = {str(item) for item in items}
        return [found for found in self.recommend(user, max(len(self.items), 1)) if found.item in wanted]

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

    def learn_batch(
        self, batch: MicroBatch, before_training: Callable[[Batch], None] | None = None, counted: bool = True
    ) -> Learned:
        """Take in one micro-batch of at least one event.

        Events that come again after a crash, and that the counts of all trainers hold already, are trained without
        being counted (`counted` False).

        1. ids become rows, features are remembered;
        2. each event gets its user's recent items, as of the event;
        3. `before_training` may look (test, then train);
        4. popularity counts the batch;
        5. the training step;
        6. co-occurrence counts the batch; occurrence, and the next cache.
        """
        known_users, known_items = len(self.users), len(self.items)
        # 1.
        users, items = self.users.rows(batch.users), self.items.rows(batch.items)
        self.trainer.model.grow(len(self.users), len(self.items))
        self._set_features("user", users, batch.user_features)
        self._set_features("item", items, batch.item_features)
        # 2.
        recent = self.recent.observe(users, items) if self.recent.length else None
        rows = Batch(users, items, recent)
        # 3.
        if before_training is not None:
            before_training(rows)
        # 4.
        self.hashed.observe(items)
        self.prior.observe(items)
        if counted:
            self.count(items)
        # 5.
        view = StreamState(self.popularity, self.cache, self.prior, self.occurrence, self.co_occurrence)
        result = self.trainer.step(rows, view)
        # 6.
        if recent is not None and self.co_occurrence.length:
            self.co_occurrence.observe(items, recent)
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
        numbers = tower.features.numbers(at)
        for c, name in enumerate(wanted.numeric):
            found = [(k, _number(f[name])) for k, f in enumerate(told.values()) if name in f]
            for k, number in found:
                numbers[k, c] = number if number is not None else numbers[k, c]
        tower.features.set(at, codes, numbers)

    def ranker(self) -> Ranker:
        """Ranks with the current weights."""
        return Ranker(self.trainer, self.prior, self.co_occurrence)

    def recent_of(self, users: Rows) -> Recent | None:
        """Recent items of some users, if the model uses them."""
        return self.recent.of(users) if self.recent.length else None

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
        state["recent"] = np.array(self.recent.state())
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
            self.recent.load_state(_array(state["recent"]))
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
            "popularity.hash": self.hashed,
            "popularity.prior": self.prior,
            "occurrence": self.occurrence,
            "co_occurrence": self.co_occurrence,
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


def _number(value: str | float) -> float | None:
    """A feature as a number that a float32 holds; None if it is not one. Integers are text: they may be categories."""
    try:
        number = float(_TRUTH.get(value, value))  # type: ignore[arg-type]
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_NUMBER else None


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def _array(value: Any) -> NDArray[Any]:
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
