"""Reading ahead: a thread that polls and decodes while the trainer trains, and the seam between the two.

The queue between them is bounded. When it is full, the thread goes on polling for nothing: a group's membership is kept
alive however long a step or a checkpoint takes.

Both sides share one lock. The trainer marks what it is training. When partitions are taken from us, what waits of them
is dropped, the step that runs is waited for, and the trainer is given the time to hand them over: to save its state and
commit how far it came, so that whoever gets them next goes on exactly there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from streamer.errors import SourceUnavailable
from streamer.event import Decoded, EventDecoder
from streamer.ingest.batcher import Batcher, MicroBatch
from streamer.ingest.offsets import Progress
from streamer.ingest.stop_condition import Limits
from streamer.sources.base import Chunk, Partition, Positions, Source

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""How long a poll waits for records, and how long at most passes between two polls while the queue is full."""
HANDOVER_S = 60.0
"""How long partitions that leave wait for a checkpoint; a group's patience is longer (max_poll_interval_ms)."""
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.5, 15.0


class Standing(NamedTuple):
    """Where training stands between two batches; everything a checkpoint must know of the stream."""

    ours: dict[Partition, int]
    """Of each of our partitions the next offset to train."""
    left: dict[Partition, int]
    """The same of partitions that were ours once."""
    leaving: dict[Partition, int]
    """Those of `left` that are being handed over: safe to commit once this is saved."""


class Owner(Protocol):
    """Who answers to others for our partitions. Called on the reading thread, but for `told`; may wait a while."""

    def claim(self, partitions: Iterable[Partition]) -> Positions:
        """These are ours now; nothing of them was read yet. Answers where some must be read from at the latest."""
        ...

    def told(self, positions: Positions) -> Positions:
        """How far others know of what came before these positions. Called on any thread; never waits."""
        ...

    def flush(self) -> None:
        """Some are about to be handed over: what was said of them must have arrived."""
        ...

    def release(self, partitions: Iterable[Partition]) -> None:
        """These are others' now."""
        ...


