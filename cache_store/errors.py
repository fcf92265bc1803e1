"""Every error that the store raises on purpose.

StoreError
├── StoreRefused        it answers, and will never do what is asked: password, rights, other contents
│   └── Damaged         what is under the keys of a model is not what we write
├── StoreUnavailable    it does not answer now, or cannot write now; trying again may help
└── Fenced              another trainer has taken over one of our partitions
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of all errors of the store."""

    reason = "other"
    """A word for metrics."""


class StoreRefused(StoreError):  # noqa: N818  (reads as a state, like ConnectionRefused)
    """The server answers, and will never do what is asked."""

    reason = "refused"


class Damaged(StoreRefused):
    """What is under the keys of a model is not what we write, or a part of it is gone."""


class StoreUnavailable(StoreError):  # noqa: N818
    """The server does not answer now, or cannot write now.

    Args:
        reason: a word for metrics: `unreachable`, `slow`, `full`, `read-only`, `loading`, `broken`.
        message: what happened, where, and what to try.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Fenced(StoreError):  # noqa: N818
    """Another trainer has taken over one of our partitions: this process is a zombie and must stop."""

    reason = "fenced"
