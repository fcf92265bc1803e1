"""How many users, items and categories are kept: as many as are set, else as many as
fit the machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from streamer.model.settings import LearnerSettings

BYTES_PER_USER = 150
BYTES_PER_ITEM = 330
"""Beside their embeddings, of a long-tailed catalogue; `benchmarks/memory.py` measures
them.
"""
SHARE = 0.25
"""Of the machine's memory, for users; the same for items."""
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Limits(NamedTuple):
    """How many ids are kept, at most."""

    users: int
    items: int
    categories: int
    """Of each feature."""


def limits_of(settings: LearnerSettings, known: Limits | None = None) -> Limits:
    """The limits that are set; else those that are known, so that a restart forgets the
    same; else what fits.
    """
    fitting = known or _fitting(settings, machine_memory())
    return Limits(
        settings.max_users or fitting.users,
        settings.max_items or fitting.items,
        settings.max_categories,
    )


def _fitting(settings: LearnerSettings, memory: int) -> Limits:
    vectors = {"adagrad": 2, "sgd": 1}.get(settings.optimizer, 3)
    user = BYTES_PER_USER + 4 * settings.user_tower.dim * vectors * settings.user_ids
    item = BYTES_PER_ITEM + 4 * settings.dim * vectors * settings.item_ids
    return Limits(
        round(memory * SHARE / user),
        round(memory * SHARE / item),
        settings.max_categories,
    )


def machine_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or those of its
    container.
    """
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP:
        try:
            found = min(found, int(Path(path).read_text()))
        except (OSError, ValueError):  # there is none, or it is "max"
            continue
    return found
