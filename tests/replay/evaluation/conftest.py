from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A small log with time."""
    rng = np.random.default_rng(0)
    path = tmp_path / "tiny.csv"
    lines = ["user_id,item_id,timestamp"]
    lines += [f"u{rng.integers(30)},i{min(rng.geometric(0.1), 40)},{1_700_000_000 + k}" for k in range(600)]
    path.write_text("\n".join(lines) + "\n")
    return path
