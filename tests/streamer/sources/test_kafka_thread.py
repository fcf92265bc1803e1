"""The thread that runs the client while the caller does what is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from kafka.net.selector import NetworkSelector

from streamer.sources.kafka.consumer import ClientThread


@pytest.fixture
def thread() -> Iterator[ClientThread]:
    thread = ClientThread("test-client")
    yield thread
    thread.stop()


@pytest.fixture
def loop() -> Iterator[NetworkSelector]:
    """The client's own I/O loop, which has nothing else to do: only `wakeup` has it look again."""
    loop = NetworkSelector()
    loop.start()
    yield loop
    loop.stop()


def test_call_runs_elsewhere_and_what_it_asks_for_is_done_here(thread: ClientThread, loop: NetworkSelector) -> None:
    done: list[int] = []

    def call() -> int:
        for _ in range(3):
            loop.run(thread.ask, lambda: done.append(threading.get_ident()), loop.wakeup)
        assert len(done) == 3, "ask returns when it is done"
        return threading.get_ident()

    assert thread.run(call, timeout_s=60) != threading.get_ident()
    assert done == [threading.get_ident()] * 3


def test_error_of_the_call_comes_out(thread: ClientThread) -> None:
    def fail() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError):
        thread.run(fail)
    assert thread.run(lambda: 1) == 1


@pytest.mark.parametrize("interrupted", [True, False], ids=["asked before", "asked after"])
def test_nobody_waits_when_run_was_interrupted(thread: ClientThread, loop: NetworkSelector, interrupted: bool) -> None:
    """As after a Ctrl-C in `run`: the client must not hang."""
    ended, released = threading.Event(), threading.Event()

    def interrupt() -> None:
        loop.call_soon_threadsafe(lambda: thread.ask(lambda: None, loop.wakeup))
        raise KeyboardInterrupt

    def call() -> None:
        if interrupted:
            loop.run(thread.ask, interrupt, loop.wakeup)
        released.wait()
        loop.run(thread.ask, lambda: None, loop.wakeup)
        ended.set()

    with pytest.raises((TimeoutError, KeyboardInterrupt)):
        thread.run(call, timeout_s=60 if interrupted else 0.01)
    released.set()
    assert ended.wait(60)
    assert thread.run(lambda: 1) == 1
