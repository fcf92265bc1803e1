"""Compiled loops: numba behind one typed decorator.

The flags allow the compiler to fuse and reorder sums (needed to vectorise them), but
not to assume that infinities and NaNs never occur. The same machine code runs every
time, so results are repeatable bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., object])


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
    return cast(F, njit(**_OPTIONS, _nrt=False)(function))  # type: ignore[call-overload]


def njit_allocating(function: F) -> F:
    """As `compiled`, for a loop that makes, sorts or returns an array."""
    return cast(F, njit(**_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile a small function into each of its callers."""
    return cast(F, njit(inline="always", error_model="numpy")(function))


@inlined
def mixed(x: np.uint64) -> np.uint64:
    """splitmix64's finish: a number in which every bit depends on all bits of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@intrinsic
def float32_from_bits(typing_context, bits):  # type: ignore[no-untyped-def]
    """Read the 32 bits of an integer as a float."""
    from llvmlite import ir

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def bits_of_float32(typing_context, value):  # type: ignore[no-untyped-def]
    """The 32 bits of a float, as an integer."""
    from llvmlite import ir

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate
