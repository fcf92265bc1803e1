"""The thread that runs the Kafka consumer, so that the polling thread is free to answer
its questions.

kafka-python calls a rebalance listener on its I/O thread, while the caller of `poll` is
blocked. A `RebalanceListener` is promised the polling thread. So the polling thread has
`poll` run here, and answers meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
Jobs = queue.SimpleQueue[Callable[[], None] | None]

ASK_S = 0.005
"""How often the client's I/O thread looks whether its question is answered."""


class ClientThread:
    """Runs calls one after the other. `run` is for one thread, `ask` for any other."""

    def __init__(self, name: str) -> None:
        self._jobs: Jobs = queue.SimpleQueue()
        self._inbox: Jobs | None = None
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """Return what `call()` returns, and answer what is asked until then.

        Raises:
            TimeoutError: it takes longer than `timeout_s`; it goes on behind our back.
        """
        result: Future[T] = Future()
        inbox: Jobs = queue.SimpleQueue()
        self._inbox = inbox
        result.add_done_callback(lambda _: inbox.put(None))
        self._jobs.put(lambda: _fulfil(result, call))
        try:
            while (question := inbox.get(timeout=timeout_s)) is not None:
                question()
        except queue.Empty:
            raise TimeoutError(f"no end after {timeout_s:.1f} s") from None
        finally:
            self._inbox = None
        return result.result()

    async def ask(
        self, question: Callable[[], None], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        """Have `question()` done by the thread that waits in `run`; nobody does if that
        was interrupted.

        For the client's I/O thread, which goes on meanwhile: it sends heartbeats.
        `sleep` is that of its loop.
        """
        inbox = self._inbox
        if inbox is None:
            return
        answer: Future[None] = Future()
        inbox.put(lambda: _fulfil(answer, question))
        while self._inbox is inbox and not answer.done():
            await sleep(ASK_S)

    def stop(self) -> None:
        """End the thread after what it is doing."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
