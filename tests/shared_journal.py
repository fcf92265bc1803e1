"""A journal of what a trainer learns, which tests of several trainers have each process keep."""

from __future__ import annotations

import os
from typing import Any

from streamer.learner import OnlineLearner


def keep(path: str) -> None:
    """Have the learner of this process write a line for each micro-batch that it has learned: how many events, whether
    they were counted, and the position of each of its partitions, as `topic[0]=90`.
    """
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    learn = OnlineLearner.learn_batch

    def noting_learn(self: OnlineLearner, batch: Any, evaluator: Any = None, counted: bool = True) -> Any:
        learned = learn(self, batch, evaluator, counted)
        positions = [f" {partition}={batch.offsets[stop - 1] + 1}" for partition, _, stop in batch.origins]
        os.write(journal, f"{len(batch)} {counted:d}{''.join(positions)}\n".encode())
        return learned

    OnlineLearner.learn_batch = noting_learn  # type: ignore[method-assign]
