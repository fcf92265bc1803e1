"""Files of logs, as people have them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from contracts.dataset_contract import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file, compressed if its name says so, and returns its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return write
