"""Saving beside training: one at a time, the newest waits, errors are logged, close waits, a start is chosen."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from pathlib import Path

import pytest
from line_harness import assert_same_arrays, assert_same_learner, events, learn_all, small, until, whole_state

from streamer.accounting import Accounting
from streamer.errors import CheckpointError
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import OnlineLearner
from streamer.model.settings import id_towers
from streamer.sharing.sharing import Sharing
from streamer.snapshot import CheckpointStore
from streamer.snapshot.capture import IDLE_S, LONG_STEP_S, STEP_S, Capture
from streamer.snapshot.checkpointer import Checkpointer


class BlockingStore:
    """Saves only when it is allowed to; remembers what it saved, and how many saves ran at once."""

    def __init__(self):
        self.may_save, self.started = threading.Semaphore(0), threading.Semaphore(0)
        self.saved, self.error, self.most_at_once, self._running = [], None, 0, 0
        self.wants_base, self.links = True, []

    def save(self, chunks, arrays, meta, *, base):
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        self.started.release()
        self.may_save.acquire()
        self._running -= 1
        if self.error is not None:
            raise self.error
        assert list(chunks) or not base
        self.saved.append(meta["accounting"]["consumed"])
        return Path(f"ckpt-{self.saved[-1]}")

    def close(self):
        pass


class Saving:
    """A checkpointer, and what it said of each state by the number of its events."""

    def __init__(self):
        self.store, self.said = BlockingStore(), []
        self.checkpointer = Checkpointer(self.store, every_s=0.0)
        self._learner = OnlineLearner(id_towers(device="cpu"))
        learn_all(self._learner, events(16))

    def save(self, events):
        done = partial(lambda events, safe: self.said.append((events, safe)), events)
        offsets = OffsetSnapshot({}, {})
        self.checkpointer.save(self._learner, Sharing(), Accounting(trained=events), offsets, done)
        self.checkpointer.finish()

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
    assert f"Saving a checkpoint failed, will retry: {error}" in caplog.text
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


# real points ----------------------------------------------------------------------------------------------------------


class Run:
    """A learner and its checkpoints in a directory."""

    def __init__(self, directory, **options):
        self.learner, self.store = OnlineLearner(small()), CheckpointStore(directory, keep=100)
        self.checkpointer = Checkpointer(self.store, every_s=None, **options)
        self.events = self.checkpointer.restore(self.learner, Sharing()).accounting.trained

    def learn_and_save(self, count=16, seed=0):
        learn_all(self.learner, events(count, seed=seed))
        self.events += count
        accounting, offsets = Accounting(trained=self.events), OffsetSnapshot({}, {})
        self.checkpointer.save(self.learner, Sharing(), accounting, offsets, lambda safe: None)
        self.checkpointer.finish()
        until(lambda: not self.checkpointer.is_saving)
        return self.checkpointer.path

    def close(self):
        with contextlib.suppress(CheckpointError):
            self.checkpointer.close()


@pytest.fixture
def start(tmp_path):
    """Starts runs, each after the end of the one before."""
    runs = []

    def started(directory=tmp_path / "checkpoints", **options):
        for run in runs:
            run.close()
        runs.append(Run(directory, **options))
        return runs[-1]

    yield started
    for run in runs:
        run.close()


def test_what_a_failed_save_would_have_held_is_in_the_next(start, monkeypatch):
    run = start()
    run.learn_and_save(300)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        run.learn_and_save(16, seed=1)
    assert run.checkpointer.stats(0).failed == 1
    assert run.learn_and_save(16, seed=2).suffix == ".delta"
    assert_same_learner(start().learner, run.learner)


def test_a_save_that_is_given_up_for_a_newer_one_loses_nothing(start, monkeypatch):
    run = start()
    run.learn_and_save(300)
    learn_all(run.learner, events(16, seed=1))
    said = []
    with monkeypatch.context() as patch:
        patch.setattr(Capture, "advance", lambda *_: None)  # rows are left to copy
        run.checkpointer.save(run.learner, Sharing(), Accounting(trained=1), OffsetSnapshot({}, {}), said.append)
    assert run.checkpointer.is_copying
    assert run.learn_and_save(16, seed=2).suffix == ".delta"
    assert_same_learner(start().learner, run.learner)


def test_a_base_is_copied_bit_by_bit_between_steps(start, monkeypatch):
    run, given_s = start(), []
    learn_all(run.learner, events(300))
    expected = whole_state(run.learner)
    with monkeypatch.context() as patch:
        patch.setattr(Capture, "advance", lambda self, seconds: (given_s.append(seconds), self.copy_slice()))
        run.checkpointer.save(run.learner, Sharing(), Accounting(trained=300), OffsetSnapshot({}, {}), lambda _: None)
        learn_all(run.learner, events(16, seed=1))
        run.checkpointer.advance()
        run.checkpointer.advance(idle=True)
    assert all(STEP_S <= seconds <= LONG_STEP_S for seconds in given_s[:-1])
    assert (len(given_s), given_s[-1], run.checkpointer.is_copying) == (3, IDLE_S, True)
    run.checkpointer.finish()
    until(lambda: not run.checkpointer.is_saving)
    assert run.checkpointer.path.suffix == ".base"
    assert_same_arrays(whole_state(start().learner)[0], expected[0])


def test_the_chain_is_counted(start):
    run = start()
    base, *deltas = (run.learn_and_save(count, seed=count) for count in (600, 1, 1))
    stats = run.checkpointer.stats(602)
    sizes = [path.stat().st_size for path in deltas]
    assert (stats.deltas, stats.base_bytes, stats.delta_bytes) == (2, base.stat().st_size, sum(sizes))
    assert (stats.size_bytes, stats.saved, stats.unsaved_events) == (sizes[-1], 3, 0)
    assert stats.longest_pause_s > 0


def test_a_run_goes_back_to_a_chosen_point_once(start, caplog):
    run = start()
    run.learn_and_save(200)
    chosen = run.learn_and_save(16, seed=1)
    expected = OnlineLearner.load(chosen.parent)
    superseded = run.learn_and_save(16, seed=2)
    back = start(start_from=chosen)
    assert_same_learner(back.learner, expected)
    assert f"{superseded.name} to {superseded.name} are superseded" in caplog.text
    newer = back.learn_and_save(16, seed=3)
    assert newer > superseded
    again = start(start_from=chosen)  # a supervisor starts the same command again
    assert_same_learner(again.learner, back.learner)
    again.store.links.clear()
    assert again.learn_and_save(16, seed=4).suffix == ".base"
    chosen.unlink()  # as old ones are
    assert_same_learner(start(start_from=chosen).learner, again.learner)


def test_a_run_starts_from_a_point_of_another_directory_with_a_base(start, tmp_path):
    run = start(tmp_path / "a")
    chosen = run.learn_and_save(200)
    other = start(tmp_path / "b", start_from=chosen)
    assert_same_learner(other.learner, run.learner)
    assert other.learn_and_save(16).name == "ckpt-00000000000000000001.base"


def test_a_start_that_is_no_checkpoint_is_refused(start, tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        start(start_from=tmp_path / "ckpt-00000000000000000009.base")
