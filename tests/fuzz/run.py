"""Try inputs, and keep those that find something."""

from __future__ import annotations

import hashlib
import random
import traceback
from collections.abc import Sequence
from pathlib import Path

from fuzz.mutate import mutated
from fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).with_name("corpus")
AT_ONCE = 100
MAX_PROBLEMS = 5


def fuzz(name: str, count: int, seed: int) -> list[str]:
    """What was found, in a line each; the inputs are in `CORPUS`."""
    make, seeds, _ = TARGETS[name]
    rng = random.Random(f"{seed} {name}")
    problems: list[str] = []
    with make() as target:
        for start in range(0, count, AT_ONCE):
            inputs = [mutated(rng.choice(seeds), rng) for _ in range(min(AT_ONCE, count - start))]
            if _try(target, inputs) is not None:
                problems += _each(name, target, inputs)
            if len(problems) >= MAX_PROBLEMS:
                break
    return problems


def _try(target: Target, inputs: Sequence[bytes]) -> Exception | None:
    try:
        target(inputs)
    except Exception as error:
        return error
    return None


def _each(name: str, target: Target, inputs: Sequence[bytes]) -> list[str]:
    """Find and keep the inputs that fail alone."""
    found = []
    for content in inputs:
        error = _try(target, [content])
        if error is not None:
            path = CORPUS / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
            CORPUS.mkdir(exist_ok=True)
            path.write_bytes(content)
            at = traceback.extract_tb(error.__traceback__)[-1]
            found.append(f"{path.name}: {error!r:.200} at {at.filename}:{at.lineno}")
    return found or [f"{name}: only some inputs together fail"]
