"""Reading ahead: a thread that polls and decodes while the trainer trains, and the seam between the two.

The queue between them is bounded in events. When it is full, the thread goes on polling for nothing: a group's
membership is kept alive however long a step or a checkpoint takes.

Both sides share one lock. The trainer marks what it is training; a revocation drops what waits and then waits for that
mark to go, so that when partitions leave, all of their events are either trained and counted or forgotten, and the
position from which they are read again is the live one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from streamer.batcher import Batcher, MicroBatch
from streamer.errors import SourceUnavailable
from streamer.event import EventDecoder
from streamer.sources.base import Chunk, Partition, Positions, Source

logger = logging.getLogger(__name__)

POLL_S = 0.2
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.5, 15.0


class Ingest:
    """Feeds the trainer with micro-batches.

    Args:
        make_source: makes a source; called again after one that could not be opened.
        decoder: from records to events.
        batcher: from events to micro-batches; used under this object's lock only.
        positions: where to go on, from a checkpoint; partitions that are not in it start by the source's policy.
        max_queued_events: reading pauses while so many events wait.
        until_end: stop at the end of each partition as it was when reading began.
        max_events: stop after so many events have been read; a record is never split.
    """

    def __init__(
        self,
        make_source: Callable[[], Source],
        decoder: EventDecoder,
        batcher: Batcher,
        positions: Positions | None = None,
        max_queued_events: int = 16_384,
        until_end: bool = False,
        max_events: int | None = None,
    ) -> None:
        self._make_source, self._decoder, self._batcher = make_source, decoder, batcher
        self._max_queued, self._until_end, self._left = max_queued_events, until_end, max_events
        self._changed = threading.Condition()
        self._start_at = dict(positions or {})
        self._trained: dict[Partition, int] = {}  # of partitions that are ours: next offset to train
        self._ends: dict[Partition, int] = {}  # with until_end: where each partition ended at the start
        self._in_flight: frozenset[Partition] = frozenset()
        self._stopping = self._at_end = False
        self._error: BaseException | None = None
        self._source: Source | None = None
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)
        self.read_seconds = self.decode_seconds = 0.0
        self.rebalances = 0

    # the trainer's side ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    @contextmanager
    def batch(self, timeout_s: float) -> Iterator[MicroBatch | None]:
        """The next micro-batch, or None if there is none in time; when the block ends well, it counts as trained."""
        batch = self._take(timeout_s)
        try:
            yield batch
        except BaseException:
            self._release({})
            raise
        self._release(batch.positions if batch is not None else {})

    def _take(self, timeout_s: float) -> MicroBatch | None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                batch = self._batcher.flush() if self._at_end else self._batcher.take()
                if batch is not None or self._at_end:
                    break
                due = self._batcher.next_deadline()
                wait_s = min(deadline, due if due is not None else deadline) - time.monotonic()
                if time.monotonic() >= deadline:
                    return None
                self._changed.wait(max(wait_s, 0.001))
            if batch is not None:
                self._in_flight = frozenset(batch.positions)
            self._changed.notify_all()
            return batch

    def _release(self, positions: Mapping[Partition, int]) -> None:
        with self._changed:
            self._trained |= {p: offset for p, offset in positions.items() if p in self._trained}
            self._in_flight = frozenset()
            self._changed.notify_all()

    @property
    def finished(self) -> bool:
        """Everything that was to be read is read and taken."""
        with self._changed:
            return self._at_end and self._batcher.waiting == 0 and self._batcher.next_deadline() is None

    def positions(self) -> dict[Partition, int]:
        """Live progress: for each of our partitions the next offset to train."""
        with self._changed:
            return dict(self._trained)

    def lag(self) -> dict[Partition, int]:
        """For each of our partitions how many offsets are not trained yet."""
        source = self._source
        ends = source.end_positions() if source is not None else {}
        trained = self.positions()
        return {p: max(0, end - trained[p]) for p, end in ends.items() if p in trained}

    @property
    def queued_events(self) -> int:
        """Events that wait to be trained."""
        with self._changed:
            return self._batcher.waiting

    def commit(self, positions: Positions) -> None:
        """Tell the source what is safe."""
        if self._source is not None:
            self._source.commit(positions)

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop reading, leave the group. What waits is forgotten; it will be read again."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # Listener: inside open and poll, on the reading thread ------------------------------------------------------------

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        """Reading goes on at the live position; the first time, at the checkpoint's."""
        with self._changed:
            answers = {p: self._start_at[p] for p in partitions if p in self._start_at}
            self._trained |= answers
            self.rebalances += 1
            return answers

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        """Forget what waits, let the step that runs end, and remember how far we came."""
        gone = frozenset(partitions)
        with self._changed:
            self._batcher.drop(gone)
            while self._in_flight & gone and not self._stopping:
                self._changed.wait(0.1)
            for p in gone:
                if p in self._trained:
                    self._start_at[p] = self._trained.pop(p)

    # the reading thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            source = self._open()
            if source is None:
                return
            try:
                self._read_all(source)
            finally:
                source.close()
        except BaseException as error:
            logger.debug("reading stopped", exc_info=True)
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _open(self) -> Source | None:
        """Open a source, trying again with growing pauses while the other side is away."""
        backoff_s = FIRST_BACKOFF_S
        while not self._stopping:
            source = self._make_source()
            try:
                source.open(self)
            except SourceUnavailable as error:
                source.close()
                logger.warning("%s; trying again in %.0f s", error, max(backoff_s, 1))
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, backoff_s)
                backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
                continue
            self._source = source
            if self._until_end:
                self._ends = dict(source.end_positions())
                logger.info("reading to the end: %s", _listed(self._ends))
            return source
        return None

    def _read_all(self, source: Source) -> None:
        while not self._stopping:
            if self._is_at_end(source):
                with self._changed:
                    self._at_end = True
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._stopping, POLL_S)
                source.poll(0, 0.0)  # stay in the group until the last batch is trained
                continue
            if not self._has_room():
                source.poll(0, 0.0)
                continue
            started = time.perf_counter()
            chunks = source.poll(self._wanted(), POLL_S)
            self.read_seconds += time.perf_counter() - started
            for chunk in chunks:
                self._add(chunk)

    def _has_room(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping or self._batcher.waiting < self._max_queued, POLL_S)

    def _wanted(self) -> int:
        wanted = max(1, self._max_queued // 4)
        return wanted if self._left is None else min(wanted, self._left)

    def _add(self, chunk: Chunk) -> None:
        partition = chunk.partition
        if partition in self._ends:
            chunk = _before(chunk, self._ends[partition])
        if not len(chunk):
            return
        started = time.perf_counter()
        decoded = self._decoder.decode(chunk)
        self.decode_seconds += time.perf_counter() - started
        with self._changed:
            self._trained.setdefault(partition, chunk.offsets[0])
            self._batcher.add(decoded)
            if self._left is not None:
                self._left = max(0, self._left - decoded.consumed)
            self._changed.notify_all()

    def _is_at_end(self, source: Source) -> bool:
        if self._left == 0:
            return True
        if source.at_end or not self._until_end:
            return source.at_end
        read = source.positions()
        return all(read[p] >= end for p, end in self._ends.items() if p in read)


def _listed(positions: Positions) -> str:
    return ", ".join(f"{partition} to {offset:,}" for partition, offset in sorted(positions.items())) or "nothing yet"


def _before(chunk: Chunk, end: int) -> Chunk:
    """The records of a chunk below an offset."""
    if chunk.offsets[-1] < end:
        return chunk
    n = sum(offset < end for offset in chunk.offsets)
    return Chunk(chunk.partition, chunk.offsets[:n], chunk.timestamps_ms[:n], chunk.keys[:n], chunk.values[:n])
