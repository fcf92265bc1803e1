"""What happens when partitions are assigned to us, and when they are revoked."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamer.ingest.ingest import Ingest
from streamer.sources.base import Partition, Positions

if TYPE_CHECKING:
    from streamer.ingest.reader import StopCondition

logger = logging.getLogger(__name__)

HANDOVER_S = 60.0
"""How long revoked partitions wait for a checkpoint; a group waits longer for us
(max_poll_interval_ms).
"""


class Handover:
    """Takes partitions over and gives them up. The source calls it inside `open` and
    `poll`, on the reading thread.
    """

    def __init__(self, ingest: Ingest, stop_condition: StopCondition) -> None:
        self._ingest = ingest
        self._stop_condition = stop_condition

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        """Return how far we have trained these partitions; the first time, the
        checkpoint's positions.
        """
        new = list(partitions)
        at_most = self._ingest.owner.claim(new)
        with self._ingest.changed:
            self._ingest.rebalances += 1
            self._ingest.at_end = False
            self._ingest.others_at_end = False
            self._ingest.finished = False
            earlier = {p.topic for p in self._ingest.offsets.snapshot().positions}
            trained = self._ingest.offsets.assign(new, at_most)
        if earlier and (other := {p.topic for p in new} - earlier):
            logger.warning(
                "Reading topic %s; the model was trained on %s so far.",
                ", ".join(sorted(other)),
                ", ".join(sorted(earlier)),
            )
        logger.info(
            "Assigned partitions: %s",
            ", ".join(_named(p, trained.get(p)) for p in sorted(new)) or "none",
        )
        return trained

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        """Give partitions up, so that whoever gets them next resumes exactly where we
        stopped.

        1. drop what is queued of them, and wait for the step that runs;
        2. let the other trainers have what we contributed;
        3. note the offsets, and wait until the trainer has saved and committed them;
        4. release the partitions.
        """
        gone = frozenset(partitions)
        ingest = self._ingest
        offsets = self._ingest.offsets
        # 1.
        with ingest.changed:
            self._stop_condition.count(-ingest.batcher.drop(gone))
            # what was dropped is to be read again
            ingest.at_end = False
            ingest.others_at_end = False
            ingest.finished = False
            ingest.changed.wait_for(
                lambda: ingest.stopping or not ingest.in_training & gone
            )
        # 2.
        ingest.owner.flush()
        # 3.
        with ingest.changed:
            offsets.revoke(gone)
            trained = offsets.snapshot().positions
            ingest.handover_wanted = bool(offsets.releasing())
            ingest.changed.notify_all()
            if not ingest.changed.wait_for(
                lambda: ingest.stopping or not offsets.releasing(), HANDOVER_S
            ):
                late = ", ".join(
                    _named(p, at) for p, at in sorted(offsets.releasing().items())
                )
                logger.warning(
                    "Revoked partitions were not saved within %.0f s; their next owners "
                    "resume at the last commit: %s",
                    HANDOVER_S,
                    late,
                )
            ingest.handover_wanted = False
            offsets.release(gone)
        logger.info(
            "Revoked partitions: %s",
            ", ".join(_named(p, trained.get(p)) for p in sorted(gone)),
        )
        # 4.
        ingest.owner.release(gone)


def _named(partition: Partition, trained: int | None) -> str:
    if trained is None:
        return f"{partition} (new)"
    return f"{partition} (trained up to offset {trained:,})"
