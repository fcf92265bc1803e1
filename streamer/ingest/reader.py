"""The reading thread: opens the source, polls, decodes and queues, up to where reading
stops.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection
from contextlib import closing, suppress

from streamer.dead_letters.share import FIRST_LOOK, WINDOW
from streamer.errors import SourceUnavailable
from streamer.event import Decoded, EventDecoder
from streamer.ingest.handover import Handover
from streamer.ingest.ingest import Ingest
from streamer.sources.base import Chunk, Partition, Source

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""How long a poll waits for records, and how long at most passes between two polls
while the queue is full.
"""
LAST_BACKOFF_S = 15.0


class StopCondition:
    """Knows how much of what is read is wanted. Used by the reading thread.

    Args:
        until_end: stop at the end of each partition as it was when its reading began.
        max_events: stop after the record with which this many events are read; None for
            no limit.
    """

    def __init__(self, until_end: bool = False, max_events: int | None = None) -> None:
        self.until_end = until_end
        self._events_left = max_events
        self._ends: dict[Partition, int] = {}

    def reached(self, source: Source, assigned: Collection[Partition]) -> bool:
        """Return whether nothing more is to be read of our partitions."""
        if self._events_left == 0 or source.at_end:
            return True
        if not self.until_end:
            return False
        self._note_ends(source, assigned)
        read = source.positions()
        return all(
            p in read and p in self._ends and read[p] >= self._ends[p] for p in assigned
        )

    def _note_ends(self, source: Source, assigned: Collection[Partition]) -> None:
        """Keep the end that a partition had when it was first assigned, also if it goes
        and comes back.
        """
        new = [p for p in assigned if p not in self._ends]
        ends = source.end_offsets() if new else {}
        for partition in sorted(p for p in new if p in ends):
            self._ends[partition] = ends[partition]
            logger.info(
                "reading %s to its end at %s", partition, f"{ends[partition]:,}"
            )

    def before_end(self, chunk: Chunk) -> Chunk:
        """Return the records before the partition's end."""
        end = self._ends.get(chunk.partition)
        return chunk if end is None else chunk.part(0, bisect_left(chunk.offsets, end))

    def at_most(self, records: int) -> int:
        """Return how many of `records` to poll for; each holds an event at least."""
        return records if self._events_left is None else min(records, self._events_left)

    def before_max(self, chunk: Chunk, decoded: Decoded) -> Chunk:
        """Return the records up to the one with which `max_events` are read."""
        left = self._events_left
        if left is None or decoded.consumed <= left:
            return chunk
        columns = zip(
            decoded.events_upto,
            decoded.filtered_upto,
            decoded.letters_upto,
            strict=True,
        )
        return chunk.part(0, bisect_left([sum(upto) for upto in columns], left) + 1)

    def count(self, events: int) -> None:
        """Count events that were read; a negative number, if they are dropped and will
        be read again.
        """
        if self._events_left is not None:
            self._events_left = max(0, self._events_left - events)


