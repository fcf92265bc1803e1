"""Settings of the protocols: the paper's, test then train, and sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from streamer.model.setting import changed, setting
from streamer.model.settings import LearnerSettings
from streamer.replay.evaluation.baselines import BASELINES
from streamer.settings import PipelineSettings


@dataclass(frozen=True, kw_only=True)
class OfflineSettings(LearnerSettings):
    """The protocol of one run: id towers, and the settings of the paper where they
    differ from those of a stream.
    """

    heading: ClassVar[str] = "Protocol"

    epochs: int = setting(
        12, "Passes over the training pairs, each in an order of its own.", at_least=1
    )
    batch_size: int = setting(
        2048, "Pairs of a step; the last step of an epoch has what is left.", at_least=1
    )
    decay_every_epochs: int = setting(
        5, "Epochs between decays of the learning rate.", at_least=1
    )
    test_share: float = setting(
        0.2, "Share of each user's items that is tested.", above=0, at_most=0.99
    )
    validation_share: float = setting(
        0.0,
        "Share of each user's training items that is tested instead of the test items, to choose settings by; the test "
        "items are then neither trained nor tested. 0: none.",
        at_least=0,
        at_most=0.99,
    )
    ks: tuple[int, ...] = setting(
        (10, 20), "Lengths of the lists that are evaluated.", at_least=1
    )
    cache_size: int | None = setting(
        None, "Items in the cache (xir).", at_least=0, if_none="the batch size"
    )  # type: ignore[assignment]

    dim: int = changed(LearnerSettings, "dim", 32)
    user_ids: bool = changed(LearnerSettings, "user_ids", True)
    recent_items: int = changed(LearnerSettings, "recent_items", 0)
    rerank: bool = changed(LearnerSettings, "rerank", False)
    init_std: float = changed(LearnerSettings, "init_std", 0.1)
    optimizer: Literal["adagrad", "adam", "sgd", "dense-adam"] = changed(
        LearnerSettings, "optimizer", "dense-adam"
    )
    learning_rate: float = changed(LearnerSettings, "learning_rate", 0.01)
    learning_rate_decay: float = changed(LearnerSettings, "learning_rate_decay", 0.95)
    l2: float = changed(LearnerSettings, "l2", 4e-6)
    popularity_half_life: float = changed(LearnerSettings, "popularity_half_life", 0.0)
    cache_weight: float = changed(LearnerSettings, "cache_weight", 0.2)
    cache_correction: Literal["occurrence", "popularity"] = changed(
        LearnerSettings, "cache_correction", "popularity"
    )

    def problems(self) -> list[str]:
        found = super().problems()
        if self.recent_items or self.rerank or self.popularity_half_life:
            found.append(
                "the offline protocol has no order of events: leave recent-items, rerank and popularity-half-life off"
            )
        if not self.ks:
            found.append("ks is empty: give at least one length")
        return found


@dataclass(frozen=True, kw_only=True)
class StreamRunSettings(LearnerSettings):
    """The learner of `streamer run`, beside baselines."""

    heading: ClassVar[str] = "Evaluation"

    batch_size: int = changed(
        PipelineSettings, "batch_size", PipelineSettings.batch_size
    )
    baselines: tuple[str, ...] = setting(
        tuple(BASELINES), "Trivial recommenders beside it.", option="baselines"
    )

    def problems(self) -> list[str]:
        found = super().problems()
        for name in self.baselines:
            if name not in BASELINES:
                known = ", ".join(BASELINES)
                found.append(f"there is no baseline {name!r}: choose among {known}")
        return found


@dataclass(frozen=True, kw_only=True)
class PrequentialSettings(StreamRunSettings):
    """How a method is evaluated on a stream: the learner of `streamer run`, and what is
    measured of it.
    """

    ks: tuple[int, ...] = setting(
        (1, 5, 10, 20, 50), "Lengths of the lists.", at_least=1
    )
    delay_seconds: float = setting(
        0.0,
        "An event is trained only after this many further seconds of the stream were ranked.",
        at_least=0,
    )
    retrieve_every: int = setting(
        4,
        "Of every n-th event, the item is looked for in the towers' own list too: all items by inner product, without "
        "counts and ranker. 0: of none.",
        at_least=0,
    )
    catalogue: bool = setting(
        False,
        "Items that a file beside the log describes are known before their first event, by catalogue events.",
    )


@dataclass(frozen=True, kw_only=True)
class SessionSettings(StreamRunSettings):
    """How a method is evaluated on sessions: the learner of `streamer run`, frozen
    before it is asked.
    """

    heading: ClassVar[str] = "Sessions"

    baselines: tuple[str, ...] = changed(
        StreamRunSettings,
        "baselines",
        (
            *("most-popular", "last-items", "counting"),
            *("sequential-rules", "session-neighbours"),
        ),
    )
    sample: int | None = setting(
        None,
        "Only this number of test prefixes, of each period; the same for all methods and seeds.",
        at_least=1,
        if_none="all",
    )
