"""The list of all faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from faults.world import World

Function = Callable[[World, random.Random], None]


@dataclass(frozen=True)
class Scenario:
    """A fault, and what makes it happen: it sets up, disturbs, waits until all has settled, and accounts."""

    fault: str
    run: Function
    short: bool = False


SCENARIOS: dict[str, Scenario] = {}


class NotPossibleHere(Exception):  # noqa: N818  (reads as a state)
    """This machine does not let us make the fault happen."""


def scenario(fault: str, name: str = "", short: bool = False) -> Callable[[Function], Function]:
    """Register a function, by default under its own name; `short`: it belongs to the part that pytest runs."""

    def register(function: Function) -> Function:
        SCENARIOS[name or function.__name__] = Scenario(fault, function, short)
        return function

    return register