class Reader:
    """Reads ahead of the trainer, on a thread of its own, as long as the queue has
    room.

    Args:
        make_source: makes a source; called again after one that could not be opened.
        decoder: from records to events.
        ingest: where events are queued.
        stop_condition: where reading ends; None for nowhere.
        max_queued_events: reading pauses while this many events wait.
        first_backoff_s: the first pause after a source was not available; each further
            one is twice as long.
    """

    def __init__(
        self,
        make_source: Callable[[], Source],
        decoder: EventDecoder,
        ingest: Ingest,
        stop_condition: StopCondition | None = None,
        max_queued_events: int = 16_384,
        first_backoff_s: float = 0.5,
    ) -> None:
        self._make_source = make_source
        self._decoder = decoder
        self.ingest = ingest
        self.timed: Callable[[str, float], None] = lambda phase, seconds: None
        """Called on the thread with the seconds of each "poll" that brought records,
        and of each "decode".
        """
        self._stop_condition = stop_condition or StopCondition()
        self._max_queued_events = max_queued_events
        self._first_backoff_s = first_backoff_s
        self._backoff_s = first_backoff_s
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop reading and leave the group. What is queued is not trained; it will be
        read again.
        """
        with self.ingest.changed:
            self.ingest.stopping = True
            self.ingest.changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning(
                "The source did not close within %.0f s: the process ends without waiting for it.",
                timeout_s,
            )

    def _run(self) -> None:
        try:
            source = self._open()
            if source is not None:
                with closing(source):
                    while not self.ingest.stopping:
                        self._read(source)
        except BaseException as error:  # the trainer raises it
            logger.debug("reading stopped", exc_info=True)
            with self.ingest.changed:
                self.ingest.error = error
                self.ingest.changed.notify_all()

    def _open(self) -> Source | None:
        """Return an open source, after growing pauses while the other side is away;
        None if we are stopped.
        """
        ingest = self.ingest
        listener = Handover(ingest, self._stop_condition)
        while not ingest.stopping:
            source = self._make_source()
            try:
                source.open(listener)
            except SourceUnavailable as error:
                source.close()
                self._pause_after(error)
                continue
            except BaseException:
                source.close()
                raise
            with ingest.changed:
                ingest.source = source
            return source
        return None

    def _pause_after(self, error: SourceUnavailable) -> None:
        logger.warning("%s; trying again in %.1f s", error, self._backoff_s)
        with self.ingest.changed:
            self.ingest.unavailable = str(error)
            self.ingest.changed.wait_for(lambda: self.ingest.stopping, self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)

    def _read(self, source: Source) -> None:
        """Go around the loop once.

        1. note where partitions start, and whether everything is read;
        2. commit what waited for the other trainers, and what the checkpoint holds from
           which we started;
        3. poll, decode and queue; while the queue is full, poll for nothing, so that we
           stay a member of the group however long a step or a checkpoint takes.
        """
        ingest = self.ingest
        at_end = self._stop_condition.reached(source, ingest.assigned())
        reads_all = source.at_end or source.all_assigned
        others_at_end = at_end and (reads_all or not self._stop_condition.until_end)
        positions = source.positions()
        with ingest.changed:
            # 1.
            ingest.offsets.start(positions)
            if at_end or (self._stop_condition.until_end and not self._has_room()):
                ingest.dead_letter_share.end()
            if (at_end, others_at_end) != (ingest.at_end, ingest.others_at_end):
                ingest.at_end = at_end
                ingest.others_at_end = others_at_end
                ingest.changed.notify_all()
            # 2.
            ingest.commit({})
            # 3.
            wants_more = ingest.changed.wait_for(
                lambda: ingest.stopping or self._wants_more(), POLL_S
            )
        if wants_more:
            quarter = max(1, self._max_queued_events // 4)
            if ingest.dead_letter_share.is_first_look:
                quarter = min(quarter, FIRST_LOOK)
            max_records = self._stop_condition.at_most(quarter)
            for chunk in self._poll(source, max_records, POLL_S):
                self._queue(source, chunk)
        else:
            self._poll(source, 0, 0.0)

    def _wants_more(self) -> bool:
        return not self.ingest.at_end and self._has_room()

    def _has_room(self) -> bool:
        return self.ingest.batcher.has_room(self._max_queued_events)

    def _poll(self, source: Source, max_records: int, timeout_s: float) -> list[Chunk]:
        started = time.perf_counter()
        try:
            chunks = source.poll(max_records, timeout_s)
        except SourceUnavailable as error:
            self._pause_after(error)
            return []
        self._backoff_s = self._first_backoff_s
        self.ingest.unavailable = None
        if chunks:
            self.timed("poll", time.perf_counter() - started)
        return chunks

    def _queue(self, source: Source, chunk: Chunk) -> None:
        """Decode a chunk up to where reading stops, and queue it."""
        ingest = self.ingest
        stop_condition = self._stop_condition
        if not _is_ours(source, chunk):
            return
        with ingest.changed:
            ingest.offsets.start({chunk.partition: chunk.offsets[0]})
        wanted = stop_condition.before_end(chunk)
        if not len(wanted):
            return
        decoded = self._decode(source, wanted)
        if decoded is None:
            return
        fewer = stop_condition.before_max(wanted, decoded)
        if len(fewer) < len(wanted):
            decoded = self._decoder.decode(fewer)
        with ingest.changed:
            ingest.dead_letter_share.add(*decoded.last(WINDOW))
            ingest.batcher.add(decoded, lost=wanted.lost)
            stop_condition.count(decoded.consumed)
            ingest.changed.notify_all()

    def _decode(self, source: Source, chunk: Chunk) -> Decoded | None:
        """Decode a chunk. While the schema registry is away we wait, and stay a member
        of the group; None if the partition is not ours any more, or we are stopped.
        """
        while not self.ingest.stopping:
            started = time.perf_counter()
            try:
                decoded = self._decoder.decode(chunk)
            except SourceUnavailable as error:
                self._pause_after(error)
            else:
                self.timed("decode", time.perf_counter() - started)
                return decoded
            with suppress(SourceUnavailable):
                source.poll(0, 0.0)
            if not _is_ours(source, chunk):
                break
        return None


def _is_ours(source: Source, chunk: Chunk) -> bool:
    """Whether reading is beyond a chunk: not if its partition was taken away since."""
    return source.positions().get(chunk.partition, -1) > chunk.offsets[-1]
