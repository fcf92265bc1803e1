"""Runs of `streamer run` that are killed, and what is left of them."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands import PATIENCE_S, Command
from line_harness import NOON_MS, events

from streamer.event import encode

TINY = [
    *("--dim", "8", "--batch-size", "64", "--max-age", "0", "--cache-size", "64", "--set", "hash_slots=64"),
    *("--threads", "1", "--json", "--event-type", "buy"),
]
"""A run that is quick, and whose batches end at the same events whenever they come."""


def records(count: int) -> list[bytes]:
    """Events of which some are filtered and some are no events at all."""
    stream = events(count, users=300, items=200)
    values = [encode(user, item, NOON_MS / 1000, event_type="buy") for user, item in stream]
    for k in range(50, count, 101):
        values[k] = encode("u", "i", 1.0, event_type="view")
    for k in range(70, count, 997):
        values[k] = b"no event %d" % k
    return values


def trained_items(values: Sequence[bytes]) -> Counter[str]:
    """How often each item of such records is to be trained."""
    found = [json.loads(value) for value in values if value.startswith(b"{")]
    return Counter(event["item_id"] for event in found if event["event_type"] == "buy")


class Zygote:
    """Runs the command to its end, or until it is killed."""

    def __init__(self, directory: Path) -> None:
        self._output = directory / "run"

    def run(self, arguments: Sequence[Any], kill_after_s: float | None = None) -> int:
        """Run to the end, or until SIGKILL; returns the return code."""
        self._last = Command(arguments, self._output)
        if kill_after_s is not None:
            deadline = time.monotonic() + kill_after_s
            while self._last.code is None and time.monotonic() < deadline:
                time.sleep(0.001)
            self._last.signal(signal.SIGKILL)
        return self._last.ended()[0]

    def summary(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Run undisturbed; returns the summary that is printed at the end."""
        assert self.run(arguments) == 0, self.errors
        return self._summary

    def summary_after_kills(
        self, arguments: Sequence[Any], rng: random.Random, longest_s: float
    ) -> tuple[dict[str, Any], int]:
        """Start again after every SIGKILL, each at a random moment, until a run gets to the end.

        The first ones live shortly; each may live a little longer than the one before, so that this ends on the
        slowest machine.

        Returns:
            The summary of the last run, and how many were killed.
        """
        kills, deadline = 0, time.monotonic() + 2 * PATIENCE_S
        while (code := self.run(arguments, rng.uniform(0, longest_s) * min(1, 0.2 + kills / 4) * 1.03**kills)) != 0:
            assert code == -signal.SIGKILL, self.errors
            assert time.monotonic() < deadline, f"not at the end after {kills} kills"
            kills += 1
        return self._summary, kills

    @property
    def _summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._last.printed())
        return found

    @property
    def errors(self) -> str:
        """The last run's standard error."""
        return self._last.said()
