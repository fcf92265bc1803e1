"""A capture: rows as of one step, whatever is learned while they are copied."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from line_harness import assert_same_learner, events, learn_all, micro_batch, small

from streamer.learner import OnlineLearner
from streamer.snapshot import capture as capture_module
from streamer.snapshot.capture import Capture, CaptureAbandoned


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    """Many slices of few rows, which are found in many windows."""
    monkeypatch.setattr(capture_module, "CHUNK_ROWS", 5)
    monkeypatch.setattr(capture_module, "SLICE_BYTES", 1000)
    monkeypatch.setattr(capture_module, "WINDOW_ROWS", 17)


@pytest.fixture
def learner():
    learner = OnlineLearner(small())
    learn_all(learner, events(300))
    return learner


def all_rows(learner):
    return {kind: learner.state.used(kind) for kind in learner.state.kinds()}


def copy_of(learner):
    copied = OnlineLearner(learner.settings)
    copied.state.restore(learner.state.chunks(), *learner.state.dense())
    return copied


@pytest.mark.parametrize("slices", [0, 1, 7])
def test_what_is_learned_meanwhile_is_not_in_it(learner, slices):
    before, dense, capture = copy_of(learner), learner.state.dense(), Capture(learner.state, all_rows(learner))
    for k in range(8):
        for _ in range(slices):
            capture.copy_slice()
        learner.learn_batch(micro_batch(events(16, seed=k, users=60, items=90)))  # known ids, and new ones
    capture.finish()
    restored = OnlineLearner(learner.settings)
    restored.state.restore(capture.chunks(), *dense)
    assert_same_learner(restored, before)


def test_each_row_is_copied_once(learner):
    capture = Capture(learner.state, all_rows(learner))
    for k in range(4):
        capture.copy_slice()
        learner.learn_batch(micro_batch(events(16, seed=k)))
    capture.finish()
    copied = [(chunk.kind, row) for chunk in capture.chunks() for row in chunk.rows.tolist()]
    assert len(copied) == len(set(copied)) > 0


def test_training_copies_nothing_more_for_one_that_is_over(learner):
    for end in (Capture.finish, Capture.abandon):
        capture = Capture(learner.state, all_rows(learner))
        end(capture)
        capture.close()
        assert learner.state.changes.before_write == []


def test_no_more_is_copied_than_is_written(learner, monkeypatch):
    monkeypatch.setattr(capture_module, "MAX_QUEUED_BYTES", 1000)
    capture = Capture(learner.state, all_rows(learner))
    capture.advance(60.0)
    assert not capture.is_over, "nobody writes"
    chunks = capture.chunks()
    first = next(chunks)
    capture.advance(60.0)
    assert not capture.is_over
    written = []
    writer = threading.Thread(target=lambda: written.extend(chunks))
    writer.start()
    capture.finish()
    writer.join()
    rows = {kind: sum(len(c.rows) for c in [first, *written] if c.kind == kind) for kind in learner.state.kinds()}
    assert rows == {kind: len(learner.state.rows(kind)) for kind in learner.state.kinds()}


def test_rows_are_copied_until_the_time_between_two_steps_is_over(learner, monkeypatch):
    now, take = [0.0], learner.state.take

    def take_a_second(*arguments):
        now[0] += 1.0
        return take(*arguments)

    monkeypatch.setattr(learner.state, "take", take_a_second)
    capture = Capture(learner.state, all_rows(learner), clock=lambda: now[0])
    capture.advance(3.0)
    assert (now[0], capture.is_over) == (3.0, False)
    capture.seconds = 0.0
    learner.state.changes.mark(
        "items", np.array([learner.state.items.size - 1])
    )  # a step that writes a row copies it before
    capture.advance(3.0)
    assert now[0] == 6.0, "what the step has copied counts"


def test_whoever_writes_one_that_is_abandoned_gets_an_error(learner):
    capture = Capture(learner.state, all_rows(learner))
    chunks = capture.chunks()
    capture.copy_slice()
    next(chunks)
    capture.abandon()
    with pytest.raises(CaptureAbandoned):
        next(chunks)
    capture.finish()  # does not wait for a writer that is gone


def test_one_whose_rows_cannot_be_copied_is_never_whole(learner, monkeypatch):
    capture = Capture(learner.state, all_rows(learner))
    with monkeypatch.context() as patch:
        patch.setattr(learner.state, "take", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            learner.learn_batch(micro_batch(events(16)))
    capture.finish()
    with pytest.raises(CaptureAbandoned):
        list(capture.chunks())
