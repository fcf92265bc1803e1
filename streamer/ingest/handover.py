"""What happens when partitions are assigned to us, revoked, or lost."""

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
    `poll`: the reading thread waits for it.
    """

    def __init__(self, ingest: Ingest, stop_condition: StopCondition) -> None:
        self._ingest = ingest
        self._stop_condition = stop_condition

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        """Return how far we have trained these partitions; the first time, the
        checkpoint's positions.
        """
        new = list(partitions)
        with self._ingest.changed:
            self._ingest.rebalances += 1
            self._ingest.read_on()
            earlier = {p.topic for p in self._ingest.offsets.snapshot().positions}
            trained = self._ingest.offsets.assign(new)
        if earlier and (other := {p.topic for p in new} - earlier):
            logger.warning(
                "Reading topic %s; the model was trained on %s so far.",
                ", ".join(sorted(other)),
                ", ".join(sorted(earlier)),
            )
        logger.info("Assigned partitions: %s", _named(new, trained) or "none")
        return trained

    def on_start(self, starts: Positions) -> Positions:
        """Return where to start: earlier, if not all before is counted."""
        return self._ingest.owner.claim(starts)

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
        offsets = ingest.offsets
        # 1.
        self._drop(gone)
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
                logger.warning(
                    "Revoked partitions were not saved within %.0f s; their next owners "
                    "resume at the last commit: %s",
                    HANDOVER_S,
                    _named(offsets.releasing(), trained),
                )
            ingest.handover_wanted = False
            offsets.release(gone)
        logger.info("Revoked partitions: %s", _named(gone, trained))
        # 4.
        ingest.owner.release(gone)

    def on_lost(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that others may have been given already: what is queued of
        them is dropped, and nothing is saved or committed for them.
        """
        gone = frozenset(partitions)
        self._drop(gone)
        with self._ingest.changed:
            self._ingest.offsets.revoke(gone)
            self._ingest.offsets.release(gone)
            trained = self._ingest.offsets.snapshot().positions
        logger.warning(
            "Lost partitions: %s. Others may have trained them since.",
            _named(gone, trained),
        )
        self._ingest.owner.release(gone)

    def _drop(self, gone: frozenset[Partition]) -> None:
        """Drop what is queued of partitions, and wait for the step that runs."""
        ingest = self._ingest
        with ingest.changed:
            self._stop_condition.count(-ingest.batcher.drop(gone))
            ingest.read_on()  # what was dropped is to be read again
            ingest.changed.wait_for(
                lambda: ingest.stopping or not ingest.in_training & gone
            )


def _named(partitions: Iterable[Partition], trained: Positions) -> str:
    """Partitions, and how far each is trained."""
    names: list[str] = []
    for partition in sorted(partitions):
        at = trained.get(partition)
        how_far = "new" if at is None else f"trained up to offset {at:,}"
        names.append(f"{partition} ({how_far})")
    return ", ".join(names)
