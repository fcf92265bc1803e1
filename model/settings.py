"""Settings of the model, its method and its learning; nothing here imports torch, so
that `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from streamer.model.setting import Settings, expert_setting, setting

MAX_WEIGHT = 1000.0
"""Of an event."""
HIDDEN = "hidden"
PINNED = "pinned"
AVAILABLE_FROM = "available_from"
AVAILABLE_UNTIL = "available_until"
RULE_FLAGS = (HIDDEN, PINNED)
RULE_TIMES = (AVAILABLE_FROM, AVAILABLE_UNTIL)
RULES = RULE_FLAGS + RULE_TIMES
"""What the catalogue may say of an item that holds for all answers."""


@dataclass(frozen=True, slots=True)
class TowerShape:
    """Shape of one tower.

    Args:
        dim: size of each embedding.
        ids: whether rows have an id embedding.
        categorical: names of categorical features, each with an embedding table of its
            own.
        numeric: names of numeric features.
        layers: units of the fully connected layers, ReLU between them. Without layers
            the embeddings are added up; with layers they are concatenated.
    """

    dim: int
    ids: bool = True
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()

    @property
    def out_dim(self) -> int:
        """Size of the tower's vectors."""
        return self.layers[-1] if self.layers else self.dim


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Shape of the towers."""

    heading: ClassVar[str] = "Model"

    dim: int = setting(64, "Size of the embeddings.", at_least=1, fixed=True)
    recent_items: int = expert_setting(
        10,
        "Number of a user's last distinct items that make up the user's vector.",
        at_least=0,
        fixed=True,
    )
    user_ids: bool = expert_setting(
        False, "Give each user an embedding of its own in addition.", fixed=True
    )
    item_ids: bool = expert_setting(
        True, "Give each item an embedding of its own.", fixed=True
    )
    temperature: float = expert_setting(
        0.0,
        "The towers' score is the cosine of their vectors over this number; 0: the inner product.",
        at_least=0,
        fixed=True,
    )
    init_std: float = expert_setting(
        0.03, "Standard deviation of new embeddings.", above=0
    )
    item_features: tuple[str, ...] = setting(
        (),
        "Categorical item feature to use; repeat it for several.",
        fixed=True,
        common=True,
    )
    user_features: tuple[str, ...] = expert_setting(
        (), "Categorical user feature to use; repeat it for several.", fixed=True
    )
    item_numeric_features: tuple[str, ...] = setting(
        (), "Numeric item feature to use; repeat it for several.", fixed=True
    )
    user_numeric_features: tuple[str, ...] = expert_setting(
        (), "Numeric user feature to use; repeat it for several.", fixed=True
    )
    item_layers: tuple[int, ...] = expert_setting(
        (),
        "Fully connected layers of the item tower, e.g. 32,16.",
        at_least=1,
        metavar="UNITS",
        fixed=True,
    )
    user_layers: tuple[int, ...] = expert_setting(
        (),
        "Fully connected layers of the user tower.",
        at_least=1,
        metavar="UNITS",
        fixed=True,
    )
    item_attributes: tuple[str, ...] = setting(
        (),
        "Item attribute that answers can be filtered by, and the model does not use; repeat it for several.",
    )
    seed: int = setting(0, "Seed of all initial weights and draws.", at_least=0)

    @property
    def filterable(self) -> tuple[str, ...]:
        """Features and attributes of items, by which answers can be filtered."""
        features = (*self.item_features, *self.item_numeric_features)
        return features + self.item_attributes

    @property
    def item_tower(self) -> TowerShape:
        """Shape of the item tower."""
        return TowerShape(
            self.dim,
            self.item_ids,
            self.item_features,
            self.item_numeric_features,
            self.item_layers,
        )

    @property
    def user_tower(self) -> TowerShape:
        """Shape of the user tower: without layers of its own it has the size of the
        item tower's vectors.
        """
        dim = self.dim if self.user_layers else self.item_tower.out_dim
        return TowerShape(
            dim,
            self.user_ids,
            self.user_features,
            self.user_numeric_features,
            self.user_layers,
        )

    def problems(self) -> list[str]:
        found = super().problems()
        user = self.user_tower
        item = self.item_tower
        if user.out_dim != item.out_dim:
            found.append(
                f"the user tower's vectors have {user.out_dim} numbers, the item tower's {item.out_dim}: "
                "make the last of user-layers and item-layers (or dim) equal"
            )
        if not (user.ids or user.categorical or user.numeric or self.recent_items):
            found.append(
                "the user tower has no input: turn on user-ids, user features or recent-items"
            )
        if not (item.ids or item.categorical or item.numeric):
            found.append(
                "the item tower has no input: turn on item-ids or item features"
            )
        taken = {*self.item_features, *self.item_numeric_features, *RULES}
        for name in self.item_attributes:
            if not name or name in taken or set(name) & set(":<>="):
                found.append(
                    f"item-attribute is {name!r}: it must be text without any of : < > =, no feature of the model, by "
                    f"which answers can be filtered anyway, and none of {', '.join(RULES)}"
                )
        return found


@dataclass(frozen=True, kw_only=True)
class MethodSettings(Settings):
    """How negatives are chosen, weighted and corrected."""

    heading: ClassVar[str] = "Method"

    method: Literal[
        "ssl", "ssl-pop", "mns", "g-tower", "bir", "xir", "full-softmax"
    ] = setting(
        "xir",
        "How negatives are chosen and weighted; full-softmax is the slow reference.",
    )
    cache_size: int = setting(2048, "Number of items in the cache (xir).", at_least=0)
    cache_weight: float = expert_setting(
        0.05, "Lambda: the cache's share of the loss (xir).", at_least=0, at_most=1
    )
    cache_correction: Literal["occurrence", "popularity"] = expert_setting(
        "occurrence",
        "Correct cached items by the probability with which they were drawn, or by popularity as in the paper (xir).",
    )
    cache_scope: Literal["all", "touched"] = expert_setting(
        "all",
        "Draw the cache among all items, or among those touched in the step as the authors' code does (xir).",
    )
    draws: int | None = expert_setting(
        None,
        "|R_u|: number of negatives that a query draws (bir, xir).",
        at_least=1,
        if_none="the batch size",
    )
    uniform_negatives: int | None = expert_setting(
        None,
        "Number of uniformly drawn items in addition to the batch (mns).",
        at_least=0,
        if_none="the batch size",
    )
    resampler: Literal["systematic", "multinomial"] = expert_setting(
        "systematic", "How negatives are drawn; multinomial as in the paper (bir, xir)."
    )
    negatives: Literal["global", "local"] = expert_setting(
        "global",
        "Whether an event's in-batch negatives come from the whole batch, or only from the events that one trainer of "
        "a group computes together with it: cheaper, the more trainers there are.",
    )
    mask_positive: bool = expert_setting(
        False, "Remove a query's own positive from its candidates."
    )
    popularity: Literal["auto", "exact", "hash"] = expert_setting(
        "auto",
        "Estimate of popularity that corrects the sampling bias; auto: the method's own.",
    )
    popularity_half_life: float = expert_setting(
        5000.0,
        "After this many events an event counts half in the correction; 0: never.",
        at_least=0,
        unit="events",
    )
    hash_slots: int = expert_setting(
        1 << 18, "Size of each of G-Tower's five hash arrays.", at_least=1, fixed=True
    )
    hash_alpha: float = expert_setting(
        0.02, "Weight of the newest gap in G-Tower's estimate.", above=0, at_most=1
    )
    hash_clock: Literal["event", "batch"] = expert_setting(
        "event", "Unit in which G-Tower counts gaps; batch as in the paper.", fixed=True
    )


@dataclass(frozen=True, kw_only=True)
class RankingSettings(Settings):
    """How the towers' candidates and those of counting are ranked."""

    heading: ClassVar[str] = "Ranking"

    rerank: bool = expert_setting(
        True,
        "Whether a small learned ranker orders the candidates, by what was counted and by the towers' inner product; "
        "without it the inner product alone decides.",
        fixed=True,
    )
    history: int = expert_setting(
        30,
        "How many of a user's last distinct items bring up candidates.",
        at_least=1,
        at_most=255,
        fixed=True,
    )
    co_occurring_items: int = expert_setting(
        200,
        "How many items that users had shortly before or after it are kept for each item, at most.",
        at_least=0,
        at_most=4096,
        fixed=True,
    )
    retrieved_items: int = expert_setting(
        50, "How many items nearest by the towers are candidates.", at_least=0
    )
    ranker_events: int = expert_setting(
        512, "Events of a batch that the ranker learns from, at most.", at_least=1
    )
    ranker_learning_rate: float = expert_setting(
        0.3, "Learning rate of the ranker.", above=0
    )


