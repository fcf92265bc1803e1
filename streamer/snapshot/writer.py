"""The thread that writes snapshots beside training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class SnapshotWriter:
    """Runs one job at a time; one more may wait, and a newer one takes its place.

    Args:
        name: of the thread, which is there while there is something to write.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is written, and nothing waits."""
        return self._thread is None

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after the one that runs now."""
        with self._lock:
            self._waiting = job
            if self._thread is None:
                run = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread = run
                run.start()

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until everything is written, or the time is over."""
        if (running := self._thread) is not None:
            running.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                job = self._waiting
                self._waiting = None
                if job is None:
                    self._thread = None
                    return
            try:
                job()
            except Exception:
                logger.exception("A snapshot could not be written.")
