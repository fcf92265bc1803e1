"""A browser, and a real run that it looks at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from chromium import Browser
from live_run import LiveRun


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Headless Chromium."""
    with closing(Browser(tmp_path_factory.mktemp("profile"))) as browser:
        yield browser


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    """`streamer run` in a process of its own, on an embedded log that is written meanwhile."""
    with LiveRun(tmp_path_factory.mktemp("live")) as run:
        yield run