@dataclass(frozen=True, kw_only=True)
class LearningSettings(Settings):
    """How weights are updated."""

    heading: ClassVar[str] = "Learning"

    optimizer: Literal["adagrad", "adam", "sgd", "dense-adam"] = expert_setting(
        "adagrad",
        "Optimizer of the embedding tables; dense-adam moves all rows at every step.",
        fixed=True,
    )
    learning_rate: float = setting(
        0.2, "Learning rate of the embedding tables.", above=0
    )
    dense_learning_rate: float = expert_setting(
        0.02, "Learning rate of everything else: layers and recency weights.", above=0
    )
    learning_rate_decay: float = expert_setting(
        1.0,
        "Factor for both learning rates after every `decay-every` steps.",
        above=0,
        at_most=1,
    )
    decay_every: int = expert_setting(
        0,
        "Steps between decays of the learning rates; 0: never.",
        at_least=0,
        unit="steps",
    )
    l2: float = expert_setting(
        0.0, "L2 coefficient of the tables (dense-adam).", at_least=0
    )
    device: str = setting("auto", "Device to train on: auto, cpu, cuda or cuda:N.")
    event_weights: Mapping[str, float] = setting(
        {},
        "How much an event of a type counts, e.g. cart=3; others count 1. Repeat it for several.",
        metavar="TYPE=WEIGHT",
        option="event-weight",
    )

    @property
    def typed(self) -> bool:
        """Whether types and weights of events matter."""
        return bool(self.event_weights)

    def problems(self) -> list[str]:
        found = super().problems()
        for name, weight in self.event_weights.items():
            if not 0 <= weight <= MAX_WEIGHT:
                found.append(
                    f"event-weight is {name}={weight}: it must be a number from 0 to {MAX_WEIGHT:,.0f}"
                )
        return found


