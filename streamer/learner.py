"""Everything that is learned from a stream, and how one micro-batch changes it.

The learner is one recovery unit: id maps, users' recent items, items' companions, popularity, occurrence, cache,
weights, optimizer and random state are saved and restored together. It knows nothing of where events come from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from streamer.checkpoint import Checkpoint, pack_strings, unpack_strings
from streamer.errors import IncompatibleCheckpoint, SettingsError
from streamer.event import Features
from streamer.ingest.batcher import MicroBatch
from streamer.model.batch import Batch, Recent, Rows, View
from streamer.model.companions import Companions
from streamer.model.device import resolve_device
from streamer.model.occurrence import Occurrence
from streamer.model.popularity import ExactPopularity, HashPopularity, Popularity
from streamer.model.ranking import Ranker
from streamer.model.recent import RecentItems
from streamer.model.trainer import StepResult, Trainer, TrainerSettings
from streamer.model.two_tower import ModelSettings
from streamer.vocabulary import Vocabulary

State = dict[str, Any]

LARGEST_NUMBER = 1e9
"""A numeric feature beyond this is passed over: squares of larger gradients are infinite, and ruin a tower."""
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """What is learned, and how.

    Args:
        model: shape of the model.
        trainer: method, optimizer, rates.
        cache_size: C, items in the cache.
        cache_scope: draw the cache among `all` items (the paper) or among those `touched` in the step (its code).
        occurrence_half_life: steps after which what was resampled counts half; None for ever.
        popularity: which estimate corrects the sampling bias, `auto` takes the method's own.
        popularity_half_life: events after which an event counts half in the exact popularity; None for ever.
        prior_half_life: the same for the popularity prior in the score.
        hash_slots: size of each of G-Tower's hash arrays.
        hash_alpha: weight of the newest gap in G-Tower's estimate.
        hash_clock: `event` or `batch`.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    cache_size: int = 2048
    cache_scope: str = "all"
    occurrence_half_life: float | None = None
    popularity: str = "auto"
    popularity_half_life: float | None = None
    prior_half_life: float | None = 5000.0
    hash_slots: int = 1 << 18
    hash_alpha: float = 0.02
    hash_clock: str = "event"
    device: str = "auto"

    def problems(self) -> list[str]:
        """What is wrong with these settings; empty if nothing is."""
        found = [*self.model.problems(), *self.trainer.sampler.problems()]
        if self.cache_size < 0:
            found.append(f"cache_size is {self.cache_size}: it cannot be negative")
        if self.cache_scope not in ("all", "touched"):
            found.append(f"cache_scope is {self.cache_scope!r}: choose all or touched")
        if self.popularity not in ("auto", "exact", "hash"):
            found.append(f"popularity is {self.popularity!r}: choose auto, exact or hash")
        for name in ("occurrence_half_life", "popularity_half_life", "prior_half_life"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                found.append(f"{name} is {value}: it must be positive (leave it out to keep everything)")
        return found

    def shape(self) -> dict[str, Any]:
        """What may not change between a checkpoint and the run that goes on from it; rates and the method may."""
        model, trainer = self.model, self.trainer
        found: dict[str, Any] = {
            "recent_items": model.recent_items,
            "repeat_ranks": model.repeat_ranks,
            "companions": model.companions,
            "prior": model.prior,
            "optimizer": trainer.optimizer,
            "hash_slots": self.hash_slots,
            "hash_clock": self.hash_clock,
        }
        for side, tower in (("user", model.user), ("item", model.item)):
            for name, value in dataclasses.asdict(tower).items():
                found[f"{side} {name}"] = list(value) if isinstance(value, tuple) else value
        return found


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
        settings: what is learned, and how.

    Raises:
        SettingsError: with every problem at once.
    """

    def __init__(self, settings: LearnerSettings) -> None:
        if problems := settings.problems():
            raise SettingsError(problems)
        try:
            device = resolve_device(settings.device)
            self.trainer = Trainer(settings.model, settings.trainer, device)
        except ValueError as error:
            raise SettingsError([str(error)]) from error
        self.settings = settings
        self.users, self.items = Vocabulary(), Vocabulary()
        self.categories = {
            side: {name: Vocabulary(first=1) for name in getattr(settings.model, side).categorical}
            for side in ("user", "item")
        }
        self.recent = RecentItems(settings.model.history)
        self.companions = Companions(settings.model.companions)
        self.exact = ExactPopularity(settings.popularity_half_life)
        self.hashed = HashPopularity(
            slots=settings.hash_slots, alpha=settings.hash_alpha, clock=settings.hash_clock, seed=settings.trainer.seed
        )
        self.prior = ExactPopularity(settings.prior_half_life, floor=0.01)
        self.occurrence = Occurrence(settings.occurrence_half_life)
        self.cache: Rows = np.empty(0, np.int64)
        self._draws = np.random.default_rng([settings.trainer.seed, 2])

    @property
    def popularity(self) -> Popularity:
        """The estimate that corrects the sampling bias."""
        wanted = self.settings.popularity
        if wanted == "auto":
            wanted = "hash" if self.trainer.method.popularity == "hash" else "exact"
        return self.hashed if wanted == "hash" else self.exact

    def learn(
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
        6. companions count the batch; occurrence, and the next cache.
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
        view = View(self.popularity, self.cache, self.prior, self.occurrence, self.companions)
        result = self.trainer.step(rows, view)
        # 6.
        if recent is not None and self.companions.length:
            self.companions.observe(items, recent)
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
        return Ranker(self.trainer, self.prior, self.companions)

    def recent_of(self, users: Rows) -> Recent | None:
        """Recent items of some users, if the model uses them."""
        return self.recent.of(users) if self.recent.length else None

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, device: str | None = None) -> Learner:
        """The learner as it was when a checkpoint was written, with the settings it had then.

        Raises:
            IncompatibleCheckpoint: another version of Streamer wrote it.
        """
        try:
            settings = msgspec.convert(checkpoint.meta["settings"], LearnerSettings)
            values = checkpoint.meta["learner"]
        except (KeyError, msgspec.ValidationError) as error:
            raise IncompatibleCheckpoint(f"{checkpoint.path} was written by another version: {error}") from error
        learner = cls(dataclasses.replace(settings, device=device) if device else settings)
        learner.restore(checkpoint.tensors, values)
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
        return state, {"trainer": values, "draws": self._draws.bit_generator.state, "shape": self.settings.shape()}

    def restore(self, state: State, values: dict[str, Any]) -> None:
        """Take over a snapshot.

        Raises:
            IncompatibleCheckpoint: it was made with other settings.
        """
        try:
            self._check_shape(values["shape"])
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

    def _check_shape(self, theirs: dict[str, Any]) -> None:
        """See that a snapshot was made with settings that ours can go on with.

        Raises:
            ValueError: with every difference.
        """
        ours = self.settings.shape()
        names = sorted(theirs.keys() | ours.keys())
        differ = [f"{n} was {theirs.get(n)} and is {ours.get(n)} now" for n in names if theirs.get(n) != ours.get(n)]
        if differ:
            raise ValueError("; ".join(differ))

    def _parts(self) -> dict[str, Any]:
        return {
            "popularity.exact": self.exact,
            "popularity.hash": self.hashed,
            "popularity.prior": self.prior,
            "occurrence": self.occurrence,
            "companions": self.companions,
        }

    def _vocabularies(self) -> dict[str, Vocabulary]:
        found = {"users": self.users, "items": self.items}
        for side, vocabularies in self.categories.items():
            found |= {f"{side}.{name}": vocabulary for name, vocabulary in vocabularies.items()}
        return found


def _merged(rows: Rows, features: Sequence[Features | None]) -> dict[int, Features]:
    """What the events of a batch say of each row; the later event wins."""
    told: dict[int, Features] = {}
    for row, given in zip(rows.tolist(), features, strict=True):
        if given:
            told.setdefault(row, {}).update(given)
    return told


def _number(value: str | float) -> float | None:
    """A feature as a number that a float32 holds; None if it is none. Integers come as text: they may be categories."""
    try:
        number = float(_TRUTH.get(value, value))  # type: ignore[arg-type]
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_NUMBER else None


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def _array(value: Any) -> NDArray[Any]:
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
