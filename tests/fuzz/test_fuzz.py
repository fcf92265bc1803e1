"""What has found something once, and a few thousand inputs more (`make fuzz` tries a million)."""

from __future__ import annotations

import pytest

from fuzz.run import CORPUS, fuzz
from fuzz.targets import TARGETS

SHARE = 0.003
COUNTS = {"http": 400, "openapi": 100}


@pytest.mark.parametrize("name", TARGETS)
def test_malformed_inputs_are_refused_as_specified(name: str) -> None:
    make, seeds, usual = TARGETS[name]
    with make() as target:
        target(seeds)
        target([path.read_bytes() for path in sorted(CORPUS.glob(f"{name}-*"))])
    assert fuzz(name, COUNTS.get(name, round(usual * SHARE)), seed=1) == []
