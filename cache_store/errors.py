"""Every error that the store raises on purpose.

StoreError
├── StoreRefused        the server responds and will never do what is asked: password, permissions, foreign contents
└── StoreUnavailable    the server does not respond now, or cannot write now; a retry may help
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of all errors of the store; `reason` is a word for metrics."""

    reason = "other"


class StoreRefused(StoreError):  # noqa: N818  (reads as a state, like ConnectionRefused)
    """The server responds and will never do what is asked."""

    reason = "refused"


class StoreUnavailable(StoreError):  # noqa: N818
    """The server does not respond now, or cannot write now: it is `unreachable`,
    `slow`, `full`, `read-only`, `loading` or `broken`. The message says what to try.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)
