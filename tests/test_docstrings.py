"""Examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import cache_store
import model
import replay
import streamer


def modules() -> Iterator[str]:
    for package in (cache_store, model, replay, streamer):
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        yield from (module.name for module in found if not module.name.endswith("__main__"))


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    assert any(test.examples for test in finder.find(importlib.import_module("cache_store.naming")))


@pytest.mark.parametrize("name", list(modules()))
def test_examples_of(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0, f"{found.failed} of {found.attempted} examples of {name} are not true"
