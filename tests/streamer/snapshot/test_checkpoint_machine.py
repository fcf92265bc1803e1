"""Learn, retire, save, fail, crash and restore in any order: a restart has what a full copy had, bit for bit."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from line_harness import assert_same_arrays, events, micro_batch, small, until, whole_state

from streamer.accounting import Accounting
from streamer.errors import CheckpointError
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import OnlineLearner
from streamer.sharing.sharing import Sharing
from streamer.snapshot import CheckpointStore, SnapshotDirectory, capture
from streamer.snapshot.checkpointer import Checkpointer

LIMITS = {"max_users": 15, "max_items": 20, "max_categories": 3}
SETTINGS = small(item_features=("brand",), popularity_half_life=3.0, dim=4, hash_slots=16, **LIMITS)

State = tuple[dict[str, Any], dict[str, Any]]
"""Arrays and plain values."""

pytestmark = pytest.mark.slow


class CheckpointMachine(RuleBasedStateMachine):
    """A learner that is saved into a directory, beside full copies of its state by the number of the save."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.copies: dict[int, State] = {0: whole_state(OnlineLearner(SETTINGS))}
        self.saves, self.safe = 0, 0
        self.possible = {0}
        """What a restart may find: the last safe state, or that of a save that a crash has met."""
        self.slices = mock.patch.multiple(
            capture, CHUNK_ROWS=3, SLICE_BYTES=500, WINDOW_ROWS=7, STEP_S=0.0, STEP_SHARE=0.0
        )  # few rows at a time, and by a rule
        self.slices.start()
        self.start()

    def start(self) -> None:
        self.learner, self.sharing = OnlineLearner(SETTINGS), Sharing()
        self.checkpointer = Checkpointer(CheckpointStore(self.directory, keep=2), every_s=None)
        found = self.checkpointer.restore(self.learner, self.sharing)
        self.safe = found.accounting.trained
        assert self.safe in self.possible
        self.possible = {self.safe}
        self.assert_same(whole_state(self.learner), self.copies[self.safe])

    @rule(seed=st.integers(0, 1000), count=st.integers(1, 12), ids=st.integers(4, 40))
    def learn(self, seed: int, count: int, ids: int) -> None:
        brands = [{"brand": f"b{seed % 5}"} if k % 2 else None for k in range(count)]
        self.learner.learn_batch(micro_batch(events(count, seed=seed, users=ids, items=ids), item_features=brands))

    @rule(which=st.integers(0, 19))
    def delete(self, which: int) -> None:
        self.learner.eviction.retire_items(self.learner.state.items.ids[which : which + 1])

    @rule()
    def save(self) -> None:
        self.saves += 1
        self.copies[self.saves] = whole_state(self.learner)
        done = self.note_end(self.saves)
        offsets, accounting = OffsetSnapshot({}, {}), Accounting(trained=self.saves)
        self.checkpointer.save(self.learner, self.sharing, accounting, offsets, done)
        self.possible.add(self.saves)

    def note_end(self, number: int) -> Any:
        def done(safe: bool) -> None:
            self.safe = number if safe else self.safe

        return done

    @rule(count=st.integers(1, 8))
    def copy_some(self, count: int) -> None:
        for _ in range(count):
            if self.checkpointer._capture is not None:
                self.checkpointer._capture.copy_slice()

    @rule()
    def finish(self) -> None:
        self.checkpointer.finish()
        until(lambda: not self.checkpointer.is_saving)
        self.possible = {self.safe}
        self.a_restart_has_what_the_copy_had()

    @rule()
    def save_on_a_full_disk(self) -> None:
        self.finish()  # or the disk becomes full between the rename of one that is under way and the directory's sync
        with mock.patch.object(os, "fsync", side_effect=OSError("No space left on device")):
            self.save()
            self.finish()

    @rule()
    def crash(self) -> None:
        """Everything in memory is gone; a save under way is safe or not."""
        if self.checkpointer._capture is not None:
            self.checkpointer._capture.abandon()
        self.checkpointer._writer.close()
        self.checkpointer._store.close()
        self.start()

    @rule(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def crash_and_damage(self, where: float, bit: int) -> None:
        """A bit of the newest file changes: an earlier point is found, whatever the bit is."""
        self.finish()
        self.crash()
        paths = SnapshotDirectory(self.directory).paths()
        if len(paths) < 2 or self.checkpointer.path != paths[-1]:
            return
        content = bytearray(paths[-1].read_bytes())
        content[int(where * len(content))] ^= 1 << bit
        paths[-1].write_bytes(content)
        self.possible = set(range(self.safe))
        self.crash()
        paths[-1].unlink()  # as `streamer doctor` advises

    def a_restart_has_what_the_copy_had(self) -> None:
        if (found := SnapshotDirectory(self.directory).load()) is not None:
            assert found.meta["accounting"]["trained"] == self.safe
            self.assert_same(whole_state(OnlineLearner.from_checkpoint(found)), self.copies[self.safe])

    def assert_same(self, found: State, expected: State) -> None:
        assert_same_arrays(found[0], expected[0])
        assert found[1] == expected[1]

    def teardown(self) -> None:
        with contextlib.suppress(CheckpointError):  # the last save failed
            self.checkpointer.close()
        self.slices.stop()
        shutil.rmtree(self.directory)


CheckpointMachine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCheckpoints = CheckpointMachine.TestCase


def test_the_machine_saves_deltas():
    """What the machine checks is mostly chains, not bases."""
    machine = CheckpointMachine()
    try:
        for seed in range(6):
            machine.learn(seed, count=2, ids=40 if seed == 0 else 4)
            machine.save()
            machine.finish()
        suffixes = [path.suffix for path in SnapshotDirectory(machine.directory).paths()]
        assert ".delta" in suffixes
        assert np.diff([suffix == ".base" for suffix in suffixes]).any()
    finally:
        machine.teardown()
