"""Compiled loops: numba behind one typed decorator.

The flags allow the compiler to fuse and reorder sums (needed to vectorise them), but
not to assume that infinities and NaNs never occur. The same machine code runs every
time, so results are repeatable bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import config, njit

F = TypeVar("F", bound=Callable[..., object])

LOOPS: list[Any] = []
"""Those that the modules so far have defined: `signatures` of one is empty until it is
compiled, or loaded from the cache.
"""


def _cache_directory() -> Path:
    """Where compiled loops are kept, by the text of all of them: numba itself looks
    only at the file of a loop, not at those of the functions and types that it uses.
    """
    room = Path(__file__).resolve().parent
    text = hashlib.blake2b(digest_size=8)
    for source in sorted(room.rglob("*.py")):
        text.update(source.read_bytes())
    return room / "__pycache__" / f"loops-{text.hexdigest()}"


if not config.CACHE_DIR:  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):  # numba then finds a place of the user's
        _directory = _cache_directory()
        _directory.mkdir(parents=True, exist_ok=True)
        config.CACHE_DIR = str(_directory)  # type: ignore[attr-defined]

_OPTIONS: dict[str, Any] = {
    "fastmath": {"contract", "nsz", "arcp", "reassoc"},
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
}


def njit_borrowing(function: F) -> F:
    """Compile a loop over numpy arrays; it runs without the interpreter lock and is
    cached on disk.

    It works on arrays that its caller holds: references to them are not counted, which
    would take longer than many a loop. One that makes arrays is `njit_allocating`.
    """
    LOOPS.append(njit(**_OPTIONS, _nrt=False)(function))  # type: ignore[call-overload]
    return cast(F, LOOPS[-1])


def njit_allocating(function: F) -> F:
    """As `njit_borrowing`, for a loop that makes, sorts or returns an array."""
    LOOPS.append(njit(**_OPTIONS)(function))
    return cast(F, LOOPS[-1])


def inlined(function: F) -> F:
    """Compile a small function into each of its callers."""
    return cast(F, njit(inline="always", error_model="numpy")(function))


@inlined
def mixed(x: np.uint64) -> np.uint64:
    """splitmix64's finish: a number in which every bit depends on all bits of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
