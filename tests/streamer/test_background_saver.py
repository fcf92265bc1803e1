"""Saving beside training: one at a time, the newest waits, errors are told, close waits."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest

from streamer.checkpoint import BackgroundSaver, CheckpointStore
from streamer.errors import CheckpointError


class BlockingStore:
    """Saves only when it is told to; remembers what it saved, and how many saves ran at once."""

    def __init__(self):
        self.may_save = threading.Semaphore(0)
        self.started = threading.Semaphore(0)
        self.saved = []
        self.error = None
        self._running = 0
        self.most_at_once = 0

    def save(self, tensors, meta):
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        self.started.release()
        self.may_save.acquire()
        self._running -= 1
        if self.error is not None:
            raise self.error
        self.saved.append(meta["number"])
        return Path(f"ckpt-{meta['number']}")


@pytest.fixture
def blocking():
    return BlockingStore()


@pytest.fixture
def saver(blocking):
    with BackgroundSaver(blocking) as saver:
        yield saver
        for _ in range(10):
            blocking.may_save.release()


def test_the_future_gives_the_path_of_what_can_be_loaded(tmp_path):
    with CheckpointStore(tmp_path) as store, BackgroundSaver(store) as saver:
        path = saver.submit({"x": np.arange(3)}, {"number": 1}).result()
        assert path == store.list()[-1]
        assert store.load().meta == {"number": 1}


def test_submit_returns_while_the_save_is_under_way(saver, blocking):
    assert not saver.busy
    future = saver.submit({}, {"number": 1})
    blocking.started.acquire()
    assert not future.done()
    assert saver.busy
    blocking.may_save.release()
    assert future.result() == Path("ckpt-1")


def test_a_newer_state_takes_the_place_of_the_one_that_waits(saver, blocking):
    first = saver.submit({}, {"number": 1})
    blocking.started.acquire()
    second, third = saver.submit({}, {"number": 2}), saver.submit({}, {"number": 3})
    assert second.cancelled()
    blocking.may_save.release()
    blocking.may_save.release()
    assert (first.result(), third.result()) == (Path("ckpt-1"), Path("ckpt-3"))
    with pytest.raises(CancelledError):
        second.result()
    assert blocking.saved == [1, 3]
    assert blocking.most_at_once == 1


@pytest.mark.parametrize("error", [CheckpointError("disk full"), ValueError("a bug")])
def test_a_failed_save_is_told_and_the_next_one_is_tried(saver, blocking, caplog, error):
    blocking.error = error
    blocking.may_save.release()
    assert saver.submit({}, {"number": 1}).exception() is error
    assert (saver.failures_total, saver.last_error) == (1, error)
    assert f"a checkpoint could not be saved, and training goes on: {error}" in caplog.text
    blocking.error = None
    blocking.may_save.release()
    assert saver.submit({}, {"number": 2}).result() == Path("ckpt-2")
    assert (saver.failures_total, saver.last_error) == (1, None)


def test_close_waits_for_what_is_under_way_and_for_what_waits(blocking):
    told = []
    saver = BackgroundSaver(blocking, on_saved=told.append)
    futures = [saver.submit({}, {"number": 1})]
    blocking.started.acquire()
    futures.append(saver.submit({}, {"number": 2}))
    blocking.may_save.release()
    blocking.may_save.release()
    saver.close()
    assert [future.result() for future in futures] == told == [Path("ckpt-1"), Path("ckpt-2")]
    saver.close()


def test_a_closed_saver_takes_nothing_more(blocking):
    saver = BackgroundSaver(blocking)
    saver.close()
    with pytest.raises(CheckpointError, match="closed"):
        saver.submit({}, {"number": 1})


def test_on_saved_is_not_called_for_a_failed_save(blocking):
    told = []
    blocking.error = CheckpointError("disk full")
    with BackgroundSaver(blocking, on_saved=told.append) as saver:
        blocking.may_save.release()
        saver.submit({}, {"number": 1})
    assert told == []


def test_an_error_in_on_saved_does_not_end_the_saver(blocking, caplog):
    def broken(path):
        raise RuntimeError("cannot commit")

    with BackgroundSaver(blocking, on_saved=broken) as saver:
        for number in (1, 2):
            blocking.may_save.release()
            assert saver.submit({}, {"number": number}).result() == Path(f"ckpt-{number}")
    assert "cannot commit" in caplog.text


def test_a_cancelled_future_is_not_saved(saver, blocking):
    saver.submit({}, {"number": 1})
    blocking.started.acquire()
    assert saver.submit({}, {"number": 2}).cancel()
    blocking.may_save.release()
    blocking.may_save.release()
    saver.close()
    assert blocking.saved == [1]


def test_a_saved_state_is_let_go(saver, blocking):
    state = {"x": np.zeros(3)}
    alive = threading.Event()

    class Watched(dict):
        def __del__(self):
            alive.set()

    saver.submit(Watched(state), {"number": 1})
    blocking.started.acquire()
    assert not alive.is_set()
    blocking.may_save.release()
    assert alive.wait(30)
