"""The short part of the table of faults (`make faults` runs all of it)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.kafka import KafkaServer

from faults import one_trainer, serving, several_trainers  # noqa: F401  (they register their faults)
from faults.scenarios import SCENARIOS
from faults.world import Runner, World

pytestmark = [pytest.mark.servers, pytest.mark.slow]
SEED = 1


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.short])
def test_a_fault_costs_what_is_promised(name: str, kafka_server: KafkaServer, runner: Runner, tmp_path: Path) -> None:
    world = World(kafka_server, runner, tmp_path)
    try:
        SCENARIOS[name].run(world, random.Random(f"{SEED} {name}"))
        assert not world.outcome.problems
    except BaseException:
        print(world.describe())
        raise
    finally:
        world.close()
