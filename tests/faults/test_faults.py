"""The short part of the table of faults (`make faults` runs all of it)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.kafka import KafkaServer

from faults import one_trainer, serving, several_trainers  # noqa: F401  (they register their faults)
from faults.scenarios import SCENARIOS
from faults.world import World

pytestmark = [pytest.mark.servers, pytest.mark.slow]
SEED = 1


@pytest.fixture
def world(kafka_server: KafkaServer, tmp_path: Path) -> Iterator[World]:
    world = World(kafka_server, tmp_path)
    yield world
    world.close()


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.short])
def test_a_fault_costs_what_is_promised(name: str, world: World) -> None:
    SCENARIOS[name].run(world, random.Random(f"{SEED} {name}"))
    assert not world.outcome.problems
