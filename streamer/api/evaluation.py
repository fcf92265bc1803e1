"""How well a learner predicts events, beside trivial recommenders."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streamer.errors import EventError
from streamer.evaluation import MODEL, EventSampler, Prequential, Tally
from streamer.evaluation.baselines import Stretch
from streamer.evaluation.unlearned import UnlearnedEvents
from streamer.ingest.batcher import MicroBatch
from streamer.learner import OnlineLearner
from streamer.model.batch import Batch, Rows
from streamer.model.rows.seen_items import SeenBefore

SURE = 2.0
"""Standard errors of a difference that is beyond the noise."""


class RecommenderScore(NamedTuple):
    """Figures of one recommender, each with its standard error."""

    recommender: str
    """`model`, or the name of a baseline."""
    hr: float
    hr_error: float
    mrr: float
    mrr_error: float
    ndcg: float
    ndcg_error: float


@dataclass(frozen=True)
class Evaluation:
    """What `Learner.evaluate` found; prints as a table. `pandas.DataFrame(evaluation)`
    has a row for each recommender.
    """

    k: int
    """Length of the lists."""
    events: int
    """Events that were ranked."""
    scores: list[RecommenderScore]
    """Of the model, then of the baselines."""
    known_before: int = 0
    """Events that the model had learned before, and the baselines had not."""

    def __iter__(self) -> Iterator[RecommenderScore]:
        return iter(self.scores)

    def __getitem__(self, recommender: str) -> RecommenderScore:
        for score in self.scores:
            if score.recommender == recommender:
                return score
        names = ", ".join(score.recommender for score in self.scores)
        raise KeyError(f"{recommender!r}: choose among {names}")

    def __repr__(self) -> str:
        k = self.k
        heads = (f"HR@{k}", f"MRR@{k}", f"NDCG@{k}")
        lines = [f"{self.events:,} events ranked", "", _line("", *heads)]
        for name, *figures in self.scores:
            pairs = zip(figures[::2], figures[1::2], strict=True)
            cells = [f"{mean:.4f} ± {error:.4f}" for mean, error in pairs]
            lines.append(_line(name, *cells))
        lines += ["", self.verdict]
        if self.known_before:
            lines.append(
                f"The model had learned {self.known_before:,} events before; of the baselines, "
                "only most-popular knows them."
            )
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """A sentence: whether the model beats the best baseline, beyond the noise."""
        model, *baselines = self.scores
        best = max(baselines, key=lambda score: score.hr)
        difference = model.hr - best.hr
        error = math.hypot(model.hr_error, best.hr_error)
        if abs(difference) <= SURE * error:
            return (
                f"The hit rates of the model and of {best.recommender}, the best baseline, "
                f"differ by {abs(difference):.4f}: that is within the noise."
            )
        effect = "beats" if difference > 0 else "loses to"
        return (
            f"The model {effect} {best.recommender}, the best baseline, by "
            f"{abs(difference):.4f} in hit rate: more than the noise."
        )


def _line(name: str, *cells: str) -> str:
    return f"{name:<14}" + "".join(f"{cell:>18}" for cell in cells)


def evaluate(
    learner: OnlineLearner,
    batches: Iterable[MicroBatch],
    k: int,
    freeze_after_s: float | None = None,
) -> Evaluation:
    """Rank events; a copy of the learner learns from them.

    Args:
        learner: stays as it is.
        batches: the events.
        k: length of the lists.
        freeze_after_s: events up to this time are learned, and those after it are
            ranked and not learned. None: each event is ranked, then learned.

    Raises:
        EventError: there is nothing to rank.
    """
    copy = OnlineLearner(learner.settings)
    copy.state.restore(learner.state.chunks(), *learner.state.dense())
    counts = copy.state.item_counts
    known_before = round(counts.counts(np.arange(counts.size)).sum())
    sampler = EventSampler(time_share=None, max_events=None)
    if freeze_after_s is None:
        test = Prequential(copy, sampler, Tally(k))
        for batch in batches:
            _learn(copy, batch, test)
    else:
        test = FrozenPrequential(copy, sampler, Tally(k))
        _learn_and_freeze(copy, batches, test, freeze_after_s)
    events = test.tally.events()
    if not events:
        raise EventError("there is nothing to rank: no event comes after the split")
    scores = []
    for name in (MODEL, *test.baselines.names):
        figures = []
        for metric in ("hr", "mrr", "ndcg"):
            figure = test.figure(name, metric)
            figures += [figure.overall or 0.0, figure.error or 0.0]
        scores.append(RecommenderScore(name, *figures))
    return Evaluation(k, events, scores, known_before)


def _learn(learner: OnlineLearner, batch: MicroBatch, test: Prequential) -> None:
    for stretch in learner.split_catalogue_events(batch):
        learner.learn_batch(stretch, test)


def _learn_and_freeze(
    learner: OnlineLearner,
    batches: Iterable[MicroBatch],
    test: FrozenPrequential,
    freeze_after_s: float,
) -> None:
    """Learn what comes up to a time, then rank the rest."""
    later = []
    for batch in batches:
        is_early = np.array(batch.timestamps_s) <= freeze_after_s
        early = batch.only(np.flatnonzero(is_early).tolist())
        if len(early):
            _learn(learner, early, test)
        later.append(batch.only(np.flatnonzero(~is_early).tolist()))
    test.frozen = True
    unlearned = UnlearnedEvents(learner)
    unlearned.begin()
    for batch in later:
        if len(batch):
            unlearned.rank(batch, test)


class FrozenPrequential(Prequential):
    """Ranks nothing while baselines and learner learn; once they are `frozen`, ranks
    everything, and nobody learns. What users had last goes on.
    """

    frozen = False

    def choose(self, events: int) -> Rows:
        """All events or none."""
        return np.arange(events if self.frozen else 0)

    def _stretch(self, batch: Batch, chosen: Rows, seen: SeenBefore) -> Stretch:
        stretch = super()._stretch(batch, chosen, seen)
        if not self.frozen:
            return stretch
        return dataclasses.replace(stretch, due=np.zeros(len(chosen), np.int64), end=0)
