"""Load on a server: requests at a steady rate, or as many as it takes. Waiting counts
from when a request is due.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamer.errors import StreamerError


class _Connection:
    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> None:
        """One request and its response. One that the server gives up, because it takes
        too long, has waited until then.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"http/1.1 408"):
            self.close()
            self._streams = None
            return
        if not head.startswith(b"http/1.1 200"):
            raise StreamerError(
                f"the server refused {path}: {head.splitlines()[0].decode()}"
            )
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def _free_garbage() -> None:
    """Free what was used before, and have later collections pass over the rest: one
    amid the requests would make them wait, as if the server did.
    """
    gc.collect()
    gc.freeze()


def open_loop(
    port: int, paths: Sequence[str], rate: float, seconds: float, connections: int
) -> list[float]:
    """The waits of requests that are due at a steady rate, in seconds, with the time
    until each could be sent.
    """

    async def run() -> list[float]:
        pool = [_Connection(port) for _ in range(connections)]
        free: asyncio.Queue[_Connection] = asyncio.Queue()
        for connection in pool:
            free.put_nowait(connection)
        waits: list[float] = []
        begin = time.perf_counter()

        async def one(k: int) -> None:
            connection = await free.get()
            await connection.get(paths[k % len(paths)])
            free.put_nowait(connection)
            waits.append(time.perf_counter() - begin - k / rate)

        tasks = []
        for k in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begin + k / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(one(k)))
        await asyncio.gather(*tasks)
        for connection in pool:
            connection.close()
        return waits

    _free_garbage()
    return asyncio.run(run())


def closed_loop(
    port: int, paths: Sequence[str], seconds: float, connections: int
) -> float:
    """How many requests a second are answered, if each connection asks again at once."""

    async def run() -> float:
        begin = time.perf_counter()
        done = 0

        async def asks(number: int) -> None:
            nonlocal done
            connection = _Connection(port)
            k = number
            try:
                while time.perf_counter() - begin < seconds:
                    await connection.get(paths[k % len(paths)])
                    k = k + connections
                    done = done + 1
            finally:
                connection.close()

        await asyncio.gather(*(asks(number) for number in range(connections)))
        return done / (time.perf_counter() - begin)

    _free_garbage()
    return asyncio.run(run())


def quantiles_ms(waits: Sequence[float]) -> dict[str, Any]:
    """Median and tail of waits, in milliseconds."""
    p50, p90, p99 = np.percentile(np.array(waits) * 1000, [50, 90, 99])
    return {
        "p50_ms": round(p50, 2),
        "p90_ms": round(p90, 2),
        "p99_ms": round(p99, 2),
        "requests": len(waits),
    }


def shuffled_paths(count: int, path: str) -> list[str]:
    """Paths with the numbers of `count` users in random order."""
    numbers = list(range(count))
    random.Random(0).shuffle(numbers)
    return [path.format(number) for number in numbers]
