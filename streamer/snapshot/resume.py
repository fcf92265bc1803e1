"""Which checkpoint a run resumes from, and what differs from the run that wrote it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import torch

from streamer.errors import CheckpointError, CorruptCheckpoint
from streamer.model.settings import LearnerSettings
from streamer.snapshot.chain import Checkpoint
from streamer.snapshot.directory import SnapshotDirectory, number_of
from streamer.snapshot.store import CheckpointStore

logger = logging.getLogger(__name__)


def load_chosen(store: CheckpointStore, path: Path) -> Checkpoint:
    """The state at a chosen checkpoint; or the newest, if the run has gone on from the
    chosen one already: after a restart.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    newest = _newest(store)
    if newest is not None and newest.meta.get("origin") == str(path.resolve()):
        logger.info(
            "The run has started from %s before: it resumes from %s.",
            path, newest.path,
        )  # fmt: skip
        return newest
    number = number_of(path)
    if not path.is_file():
        raise CheckpointError(
            f"there is no checkpoint {path}: give the path of a .base or .delta file"
        )
    later = store.paths()
    if path.parent.resolve() == store.directory.resolve():
        chosen = store.load_number(number)
        later = [one for one in later if number_of(one) > number]
    else:
        chosen = SnapshotDirectory(path.parent).load_number(number)
        store.chain.clear()
    if later:
        logger.warning(
            "Starting from %s: %s to %s are superseded. They are removed as old "
            "checkpoints are; `streamer checkpoint pin` keeps one.",
            path, later[0].name, later[-1].name,
        )  # fmt: skip
    return chosen


def _newest(store: CheckpointStore) -> Checkpoint | None:
    try:
        return store.load(prune=False)  # or the chosen one may go
    except CorruptCheckpoint as error:
        logger.warning("%s", error)
        return None


def warn_of_differences(settings: LearnerSettings, found: Checkpoint) -> None:
    """Log settings and threads that are not those of the run that wrote a checkpoint."""
    theirs = found.meta["threads"]
    ours = torch.get_num_threads()
    if theirs != ours:
        logger.warning(
            "%s was written with %d CPU threads, this run has %d: sums are rounded "
            "otherwise, so the weights will not be the same to the last bit; "
            "--threads %d keeps them so.",
            found.path, theirs, ours, theirs,
        )  # fmt: skip
    as_saved: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    for name, now in as_saved.items():
        before = found.meta["settings"].get(name)
        if before != now:
            logger.warning(
                "The setting %s was %s in %s, and is %s now.",
                name, before, found.path.name, now,
            )  # fmt: skip
