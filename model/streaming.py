"""Popularity and cache of a stream for training loops of your own: tensors of ids in,
tensors out.

Ids are rows of your item table, from 0; memory grows with the largest one (but for
popularity by hash arrays).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from streamer.model.losses.functional import Cached, Draws
from streamer.model.occurrence import Occurrence
from streamer.model.popularity import (
    ExactPopularity,
    HashPopularity,
    PopularityEstimate,
)
from streamer.model.settings import MethodSettings


class StreamingPopularity:
    """Each item's share of the events seen so far.

    Args:
        half_life: after this many events an event counts half; 0: never. Exact counts
            only.
        hash_slots: estimate by G-Tower's hash arrays of this size instead, in memory
            that does not grow; 0: exact.
        seed: of the hash functions.

    Examples:
        >>> popularity = StreamingPopularity()
        >>> popularity.observe(torch.tensor([0, 0, 0, 1]))
        >>> popularity.log_share(torch.tensor([0, 1])).exp()
        tensor([0.7500, 0.2500])
    """

    def __init__(
        self,
        half_life: float = 0.0,
        hash_slots: int = 0,
        seed: int = 0,
    ) -> None:
        self._estimate: PopularityEstimate = ExactPopularity(half_life or None)
        if hash_slots:
            self._estimate = HashPopularity(slots=hash_slots, seed=seed)

    def observe(self, ids: Tensor) -> None:
        """Count a batch of events, in order."""
        self._estimate.observe(_rows(ids))

    def log_share(self, ids: Tensor) -> Tensor:
        """log of each item's share of the events, on the device of the ids; finite for
        every id, seen or not.
        """
        found = self._estimate.log_pop(_rows(ids))
        return torch.from_numpy(found).to(ids.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything, as tensors."""
        found = {}
        for name, value in self._estimate.state().items():
            found[name] = torch.from_numpy(np.array(value))
        return found

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` returned."""
        arrays = {name: value.cpu().numpy() for name, value in state.items()}
        self._estimate.load_state(arrays)


class OccurrenceCache:
    """A cache of items that were often drawn as negatives: C items, drawn anew with
    weight o_j after every update.

    Args:
        size: C.
        seed: of the draws.

    Examples:
        >>> cache = OccurrenceCache(size=3)
        >>> len(cache.ids)
        0
        >>> cache.update(Draws(torch.tensor([7, 9]), torch.tensor([5.0, 0.0])))
        >>> cache.ids
        tensor([7, 7, 7])
    """

    def __init__(
        self,
        size: int = MethodSettings.cache_size,
        seed: int = 0,
    ) -> None:
        self.size = size
        self._occurrence = Occurrence()
        self._rng = np.random.default_rng(seed)
        self.ids = torch.empty(0, dtype=torch.int64)
        """[C] the cached items, with repetitions; empty before the first update."""

    def update(self, draws: Draws) -> None:
        """Count what a step has drawn, and draw the next cache."""
        ids = _rows(draws.ids)
        counts = draws.counts.detach().cpu().numpy()
        self._occurrence.add(ids, counts)
        known = max(self._occurrence.size, int(ids.max(initial=-1)) + 1)
        drawn = self._occurrence.draw(self.size, self._rng, known)
        self.ids = torch.from_numpy(drawn).to(draws.ids.device)

    def log_probability(self, ids: Tensor) -> Tensor:
        """log of the probability with which each item is drawn into the cache."""
        found = self._occurrence.log_pop(_rows(ids))
        return torch.from_numpy(found).to(ids.device)

    def sample(self, item_tower: Callable[[Tensor], Tensor]) -> Cached:
        """The cache as candidates for `xir_loss`; the tower turns ids into vectors."""
        return Cached(item_tower(self.ids), self.ids, self.log_probability(self.ids))


def _rows(ids: Tensor) -> np.ndarray:
    return ids.detach().cpu().numpy().astype(np.int64, copy=False)
