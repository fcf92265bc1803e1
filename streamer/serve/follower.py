"""The threads that keep a server up to date: one follows what the trainer publishes,
one the events themselves.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator

from streamer.errors import CheckpointError, SourceError, StreamerError, UnknownTopic
from streamer.event import NO_USER, EventDecoder
from streamer.serve.overlay import Event
from streamer.serve.replica import Replica
from streamer.serve.service import Service
from streamer.serve.vectors import EXACT_ITEMS
from streamer.snapshot.chain import Checkpoint
from streamer.snapshot.places import SnapshotReader
from streamer.snapshot.snapshot import SnapshotEnd
from streamer.sources.base import Chunk, Source, StartAt

logger = logging.getLogger(__name__)

POLL_S = 0.2
RETRY_S = 1.0
MAX_RECORDS = 2000


class _Thread:
    """Runs until it is closed; what goes wrong is shown, and tried again."""

    def __init__(self, name: str) -> None:
        self.problem: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, and wait for it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._work()
            except Exception as error:
                # whatever it is, requests are answered, and it is tried again
                if not isinstance(error, StreamerError):
                    logger.exception("The %s failed, will retry.", self._thread.name)
                self._note(str(error))
                self._stop.wait(RETRY_S)

    def _work(self) -> None:
        raise NotImplementedError

    def _note(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            logger.warning("%s", problem)
        if problem is None and self.problem is not None:
            logger.warning("The %s recovered.", self._thread.name)
        self.problem = problem


class Follower(_Thread):
    """Brings a service the states of a trainer.

    A snapshot that is damaged or out of order is refused: the service goes on with what
    it has until a whole state comes.

    Args:
        service: gets them.
        reader: where the trainer's states are.
        exact_items: see `Replica`.
        nothing_published: what to say while there is no state at all.
    """

    def __init__(
        self,
        service: Service,
        reader: SnapshotReader,
        exact_items: int = EXACT_ITEMS,
        nothing_published: Callable[[], str] = lambda: (
            "The trainer has published nothing."
        ),
    ) -> None:
        super().__init__("follower")
        self._service = service
        self._reader = reader
        self._exact_items = exact_items
        self._nothing_published = nothing_published

    def close(self) -> None:
        """End, and let go of the reader."""
        super().close()
        self._reader.close()

    def _note(self, problem: str | None) -> None:
        super()._note(problem)
        self._service.problem = problem

    def _work(self) -> None:
        service = self._service
        try:
            found = self._reader.poll(service.end, POLL_S)
            if found is None:
                service.caught_up = service.replica is not None
                self._note(None if service.caught_up else self._nothing_published())
            elif isinstance(found, Checkpoint):
                service.caught_up = False
                service.load(Replica(found, self._exact_items))
                _let_go_of_garbage()
                logger.info("Serving %s.", found.end)
            elif service.replica is not None:
                service.apply(service.replica.read(found))
        except SourceError:
            raise  # nothing can be read now
        except Exception as error:
            service.refused_points += 1
            service.refusal = str(error)
            self._reader.refuse()
            logger.warning(
                "Refused a snapshot, waiting for the next base: %s",
                error,
                exc_info=not isinstance(error, CheckpointError),
            )


def _let_go_of_garbage() -> None:
    """Free the replica before, and have later collections, for which all requests wait,
    pass over what is there now.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Tail(_Thread):
    """Brings a service the events of the stream, from the positions that its model has
    on.

    Args:
        service: gets them.
        make_source: reads all partitions, whoever else reads them.
        decoder: from records to events.
    """

    def __init__(
        self, service: Service, make_source: Callable[[], Source], decoder: EventDecoder
    ) -> None:
        super().__init__("tail")
        self._service = service
        self._make_source = make_source
        self._decoder = decoder
        self._opened = False

    def _note(self, problem: str | None) -> None:
        super()._note(problem)
        self._service.tail_problem = problem

    def _work(self) -> None:
        """Read one generation's events; before the first, see whether there is anything
        to read.
        """
        end = self._service.end
        if end is None and self._opened:
            self._stop.wait(POLL_S)
            return
        source = self._make_source()
        try:
            self._open(source, end)
            while end is not None and not self._stop.is_set():
                chunks = source.poll(MAX_RECORDS, POLL_S)
                served = self._service.end
                if served is None or served.generation != end.generation:
                    return  # what is served next may have begun at older positions
                for chunk in chunks:
                    events = list(self._events(chunk))
                    self._service.observe(events, end.generation)
                self._note(source.problem)
        finally:
            source.close()

    def _open(self, source: Source, end: SnapshotEnd | None) -> None:
        """Begin where what is served ends; say so if there is nothing to read."""
        try:
            source.open(StartAt(end.offsets if end is not None else {}))
        except UnknownTopic as error:
            self._service.missing_topic = str(error)
            raise
        self._opened = True
        self._service.missing_topic = None
        self._note(None)

    def _events(self, chunk: Chunk) -> Iterator[Event]:
        decoded = self._decoder.decode(chunk)
        written = dict(zip(chunk.offsets, chunk.timestamps_ms, strict=True))
        said = decoded.item_features or [None] * len(decoded)
        columns = zip(
            decoded.offsets,
            decoded.users,
            decoded.items,
            decoded.timestamps_s,
            said,
            strict=True,
        )
        for at, user, item, time_s, of_item in columns:
            if user == NO_USER and not of_item:
                continue  # nobody waits to see that an item is deleted
            appended_s = written[at] / 1000
            yield Event(chunk.partition, at, user, item, time_s, appended_s)
