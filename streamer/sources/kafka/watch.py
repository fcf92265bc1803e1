"""Watches Kafka: looks up where our partitions end, and logs once if no broker
responds.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from kafka import TopicPartition

from streamer.sources.base import Partition
from streamer.sources.kafka.client import ClientLog
from streamer.sources.kafka.progress import Progress
from streamer.sources.kafka.thread import ClientThread

log = logging.getLogger(__name__)

EVERY_S = 1.0
PATIENCE_MS = 3_000
ASKING = "streamer-kafka-ends"


class Watch:
    """A thread that looks every second. (The client's look-ups may be called by any
    thread.)

    Args:
        consumer: the client.
        progress: gets the ends.
        where: what to call Kafka in messages.
    """

    def __init__(self, consumer: Any, progress: Progress, where: str) -> None:
        self._consumer = consumer
        self._progress = progress
        self._where = where
        # A broker responds only after a fetch that it holds back until there is
        # something to return.
        self._patience_ms = PATIENCE_MS + consumer.config["fetch_max_wait_ms"]
        self._partitions: list[Partition] = []
        self._away_since: float | None = None
        self.problem: str | None = None
        """Since the last look, if nobody answered it."""
        self._stopped = threading.Event()
        self._asking = ClientThread(ASKING)

    def start(self) -> None:
        threading.Thread(
            target=self._run, name="streamer-kafka-watch", daemon=True
        ).start()

    def stop(self) -> None:
        self._stopped.set()
        self._asking.stop()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            self.look()

    def look(self) -> None:
        """Look once; without partitions, whether somebody responds for those that we
        had.
        """
        partitions, changes = self._progress.known()
        self._partitions = partitions or self._partitions
        if not self._partitions:
            return
        wanted = [TopicPartition(*partition) for partition in self._partitions]
        try:
            ends = self._asking.run(
                lambda: self._consumer.end_offsets(
                    wanted, timeout_ms=self._patience_ms
                ),
                2 * self._patience_ms / 1000,
            )
        except (
            Exception
        ) as error:  # whatever it is: errors that matter come up where we poll
            if (
                isinstance(error, TimeoutError) and not self._stopped.is_set()
            ):  # the client may never return
                self._asking.stop()
                self._asking = ClientThread(ASKING)
            self._note_away(error)
        else:
            self._note_back()
            if partitions:
                self._progress.set_ends(
                    {Partition(*tp): end for tp, end in ends.items()}, changes
                )

    def _note_away(self, error: Exception) -> None:
        if self._away_since is None and not self._stopped.is_set():
            self._away_since = time.monotonic()
            self.problem = f"{self._where} does not respond ({ClientLog.attach().last_warning() or error})"
            log.warning("%s; reading resumes when it is back", self.problem)

    def _note_back(self) -> None:
        if self._away_since is not None:
            log.warning(
                "%s responds again after %.0f s",
                self._where,
                time.monotonic() - self._away_since,
            )
            self._away_since = self.problem = None