@dataclass(frozen=True, kw_only=True)
class LimitSettings(Settings):
    """How many ids are kept, and for how long; those that were not seen for longest go
    first.
    """

    heading: ClassVar[str] = "Limits"

    max_users: int | None = setting(
        None,
        "Users that are kept, at most.",
        at_least=1,
        if_none="what fits the machine's memory",
    )
    max_items: int | None = setting(
        None,
        "Items that are kept, at most.",
        at_least=1,
        if_none="what fits the machine's memory",
    )
    max_categories: int = expert_setting(
        100_000, "Categories that are kept of each feature, at most.", at_least=1
    )
    user_ttl_s: float = setting(
        0.0,
        "Users that had no event for longer are forgotten, by event time; 0: never.",
        at_least=0,
        unit="seconds",
    )
    item_ttl_s: float = setting(
        0.0,
        "Items that had no event for longer are forgotten, by event time; 0: never.",
        at_least=0,
        unit="seconds",
    )
    admit_after: int = setting(
        1,
        "A user or item gets a row with this event of its own; those before it are left out.",
        at_least=1,
        at_most=255,
    )
    young_age_s: float = expert_setting(
        86_400.0,
        "A limit that makes ids go that were seen less than this time ago, by event time, is too low: an alert.",
        at_least=0,
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class LearnerSettings(
    LimitSettings, LearningSettings, RankingSettings, ModelSettings, MethodSettings
):
    """What is learned, and how."""


def id_towers(**changes: Any) -> LearnerSettings:
    """Settings of two plain id towers, the paper's model: the score is the inner
    product and nothing else.
    """
    plain: dict[str, Any] = {
        "user_ids": True,
        "recent_items": 0,
        "rerank": False,
        "init_std": 0.1,
    }
    return LearnerSettings(**(plain | changes))
