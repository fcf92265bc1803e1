"""Killed with SIGKILL before each write, sync, rename and removal, of bases and deltas: nothing safe is ever lost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from commands import environment

pytestmark = pytest.mark.slow

KILLED_AT_EACH_STAGE = """
import json, os, shutil, signal, sys
from pathlib import Path

import torch
torch.set_num_threads(1)
from line_harness import assert_same_learner, events, learn_all, small
from streamer.accounting import Accounting
from streamer.snapshot import CheckpointStore, SnapshotDirectory
from streamer.snapshot.checkpointer import Checkpointer
from streamer.ingest.offsets import OffsetSnapshot
from streamer.learner import OnlineLearner
from streamer.sharing.sharing import Sharing

DIRECTORY = Path(sys.argv[1])
STREAMS = [events(300), events(16, seed=1), events(16, seed=2)]

def learned(count):
    learner = OnlineLearner(small())
    for stream in STREAMS[:count]:
        learn_all(learner, stream)
    return learner

def resumed():
    learner, checkpointer = OnlineLearner(small()), Checkpointer(CheckpointStore(DIRECTORY, keep=1), every_s=None)
    return learner, checkpointer, checkpointer.restore(learner, Sharing()).accounting.trained

def learn_and_save(learner, checkpointer, done):
    learn_all(learner, STREAMS[done])
    checkpointer.save(learner, Sharing(), Accounting(trained=done + 1), OffsetSnapshot({}, {}), lambda safe: None)
    checkpointer.finish()
    checkpointer.close()

def killing(function, name, stages, at):
    def wrapped(*arguments, **options):
        stages.append(name)
        if len(stages) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return wrapped

def run_killed_at(at, base):
    \"\"\"Restore, learn and save in another process, which dies at a stage; returns whether it did.\"\"\"
    child = os.fork()
    if child == 0:
        learner, checkpointer, done = resumed()
        if base:
            checkpointer._store.links.clear()
        stages = []
        for place, name in ((os, "write"), (os, "fsync"), (Path, "rename"), (Path, "unlink")):
            setattr(place, name, killing(getattr(place, name), name, stages, at))
        learn_and_save(learner, checkpointer, done)
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL

expected = [learned(count) for count in range(4)]
found = {}
for base in (True, False):
    at, outcomes = 1, []
    while True:
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        for _ in range(2):  # a base and a delta
            learner, checkpointer, done = resumed()
            learn_and_save(learner, checkpointer, done)
        killed = run_killed_at(at, base)
        learner, checkpointer, done = resumed()
        assert_same_learner(learner, expected[done])
        assert not list(DIRECTORY.glob(".tmp-*"))
        assert not any(SnapshotDirectory(DIRECTORY).verify().values()), "older ones are whole, too"
        if done == 2:  # the events are read again
            learn_and_save(learner, checkpointer, done)
            assert_same_learner(OnlineLearner.load(DIRECTORY), expected[3])
        else:
            checkpointer.close()
        if not killed:
            break
        outcomes.append(done)
        at += 1
    found["base" if base else "delta"] = outcomes
print(json.dumps(found))
"""


def test_killed_at_each_stage_it_resumes_from_the_old_point_or_the_new(tmp_path):
    command = [sys.executable, "-c", KILLED_AT_EACH_STAGE, str(tmp_path / "checkpoints")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert result.returncode == 0, result.stderr
    assert "Skipped" not in result.stderr, "a kill must not even leave a corrupt checkpoint"
    for outcomes in json.loads(result.stdout).values():
        assert outcomes == sorted(outcomes), "from the rename on it is the new one"
        assert set(outcomes) == {2, 3}
        assert len(outcomes) >= 6
