"""Saving beside training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamer.checkpoint.files import Tensors
from streamer.checkpoint.store import CheckpointStore
from streamer.errors import CheckpointError

logger = logging.getLogger(__name__)


class BackgroundSaver:
    """Saves on a thread of its own, so that training goes on meanwhile.

    One save is under way at a time and at most one waits: a newer state replaces the waiting one, whose
    future is then cancelled. A failed save (disk full, permissions) is logged, counted and kept in its
    future; training goes on, and the next `submit` is the next try. Ask `busy` before copying a state, to not
    hold two copies.

        future = saver.submit(copied_tensors, meta)
        future.add_done_callback(...)   # or ask future.done() and future.result() between two steps

    Args:
        store: where to save; the caller closes it, after this saver.
        on_saved: called with the path on the saver's thread when a checkpoint is safe on disk.
    """

    def __init__(self, store: CheckpointStore, on_saved: Callable[[Path], None] | None = None) -> None:
        self._store = store
        self._on_saved = on_saved
        self._changed = threading.Condition()
        self._waiting: _Job | None = None
        self._under_way = False
        self._closed = False
        self.failures_total = 0
        self.last_error: Exception | None = None
        """Why the last save failed; None if it did not."""
        self._thread = threading.Thread(target=self._run, name="checkpoint-saver", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a save is under way or waits."""
        with self._changed:
            return self._under_way or self._waiting is not None

    def submit(self, tensors: Tensors, meta: Mapping[str, Any]) -> Future[Path]:
        """Have a state saved. It belongs to the saver from now on: the caller must have copied it.

        Returns:
            A future of the checkpoint's path; cancelled if a newer state took its place.
        """
        job = _Job(tensors, meta, Future())
        with self._changed:
            if self._closed:
                raise CheckpointError("the saver is closed: no more checkpoints can be submitted")
            replaced, self._waiting = self._waiting, job
            self._changed.notify_all()
        if replaced is not None:
            replaced.future.cancel()
        return job.future

    def close(self) -> None:
        """Wait until everything submitted is saved or has failed. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            self._save(job)
            del job  # a state is large: do not hold it while waiting for the next
            with self._changed:
                self._under_way = False

    def _next_job(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closed)
            job, self._waiting = self._waiting, None
            self._under_way = job is not None
            return job

    def _save(self, job: _Job) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            path = self._store.save(job.tensors, job.meta)
        except Exception as error:
            logger.error("a checkpoint could not be saved, and training goes on: %s", error)
            self.failures_total += 1
            self.last_error = error
            job.future.set_exception(error)
            return
        self.last_error = None
        job.future.set_result(path)
        self._tell(path)

    def _tell(self, path: Path) -> None:
        if self._on_saved is None:
            return
        try:
            self._on_saved(path)
        except Exception:
            logger.exception("the callback after checkpoint %s failed; the checkpoint is safe", path)


@dataclass(slots=True)
class _Job:
    tensors: Tensors
    meta: Mapping[str, Any]
    future: Future[Path]
