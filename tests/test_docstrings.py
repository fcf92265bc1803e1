"""Examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import streamer


def modules() -> Iterator[str]:
    found = pkgutil.walk_packages(streamer.__path__, "streamer.")
    return (module.name for module in found if not module.name.endswith("__main__"))


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    assert any(test.examples for test in finder.find(importlib.import_module("streamer.vocabulary")))


@pytest.mark.parametrize("name", list(modules()))
def test_examples_of(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0, f"{found.failed} of {found.attempted} examples of {name} are not true"
