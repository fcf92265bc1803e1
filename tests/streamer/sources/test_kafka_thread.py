"""The thread that runs the client while the caller answers its questions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from streamer.sources.kafka.thread import ClientThread


@pytest.fixture
def thread() -> Iterator[ClientThread]:
    thread = ClientThread("test-client")
    yield thread
    thread.stop()


def test_call_runs_elsewhere_and_questions_are_answered_here(thread: ClientThread) -> None:
    answered: list[int] = []

    def call() -> int:
        for _ in range(3):
            asyncio.run(thread.ask(lambda: answered.append(threading.get_ident()), asyncio.sleep))
        assert len(answered) == 3, "ask returns when it is done"
        return threading.get_ident()

    assert thread.run(call) != threading.get_ident()
    assert answered == [threading.get_ident()] * 3


def test_error_of_the_call_comes_out(thread: ClientThread) -> None:
    def fail() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError):
        thread.run(fail)
    assert thread.run(lambda: 1) == 1


def test_nobody_waits_for_an_answer_when_nobody_answers(thread: ClientThread) -> None:
    """As after a Ctrl-C in `run`: the client must not hang."""
    asked, released = threading.Event(), threading.Event()

    def call() -> None:
        released.wait()
        asyncio.run(thread.ask(asked.set, asyncio.sleep))
        asked.set()

    with pytest.raises(TimeoutError):
        thread.run(call, timeout_s=0.01)
    released.set()
    assert asked.wait(60)
    assert thread.run(lambda: 1) == 1
