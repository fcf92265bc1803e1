"""What is published: points, each a run of frames, and the two ways that they take from
a trainer to its servers.

    base   "begin" frame (settings), rows of all kinds, "end" frame
    delta  rows that changed since the delta before, "end" frame

The end frame holds the dense state and `End`. A base of sequence S is the state after
delta S, or a little later: the rows of delta S + 1 are all that changed since delta S,
so it fits either. Where too much has changed for a delta, a base takes its place and
its number. Every start of a trainer is a generation of its own, with a higher number
than those before, and begins with a base: so a trainer that resumed from an older
checkpoint is recognised. Optimizer state is not published.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from streamer.errors import CorruptCheckpoint
from streamer.snapshot.frames import (
    NO_ROWS,
    Arrays,
    Chunk,
    Rows,
    frame_header,
    pack_chunk,
    unpack_chunk,
)
from streamer.sources.base import Partition, Positions

BEGIN = "begin"
END = "end"


class PointId(NamedTuple):
    """Which point it is."""

    generation: int
    base: bool
    sequence: int

    def __str__(self) -> str:
        return f"{'base' if self.base else 'delta'} {self.sequence} of generation {self.generation}"


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What the end frame of a point says beside the dense state.

    Args:
        generation: which start of the trainer.
        base: whether all rows are there.
        sequence: number of the delta; of a base, that of the last delta before it.
        step: training steps.
        time_s: when the rows were copied, in seconds since the epoch.
        positions: the next offset of each partition: all events before it are in the
            rows.
        frames: number of frames before this one.
        checksum: of the frames before this one.
        before: checksum of the delta before; of a base, that of delta `sequence`, after
            which deltas go on.
        dense: values of the dense state; None if nothing has changed since the point
            before.
    """

    generation: int
    base: bool
    sequence: int
    step: int
    time_s: float
    positions: list[tuple[str, int, int]]
    frames: int = 0
    checksum: int = 0
    before: int = 0
    dense: dict[str, Any] | None = None

    @property
    def id(self) -> PointId:
        """Which point it is the end of."""
        return PointId(self.generation, self.base, self.sequence)

    @property
    def offsets(self) -> dict[Partition, int]:
        """The positions by partition."""
        return {
            Partition(topic, number): offset for topic, number, offset in self.positions
        }


def listed(positions: Positions) -> list[tuple[str, int, int]]:
    """Positions as `End` holds them."""
    return [
        (topic, number, int(offset))
        for (topic, number), offset in sorted(positions.items())
    ]


class Frames:
    """Packs the frames of one point, and sums them up in the last."""

    def __init__(self) -> None:
        self.count = 0
        self.checksum = 0
        self.bytes = 0

    def pack(
        self,
        kind: str,
        rows: Rows,
        arrays: Arrays,
        values: Mapping[str, Any] | None = None,
    ) -> bytes:
        """One frame."""
        frame = pack_chunk(kind, rows, arrays, values)
        self._add(frame)
        return frame

    def end(self, end: End, dense: Arrays) -> bytes:
        """The last frame; `checksum` is that of the whole point afterwards."""
        whole = msgspec.structs.replace(end, frames=self.count, checksum=self.checksum)
        return self.pack(END, NO_ROWS, dense, msgspec.to_builtins(whole))

    def _add(self, frame: bytes | memoryview) -> None:
        crc32, _ = frame_header(memoryview(frame)[:16])
        self.count = self.count + 1
        self.checksum = zlib.crc32(crc32.to_bytes(4, "little"), self.checksum)
        self.bytes += len(frame)

    def unpack(
        self, frames: Iterable[bytes | bytearray | memoryview]
    ) -> Iterator[Chunk | tuple[End, Chunk]]:
        """The chunks of a point, and at last its end with the dense state.

        Raises:
            CorruptCheckpoint: a frame is damaged, missing or out of place.
        """
        for frame in frames:
            count = self.count
            checksum = self.checksum
            chunk = unpack_chunk(frame)
            self._add(memoryview(frame))
            if chunk.kind != END:
                yield chunk
                continue
            try:
                end = msgspec.convert(chunk.values, End)
            except msgspec.ValidationError as error:
                raise CorruptCheckpoint(
                    f"the end of a point cannot be read: {error}"
                ) from error
            if (end.frames, end.checksum) != (count, checksum):
                raise CorruptCheckpoint(
                    f"a point has {count} frames that do not fit its end, which says {end.frames}"
                )
            yield end, chunk
            return
        raise CorruptCheckpoint("a point has no end")


class Point(NamedTuple):
    """A point as it was read: its frames are not checked yet."""

    id: PointId
    frames: Iterable[bytes | bytearray | memoryview]


class Writer(Protocol):
    """Where points are written to. All methods may raise `SourceUnavailable`, and are
    then tried again.
    """

    def begin(self) -> int:
        """Start a generation, and return its number, higher than all before."""
        ...

    def write(self, point: PointId, frames: Iterable[bytes]) -> None:
        """Write a point whole, or not at all as far as readers can see; twice does no
        harm.
        """
        ...

    def prune(self, base: PointId) -> None:
        """Remove what no reader needs any more: everything before the base before this
        one.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Reader(Protocol):
    """Where points are read from."""

    def poll(self, timeout_s: float) -> Point | None:
        """The next point: a base first, then its deltas in order; None if there is none
        in time.

        A base also comes when a higher generation has one, and when deltas are missing.
        What comes may be damaged, doubled, or of an older generation: the caller looks.

        Raises:
            SourceUnavailable: it cannot be read now; try again.
        """
        ...

    def refuse(self, point: PointId) -> None:
        """The point that came last could not be used: it does not come again, and a
        newer base comes in its place.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...
