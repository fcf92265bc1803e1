"""Saving beside training: one at a time, the newest waits, errors are logged, close waits."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from streamer.accounting import Accounting
from streamer.checkpoint.checkpointer import Checkpointer
from streamer.errors import CheckpointError
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import Learner
from streamer.model.settings import id_towers
from streamer.sharing.sharing import Sharing


class BlockingStore:
    """Saves only when it is allowed to; remembers what it saved, and how many saves ran at once."""

    def __init__(self):
        self.may_save, self.started = threading.Semaphore(0), threading.Semaphore(0)
        self.saved, self.error, self.most_at_once, self._running = [], None, 0, 0

    def save(self, tensors, meta):
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        self.started.release()
        self.may_save.acquire()
        self._running -= 1
        if self.error is not None:
            raise self.error
        self.saved.append(meta["accounting"]["consumed"])
        return Path(f"ckpt-{self.saved[-1]}")

    def close(self):
        pass


class Saving:
    """A checkpointer, and what it said of each state by the number of its events."""

    def __init__(self):
        self.store, self.said = BlockingStore(), []
        self.checkpointer = Checkpointer(self.store, every_s=0.0)
        self._learner = Learner(id_towers(device="cpu"))

    def save(self, events):
        done = partial(lambda events, safe: self.said.append((events, safe)), events)
        offsets = OffsetSnapshot({}, {})
        self.checkpointer.save(self._learner, Sharing(), Accounting(trained=events), offsets, done)

    def let_go(self, saves=1):
        self.store.may_save.release(saves)


@pytest.fixture
def saving():
    return Saving()


def test_training_goes_on_while_a_save_is_under_way(saving):
    assert saving.checkpointer.is_due(1)
    saving.save(1)
    saving.store.started.acquire()
    assert saving.checkpointer.is_saving
    assert not saving.checkpointer.is_due(1), "two copies of the state would be held"
    assert not saving.checkpointer.is_safe(1)
    saving.let_go()
    saving.checkpointer.close()
    assert (saving.checkpointer.path, saving.said) == (Path("ckpt-1"), [(1, True)])
    assert not saving.checkpointer.is_saving
    assert saving.checkpointer.is_safe(1)


def test_a_newer_state_takes_the_place_of_the_one_that_waits(saving):
    saving.save(1)
    saving.store.started.acquire()
    saving.save(2)
    saving.save(3)
    saving.let_go(2)
    saving.checkpointer.close()
    assert saving.said == [(1, True), (3, True)], "what waits for the one that was replaced, waits for the newer one"
    assert (saving.store.saved, saving.store.most_at_once) == ([1, 3], 1)
    assert saving.checkpointer.stats(3).saved == 2


@pytest.mark.parametrize("error", [CheckpointError("disk full"), ValueError("a bug")])
def test_a_failed_save_is_logged_and_the_next_one_is_tried(saving, caplog, error):
    saving.store.error = error
    saving.save(1)
    saving.store.started.acquire()
    saving.save(2)
    saving.let_go()
    saving.store.started.acquire()  # the first has failed
    assert f"a checkpoint could not be saved, and training goes on: {error}" in caplog.text
    saving.store.error = None
    saving.let_go()
    saving.checkpointer.close()
    assert saving.said == [(1, False), (2, True)]
    assert (saving.checkpointer.stats(2).saved, saving.checkpointer.stats(2).failed) == (1, 1)


def test_close_raises_the_error_of_the_last_save(saving):
    saving.store.error = CheckpointError("disk full")
    saving.save(1)
    saving.let_go()
    with pytest.raises(CheckpointError, match="disk full"):
        saving.checkpointer.close()
    assert saving.said == [(1, False)]
