"""What a pipeline reports to an observer. Called by the training thread; `timed` by the
reading thread too.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer.evaluation import Prequential
    from streamer.ingest.batcher import MicroBatch
    from streamer.learner import OnlineLearner
    from streamer.metrics.status import Status

_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class Observer:
    """Listens to nothing; the base of those that do."""

    def begin(self, learner: OnlineLearner, prequential: Prequential | None) -> None:
        """A line is going to run."""

    def beat(self) -> None:
        """The line looks for the next batch."""

    def phase(self, name: str) -> contextlib.AbstractContextManager[object]:
        """Around a phase of a step."""
        return _NOTHING

    def timed(self, phase: str, seconds: float) -> None:
        """A phase has taken this many seconds."""

    def trained(self, batch: MicroBatch) -> None:
        """A batch is done and accounted for."""

    def refreshed(self, status: Status) -> None:
        """The state, about twice a second."""

    def ended(self) -> None:
        """The line runs no more."""