class Ingest:
    """Feeds the trainer with micro-batches.

    Args:
        make_source: makes a source; called again after one that could not be opened.
        decoder: from records to events.
        batcher: from events to micro-batches; used under this object's lock only.
        progress: where to go on, from a checkpoint; partitions that are not in it start by the source's policy.
        max_queued_events: reading pauses while so many events wait.
        until_end: stop at the end of each partition as it was when its reading began.
        max_events: stop after the record with which so many events are read.
        first_backoff_s: the first pause after a source was not available; each further one is twice as long.
        owner: is told when partitions come and go.
    """

    def __init__(
        self,
        make_source: Callable[[], Source],
        decoder: EventDecoder,
        batcher: Batcher,
        progress: Progress | None = None,
        max_queued_events: int = 16_384,
        until_end: bool = False,
        max_events: int | None = None,
        first_backoff_s: float = FIRST_BACKOFF_S,
        owner: Owner | None = None,
    ) -> None:
        self._owner = owner
        self._make_source, self._decoder, self._batcher = make_source, decoder, batcher
        self._progress = progress or Progress()
        self._limits = Limits(until_end, max_events)
        self._max_queued = max_queued_events
        self._first_backoff_s = self._backoff_s = first_backoff_s
        self._changed = threading.Condition()
        self._in_flight: frozenset[Partition] = frozenset()
        self._leaving: dict[Partition, int] = {}
        self._safe: dict[Partition, int] = {}  # to be committed, once others know of everything before
        self._committed: dict[Partition, int] = {}
        self._handover_wanted = False
        self._stopping = self._at_end = self._drained = False
        self._error: BaseException | None = None
        self._source: Source | None = None
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)
        self.read_seconds = self.decode_seconds = 0.0
        self.rebalances = 0
        self.timed: Callable[[str, float], None] = lambda phase, seconds: None
        """Told how long each `poll` that brought records and each `decode` took; on the reading thread."""

    # the trainer's side ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    @contextmanager
    def batch(self, timeout_s: float) -> Iterator[MicroBatch | None]:
        """The next micro-batch, or None if there is none in time; when the block ends well, it counts as trained.

        Raises:
            StreamerError: reading has failed.
        """
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
            while (batch := self._next_batch()) is None and not (self._drained or self._handover_wanted):
                wait_s = self._wait_s(deadline)
                if wait_s <= 0:
                    return None
                self._changed.wait(wait_s)
            if batch is not None:
                self._in_flight = frozenset(batch.positions)
                self._changed.notify_all()
            return batch

    def _next_batch(self) -> MicroBatch | None:
        if self._error is not None:
            raise self._error
        batch = self._batcher.flush() if self._at_end else self._batcher.take()
        self._drained = self._at_end and batch is None
        return batch

    def _wait_s(self, deadline: float) -> float:
        """Until the deadline, or until the oldest event is old enough to close a batch."""
        now, due = time.monotonic(), self._batcher.next_deadline()
        left_s = deadline - now
        return left_s if due is None else min(left_s, max(due - now, 0.001))

    def _release(self, positions: Positions) -> None:
        with self._changed:
            self._progress.train(positions)
            self._in_flight = frozenset()
            self._changed.notify_all()

    @property
    def finished(self) -> bool:
        """Everything that was to be read is read and taken."""
        return self._drained

    @property
    def handover_wanted(self) -> bool:
        """Whether partitions leave: take the standing, save and commit it, then call `handed_over`."""
        return self._handover_wanted

    def take_standing(self) -> Standing:
        """Live progress. Between two batches it belongs to what the trainer has learned."""
        with self._changed:
            self._handover_wanted = False
            return Standing(self._progress.positions(), dict(self._progress.left), dict(self._leaving))

    def handed_over(self, partitions: Iterable[Partition]) -> None:
        """These partitions may go; also if nothing could be saved."""
        with self._changed:
            for partition in partitions:
                self._leaving.pop(partition, None)
            self._changed.notify_all()

    def positions(self) -> dict[Partition, int]:
        """Of each of our partitions the next offset to train."""
        with self._changed:
            return self._progress.positions()

    def assigned(self) -> dict[Partition, int | None]:
        """Partitions that are ours now, and the next offset to train where it is known."""
        with self._changed:
            return {p: self._progress.ours.get(p) for p in self._progress.assigned}

    def lag(self) -> dict[Partition, int]:
        """For each of our partitions how many offsets are not trained yet."""
        trained = self.positions()
        return {p: max(0, end - trained[p]) for p, end in self.ends().items() if p in trained}

    def ends(self) -> Positions:
        """The offset after the last record of each of our partitions, as far as is known."""
        return self._source.end_positions() if self._source is not None else {}

    @property
    def queued_events(self) -> int:
        """Events that wait to be trained."""
        with self._changed:
            return self._batcher.waiting

    def commit(self, positions: Positions) -> None:
        """Tell the source what is safe.

        What others do not know of yet is committed later: whoever got the partition next would begin after it, and if
        we died before we told them, nobody would.
        """
        with self._changed:
            ours = self._progress.assigned | self._leaving.keys()
            self._safe |= {p: at for p, at in positions.items() if p in ours}
            self._commit_told()

    def _commit_told(self) -> None:
        if self._source is None or not self._safe:
            return
        told = self._owner.told(self._safe) if self._owner is not None else self._safe
        news = {p: at for p, at in told.items() if at != self._committed.get(p)}
        self._safe = {p: at for p, at in self._safe.items() if told[p] < at}
        self._committed |= news
        if news:
            self._source.commit(news)

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop reading, leave the group. What waits is forgotten; it will be read again."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("the source did not close within %.0f s; leaving it", timeout_s)

    # Listener: inside open and poll, on the reading thread ------------------------------------------------------------

    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        """Reading goes on at the live position; the first time, at the checkpoint's."""
        new = list(partitions)
        latest = self._owner.claim(new) if self._owner is not None else {}
        with self._changed:
            self.rebalances += 1
            return self._progress.assign(new, latest)

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        """Let partitions go.

        1. forget what waits, and let the step that runs end;
        2. what was contributed to others is safe;
        3. note how far we came, and let it be handed over;
        4. they are others' now.
        """
        gone = frozenset(partitions)
        # 1.
        with self._changed:
            self._limits.give_back(self._batcher.drop(gone))
            self._at_end = self._drained = False  # what was enough may not be any more
            self._changed.wait_for(lambda: self._stopping or not self._in_flight & gone)
        # 2.
        if self._owner is not None:
            self._owner.flush()
        # 3.
        with self._changed:
            self._leaving = self._progress.revoke(gone)
            self._wait_for_handover()
            for partition in gone:
                self._safe.pop(partition, None)
                self._committed.pop(partition, None)
        # 4.
        if self._owner is not None:
            self._owner.release(gone)

    def _wait_for_handover(self) -> None:
        self._handover_wanted = bool(self._leaving)
        self._changed.notify_all()
        if not self._changed.wait_for(lambda: self._stopping or not self._leaving, HANDOVER_S):
            logger.warning("%s left without a checkpoint after %.0f s", _listed(self._leaving), HANDOVER_S)
        self._leaving, self._handover_wanted = {}, False

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
        while not self._stopping:
            source = self._make_source()
            try:
                source.open(self)
            except SourceUnavailable as error:
                source.close()
                self._pause_after(error)
                continue
            except BaseException:
                source.close()
                raise
            self._source = source
            self.commit(self.positions())  # those of the checkpoint: a crash may have come before their commit
            return source
        return None

    def _pause_after(self, error: SourceUnavailable) -> None:
        logger.warning("%s; trying again in %.1f s", error, self._backoff_s)
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)

    def _read_all(self, source: Source) -> None:
        """Until we are stopped: 1. note where reading begins and ends; 2. commit what waited; 3. poll; 4. queue."""
        while not self._stopping:
            self._note_bounds(source)
            with self._changed:
                self._commit_told()
            if self._wait_for_room():
                for chunk in self._poll(source, self._wanted(), POLL_S):
                    self._add(chunk)
            else:
                self._poll(source, 0, 0.0)

    def _note_bounds(self, source: Source) -> None:
        positions = source.positions()
        at_end = self._limits.reached(source, self._progress.assigned)
        with self._changed:
            self._progress.begin(positions)
            if at_end != self._at_end:
                self._at_end = at_end
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """True at once if more is wanted; False after a while if the queue is full or nothing more is to be read."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping or self._has_room(), POLL_S)

    def _has_room(self) -> bool:
        return not self._at_end and self._batcher.has_room(self._max_queued)

    def _wanted(self) -> int:
        return self._limits.at_most(max(1, self._max_queued // 4))

    def _poll(self, source: Source, max_records: int, timeout_s: float) -> list[Chunk]:
        started = time.perf_counter()
        try:
            chunks = source.poll(max_records, timeout_s)
        except SourceUnavailable as error:
            self._pause_after(error)
            return []
        self._backoff_s = self._first_backoff_s
        seconds = time.perf_counter() - started
        self.read_seconds += seconds
        if chunks:
            self.timed("poll", seconds)
        return chunks

    def _add(self, chunk: Chunk) -> None:
        """Decode a chunk as far as it is wanted, and queue it."""
        with self._changed:
            self._progress.begin({chunk.partition: chunk.offsets[0]})
        wanted = self._limits.before_end(chunk)
        if not len(wanted):
            return
        decoded = self._decode(wanted)
        if len(fewer := self._limits.before_max(wanted, decoded)) < len(wanted):
            decoded = self._decode(fewer)
        with self._changed:
            self._batcher.add(decoded)
            self._limits.take(decoded.consumed)
            self._changed.notify_all()

    def _decode(self, chunk: Chunk) -> Decoded:
        started = time.perf_counter()
        decoded = self._decoder.decode(chunk)
        seconds = time.perf_counter() - started
        self.decode_seconds += seconds
        self.timed("decode", seconds)
        return decoded


def _listed(positions: Positions) -> str:
    return ", ".join(f"{partition} at {offset:,}" for partition, offset in sorted(positions.items()))
