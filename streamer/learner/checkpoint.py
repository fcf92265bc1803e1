"""Settings of learners, and what a checkpoint says of one."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from streamer.accounting import Accounting
from streamer.errors import CheckpointError, IncompatibleCheckpoint, SettingsError
from streamer.model.setting import nearest
from streamer.model.settings import LearnerSettings
from streamer.snapshot import Checkpoint, SnapshotDirectory


def checkpoint_meta(
    settings: LearnerSettings, values: dict[str, Any]
) -> dict[str, Any]:
    """What a checkpoint says beside rows and arrays; a run adds its offsets and
    accounting.
    """
    return {
        "settings": msgspec.to_builtins(settings),
        "learner": values,
        "positions": [],
        "accounting": Accounting().to_json(),
        "threads": torch.get_num_threads(),
        "saved_at": time.time(),
    }


def learner_settings(
    settings: LearnerSettings | None, changes: dict[str, Any]
) -> LearnerSettings:
    """The settings of a learner, from those of a whole run or from the defaults, with
    some changed.

    Raises:
        SettingsError: there is no such setting.
    """
    if unknown := [name for name in changes if name not in LearnerSettings.all()]:
        known = LearnerSettings.all()
        raise SettingsError(
            [f"a learner has no setting {n!r}{nearest(n, known)}" for n in unknown]
        )
    base = settings.only(LearnerSettings) if settings is not None else LearnerSettings()
    return dataclasses.replace(base, **changes)


def newest_checkpoint(directory: str | Path) -> Checkpoint:
    """The newest checkpoint in a directory, written by `save` or by `streamer run`.

    Raises:
        CheckpointError: there is none, or none that this version can read.
    """
    checkpoint = SnapshotDirectory(directory).load()
    if checkpoint is None:
        raise CheckpointError(f"there is no checkpoint in {directory}")
    return checkpoint


def checkpoint_settings(checkpoint: Checkpoint) -> LearnerSettings:
    """The settings that a checkpoint was written with.

    Raises:
        IncompatibleCheckpoint: another version of Streamer wrote it.
    """
    try:
        return msgspec.convert(checkpoint.meta["settings"], LearnerSettings)
    except (KeyError, msgspec.ValidationError) as error:
        raise IncompatibleCheckpoint(
            f"{checkpoint.path} was written by another version: {error}"
        ) from error
