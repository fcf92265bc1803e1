"""Watches Kafka: looks up where our partitions end, and logs once if no broker
responds.
"""

from __future__ import annotations

import logging
import threading
import time

from streamer.sources.base import Partition
from streamer.sources.kafka.client import ClientLog, in_thread
from streamer.sources.kafka.consumer import Consumer
from streamer.sources.kafka.offsets import OffsetTable

log = logging.getLogger(__name__)

EVERY_S = 1.0
PATIENCE_MS = 3_000


class Watch:
    """A thread that looks every second. (The client's lookups may be called by any
    thread.)

    Args:
        consumer: the client.
        table: gets the ends.
        where: what to call Kafka in messages.
    """

    def __init__(self, consumer: Consumer, table: OffsetTable, where: str) -> None:
        self._consumer = consumer
        self._table = table
        self._where = where
        # A broker responds only after a fetch that it holds back until there is
        # something to return.
        self._patience_ms = PATIENCE_MS + consumer.fetch_wait_ms
        self._partitions: list[Partition] = []
        self._away_since: float | None = None
        self.problem: str | None = None
        """What kept Kafka from responding to the last look."""
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(
            target=self._run, name="streamer-kafka-watch", daemon=True
        ).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            self.look()

    def look(self) -> None:
        """Look once; without partitions, whether somebody responds for those that we
        had.
        """
        rows = self._table.reading()
        self._partitions = list(rows) or self._partitions
        if not self._partitions:
            return
        try:
            asked = in_thread(
                lambda: self._consumer.end_offsets(self._partitions, self._patience_ms)
            )
            ends = asked.result(2 * self._patience_ms / 1000)
        except Exception as error:  # errors that matter come up where we poll
            self._note_away(error)
        else:
            self._note_back()
            self._table.set_ends(rows, ends)

    def _note_away(self, error: Exception) -> None:
        if self._away_since is None and not self._stopped.is_set():
            self._away_since = time.monotonic()
            warning = ClientLog.attach().last_warning() or error
            self.problem = f"{self._where} does not respond ({warning})"
            log.warning("%s; reading resumes when it is back", self.problem)

    def _note_back(self) -> None:
        if self._away_since is not None:
            away_s = time.monotonic() - self._away_since
            log.warning("%s responds again after %.0f s", self._where, away_s)
            self._away_since = None
            self.problem = None
