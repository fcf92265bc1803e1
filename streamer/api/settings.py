"""The settings of a learner as keyword arguments, for editors and type checkers.

They are declared in `streamer/model/settings.py`, with defaults and meaning; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict


class SettingChanges(TypedDict, total=False):
    """Settings of a learner that differ from the defaults; `docs/settings.md` says what
    each one means.
    """

    method: Literal["ssl", "ssl-pop", "mns", "g-tower", "bir", "xir", "full-softmax"]
    cache_size: int
    cache_weight: float
    cache_correction: Literal["occurrence", "popularity"]
    cache_scope: Literal["all", "touched"]
    draws: int | None
    uniform_negatives: int | None
    resampler: Literal["systematic", "multinomial"]
    negatives: Literal["global", "local"]
    mask_positive: bool
    popularity: Literal["auto", "exact", "hash"]
    popularity_half_life: float
    hash_slots: int
    hash_alpha: float
    hash_clock: Literal["event", "batch"]
    dim: int
    recent_items: int
    user_ids: bool
    item_ids: bool
    temperature: float
    init_std: float
    item_features: tuple[str, ...]
    user_features: tuple[str, ...]
    item_numeric_features: tuple[str, ...]
    user_numeric_features: tuple[str, ...]
    item_attributes: tuple[str, ...]
    item_layers: tuple[int, ...]
    user_layers: tuple[int, ...]
    seed: int
    rerank: bool
    history: int
    co_occurring_items: int
    retrieved_items: int
    ranker_events: int
    ranker_learning_rate: float
    optimizer: Literal["adagrad", "adam", "sgd", "dense-adam"]
    learning_rate: float
    dense_learning_rate: float
    learning_rate_decay: float
    decay_every: int
    l2: float
    device: str
    event_weights: Mapping[str, float]
    max_users: int | None
    max_items: int | None
    max_categories: int
    user_ttl_s: float
    item_ttl_s: float
    admit_after: int
    young_age_s: float
