"""A directory for temporary files, which does not outlive its process for long.

Its owner holds a lock on a file in it for as long as it lives; the lock of a killed process is free. So whoever needs
such a directory removes first those whose lock it gets, and never one that is used, not even by another container.
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


class Scratch:
    """A new directory, removed by `close` or when the process ends.

    Args:
        parent: where it is made. None: where the system has temporary files.

    Raises:
        OSError: it cannot be made, or not be locked.
    """

    def __init__(self, parent: Path | None = None) -> None:
        where = Path(tempfile.gettempdir()) if parent is None else parent
        remove_abandoned(where)
        self._lock: int | None = None
        while self._lock is None:  # somebody may take it for abandoned before it is locked
            self._directory = tempfile.TemporaryDirectory(prefix=PREFIX, dir=where, ignore_cleanup_errors=True)
            self.path = Path(self._directory.name)
            (self.path / LOCK).touch()
            self._lock = _locked(self.path / LOCK)

    def close(self) -> None:
        """Remove it. May be called twice."""
        self._directory.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_abandoned(where: Path) -> None:
    """Remove the directories of processes that were killed; one in which there is nothing to lock is left alone."""
    for path in where.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path.parent, ignore_errors=True)
                os.close(lock)


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a file; None if somebody else holds it, or the file is gone.

    Raises:
        OSError: it may not be opened, or the file system knows no locks.
    """
    with suppress(FileNotFoundError, BlockingIOError), ExitStack() as opened:
        descriptor = os.open(path, os.O_RDWR)
        opened.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.stat()
        opened.pop_all()
        return descriptor
    return None
