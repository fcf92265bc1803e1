"""Every error that Streamer raises on purpose.

StreamerError
├── SettingsError            one or more settings are wrong; carries every problem at once
├── FilterError              a filter of recommendations cannot be read, or names an attribute that is not known
├── EventError               something that is to be learned is not an event; names the row
├── SourceError              a source of events cannot be used as asked
│   ├── SourceUnavailable    the other side does not respond now; trying again may help
│   ├── UnknownTopic         the topic does not exist and is not created on reading
│   └── OtherSource          what was learned so far belongs to another source
├── SharingError             what trainers share cannot be used, or another trainer has taken our place
├── GroupError               the trainers of a group lost one of them, or do not hold the same model
└── CheckpointError          a checkpoint cannot be written or read
    ├── CorruptCheckpoint    its content does not match its checksums, or a part is missing
    ├── IncompatibleCheckpoint  it was written by other settings or another version
    └── Superseded           a newer start of the trainer uses the directory

A message says what happened, where, and what to try. The command line shows it as one
line and exits with 1 (2 for SettingsError, as click does for wrong options).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence


class StreamerError(Exception):
    """Base of all errors that Streamer raises on purpose."""


class SettingsError(StreamerError):
    """One or more settings are wrong.

    Args:
        problems: one sentence for each wrong setting; all are reported together.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


class EventError(StreamerError, ValueError):
    """Something that is to be learned is not an event."""


class FilterError(StreamerError, ValueError):
    """A filter of recommendations cannot be applied."""


class SourceError(StreamerError):
    """A source of events cannot be used as asked."""


class SourceUnavailable(SourceError):  # noqa: N818  (reads as a state, like ConnectionRefused)
    """The other side does not respond now; trying again may help."""


class UnknownTopic(SourceError):  # noqa: N818
    """The topic does not exist and is not created on reading."""


class OtherSource(SourceError):  # noqa: N818
    """What was learned so far belongs to another source."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}. Give another --data-dir or --checkpoint-dir to learn from this source alone; or let the model "
            "that is there go on with it: `streamer reset --to-beginning` and the same options"
        )


class SharingError(StreamerError):
    """What trainers share cannot be used, or another trainer has taken our place."""


class GroupError(StreamerError):
    """The trainers of a group lost one of them, or do not hold the same model."""


class CheckpointError(StreamerError):
    """A checkpoint cannot be written or read."""


class CorruptCheckpoint(CheckpointError):  # noqa: N818
    """The content does not match its checksums, or a part is missing."""


class IncompatibleCheckpoint(CheckpointError):  # noqa: N818
    """The checkpoint was written by other settings or another version."""


class Superseded(CheckpointError):  # noqa: N818
    """A newer start of the trainer uses the directory: this one must neither save nor
    commit any more.
    """


def file_advice(error: OSError, choose: str) -> str:
    """What to try after the system refused a file or directory.

    Args:
        error: what it said.
        choose: how another place is chosen, e.g. "choose another file".
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"make room, or {choose}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"let this user write there, or {choose}"
    if error.errno == errno.EROFS:
        return f"mount it writable, or {choose}"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"a file or directory is in its way: {choose}"
    return f"check the path and its disk, or {choose}"
