"""`python -m faults [NAME ...]`: run the scenarios one by one, and write docs/faults.md and docs/faults.json."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from commands import STARTED
from servers.kafka import KafkaServer

from faults import one_trainer, serving, several_trainers  # noqa: F401  (they register their faults)
from faults.broker import FaultyKafka
from faults.report import write
from faults.scenarios import SCENARIOS, NotPossibleHere
from faults.world import Outcome, World


def run(name: str, kafka: KafkaServer, seed: int) -> Outcome:
    """One scenario, from set up to what is found; a failure is printed with what a person needs."""
    scenario = SCENARIOS[name]
    STARTED.clear()
    with tempfile.TemporaryDirectory(prefix="streamer-fault-") as directory:
        world = World(kafka, Path(directory))
        world.outcome.fault = scenario.fault
        try:
            scenario.run(world, random.Random(f"{seed} {name}"))
        except NotPossibleHere as error:
            world.outcome.note = f"not run: {error}"
        except Exception as error:
            traceback.print_exc()
            world.outcome.problems.append(f"{type(error).__name__}: {error}".splitlines()[0])
        finally:
            if world.outcome.problems:
                print(f"FAILED {name} (seed {seed})\n{world.describe()}\n{said()}", file=sys.stderr, flush=True)
            world.close()
    return world.outcome


def said() -> str:
    """The commands of a scenario, and the last lines of each."""
    return "\n".join(command.describe() for command in STARTED)


def main() -> None:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios, by default all")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in SCENARIOS]:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    kafka = FaultyKafka()
    outcomes: dict[str, Outcome] = {}
    try:
        kafka.start()
        for name in given.names or SCENARIOS:
            began = time.monotonic()
            outcomes[name] = run(name, kafka, given.seed)
            write({name: outcomes[name]}, list(SCENARIOS), given.seed)
            verdict = "; ".join(outcomes[name].problems) or "as promised"
            print(f"{name}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
    finally:
        kafka.delete()
    sys.exit(any(outcome.problems for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
