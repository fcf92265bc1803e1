"""A temporary directory that does not stay for long when its process is killed.

Its owner holds a lock on a file in it, and the lock of a killed process is free. So each new directory first removes
those whose lock it gets, and never one that is in use, not even by another container.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

PREFIX = "streamer-log-"
LOCK = "owner.lock"


class LockedDirectory:
    """A new directory, removed by `close` or when the process ends.

    Args:
        parent: where it is made. None: where the system has temporary files.

    Raises:
        OSError: it cannot be made or locked.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self._lock: int | None = None
        while self._lock is None:  # another process may take it for abandoned before it is locked
            self._directory = tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True)
            self.path = Path(self._directory.name)
            (self.path / LOCK).touch()
            self._lock = _lock(self.path / LOCK)

    def close(self) -> None:
        """Remove it. May be called twice."""
        self._directory.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_abandoned(parent: Path) -> None:
    """Remove the directories of processes that were killed; one without a lock file is left alone."""
    for path in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path.parent, ignore_errors=True)
                os.close(lock)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock of a file; None if another process holds it, or the file is gone.

    Raises:
        OSError: the file may not be opened, or the file system does not support locks.
    """
    with suppress(FileNotFoundError, BlockingIOError), ExitStack() as opened:
        descriptor = os.open(path, os.O_RDWR)
        opened.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.stat()  # removed before we had the lock?
        opened.pop_all()
        return descriptor
    return None
