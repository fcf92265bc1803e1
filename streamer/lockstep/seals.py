"""How the ranks of a group learn that a checkpoint is safe on all of them: each reports
its part, and rank 0 seals the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple


class Report(NamedTuple):
    """What became of one rank's part of a checkpoint; of rank 0's part, which seals
    it, of the whole checkpoint.
    """

    agreed: int
    """Number of the agreed checkpoint, counted since the ranks started."""
    number: int
    """Of the checkpoint file that is safe; -1 if it failed."""
    crc32: int


NO_REPORT = Report(0, 0, 0)


class CheckpointSeals:
    """The reports of all ranks, exchanged with every step.

    Args:
        size: number of ranks.
        changed: guards everything here; notified when reports have come.
    """

    def __init__(self, size: int, changed: threading.Condition) -> None:
        self.agreed = 0
        """Number of the agreed checkpoint."""
        self.own = NO_REPORT
        self.has_failed = False
        """Whether our part of the agreed checkpoint could not be saved."""
        self._changed = changed
        self._reports = [NO_REPORT] * size
        self._when_sealed: dict[int, Callable[[bool], None]] = {}
        self._is_over = False

    def agree(self) -> None:
        """All ranks save now."""
        self.agreed += 1
        self.has_failed = False

    def report(self, report: Report) -> None:
        """This rank's part is safe, or has failed; the others hear of it with the next
        exchange.
        """
        with self._changed:
            self.own = report
            self.has_failed |= report.number < 0

    def report_failure(self) -> None:
        """This rank could not save its part of the agreed checkpoint."""
        self.report(Report(self.agreed, -1, 0))

    def when_sealed(self, agreed: int, done: Callable[[bool], None]) -> None:
        """Call `done` on the training thread when the checkpoint is safe on all ranks,
        or has failed.
        """
        self._when_sealed[agreed] = done

    def note(self, reports: list[Report]) -> None:
        """Take in the reports of all ranks."""
        with self._changed:
            self._reports = reports
            self._changed.notify_all()
        sealed = reports[0]
        ended = [agreed for agreed in self._when_sealed if agreed <= sealed.agreed]
        for agreed in ended:
            done = self._when_sealed.pop(agreed)
            done(agreed == sealed.agreed and sealed.number > 0)

    def wait_for_reports(self, agreed: int) -> list[Report] | None:
        """The reports of all ranks but 0 on a checkpoint; None if there will not be
        all. On the writing thread.
        """
        with self._changed:
            while True:
                if self._is_over or self.agreed > agreed:
                    return None
                if all(report.agreed == agreed for report in self._reports[1:]):
                    return self._reports
                self._changed.wait(1.0)

    def close(self) -> None:
        """Nobody is waited for any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
