"""Who may write into a directory: the newest start, which has the highest generation."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from pathlib import Path

from streamer.errors import CheckpointError, Superseded

logger = logging.getLogger(__name__)

LOCK = ".lock"
LOOK_S = 0.05


class Lease:
    """The right of this process to write into a directory, until a newer start takes it.

    The lock goes when the process ends, however it ends. Its file holds process and
    generation; its time is that of the holder's last sign of life.

    Args:
        directory: is there.
        takeover_s: whoever has it without a sign of life for this long is superseded;
            None: never.

    Raises:
        CheckpointError: another process has it.
    """

    def __init__(self, directory: Path, takeover_s: float | None = None) -> None:
        self._directory = directory
        path = directory / LOCK
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self.is_locked = self._acquire(takeover_s)
        except BaseException:
            self.close()
            raise
        # of two that start at the same moment, the later has the higher generation
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        self.generation = _generation_in(os.pread(self._descriptor, 64, 0)) + 1
        self._write()
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def beat(self) -> None:
        """Show a sign of life, every second or so.

        Raises:
            Superseded: a newer start has taken our place.
        """
        self.check()
        if self._descriptor >= 0:
            self.is_locked = self.is_locked or self._lock()
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)

    def check(self) -> None:
        """See that no newer start has taken our place.

        Raises:
            Superseded: one has.
        """
        check_generation(self._directory, self.generation)

    def close(self) -> None:
        """Let go of it. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _acquire(self, takeover_s: float | None) -> bool:
        """True if we have the lock; False if we take the place of a silent holder."""
        if self._lock():
            return True
        holder = os.pread(self._descriptor, 64, 0).decode(errors="replace").split()
        pid = holder[0] if holder else "unknown"
        if takeover_s is not None:
            seen = os.fstat(self._descriptor).st_mtime_ns
            deadline = time.monotonic() + takeover_s
            while os.fstat(self._descriptor).st_mtime_ns == seen:
                if time.monotonic() >= deadline:
                    logger.warning(
                        "Process %s uses %s and showed no sign of life for %.0f s: "
                        "this start takes its place.",
                        pid, self._directory, takeover_s,
                    )  # fmt: skip
                    return False
                time.sleep(LOOK_S)
                if self._lock():
                    return True
        raise CheckpointError(
            f"another process (pid {pid}) uses {self._directory}. Stop it, or choose "
            "another directory"
        )

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _write(self) -> None:
        """Process and generation, in one write: whoever reads sees either these or
        those before.
        """
        said = f"{os.getpid():<10} {self.generation:<20}\n".encode()
        with contextlib.suppress(OSError):  # on a full disk old snapshots go first
            os.pwrite(self._descriptor, said, 0)
            os.fsync(self._descriptor)


def generation_of(directory: Path) -> int:
    """The number of the latest start that writes to a directory; 0 if none is known."""
    try:
        return _generation_in((directory / LOCK).read_bytes())
    except OSError:
        return 0


def _generation_in(content: bytes) -> int:
    said = content.split()
    return int(said[1]) if len(said) > 1 and said[1].isdigit() else 0


def check_generation(directory: Path, generation: int) -> None:
    """See that no newer start uses a directory.

    Raises:
        Superseded: one does.
    """
    newest = generation_of(directory)
    if newest > generation:
        raise Superseded(
            f"a newer start (generation {newest}) uses {directory}: this one (generation "
            f"{generation}) stops, and has saved and committed nothing since. Start it "
            "again, if the newer one is gone"
        )
