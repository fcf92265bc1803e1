"""The thread that writes snapshots beside training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class SnapshotWriter:
    """Runs one job at a time; one more may wait, and a newer one takes its place.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._waiting: Callable[[], None] | None = None
        self._is_running = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is written, and nothing waits."""
        with self._changed:
            return self._waiting is None and not self._is_running

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job, which handles its own errors, after the one that runs now."""
        with self._changed:
            self._waiting = job
            self._changed.notify_all()
        if not (self._thread.is_alive() or self._is_closed):
            self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is written; False if it is not in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._waiting is None and not self._is_running, timeout_s
            )

    def close(self, timeout_s: float | None = None) -> None:
        """End, after everything is written or the time is over. May be called twice."""
        self.wait(timeout_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                job = self._waiting
                self._waiting = None
                self._is_running = job is not None
            if job is None:
                return
            try:
                job()
            except Exception:
                logger.exception("A snapshot could not be written.")
            finally:
                with self._changed:
                    self._is_running = False
                    self._changed.notify_all()
