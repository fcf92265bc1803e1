"""Histories of trainers that come, go, die and sleep. More of them: `HISTORIES=10000 pytest tests/simulation`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from simulation.history import History
from simulation.lockstep import LockstepHistory

HISTORIES = int(os.environ.get("HISTORIES", "400"))
PARTS = 4


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nobody reads what thousands of trainers log."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_in_every_history_each_event_is_trained_once_and_counted_once(part: int) -> None:
    for seed in range(part, HISTORIES, PARTS):
        history = History(seed)
        try:
            history.run()
        except BaseException:
            print(f"seed {seed}, committed: {history.broker.committed}")
            print("\n".join(history.said))
            raise


@pytest.mark.parametrize("part", range(PARTS))
def test_in_every_history_of_a_group_each_manifest_holds_every_event_before_its_offsets_once(part: int) -> None:
    for seed in range(part, HISTORIES // 8, PARTS):
        history = LockstepHistory(seed)
        try:
            history.run()
        except BaseException:
            print(f"seed {seed}")
            print("\n".join(history.said))
            raise


def test_a_seed_is_one_history() -> None:
    first, second = History(7), History(7)
    first.run()
    second.run()
    assert first.said == second.said
    assert first.scheduler.switches == second.scheduler.switches
