"""Inputs that are almost right: seeds changed at random, by bytes and by what JSON and text are made of."""

from __future__ import annotations

import random

TOKENS = rb"null NaN -Infinity 1e999 -0 0.1e-400 true [] {} \ , : = ../.. %s # --".split()
TOKENS += rb""""\ud800" " "user_id": "item_id":1,""".split()
TOKENS += [b"\x00", b"\r\n", b"\n\n", b"9" * 40, b"[" * 200, b'{"a":' * 50, b"'''"]
TOKENS += [b"\xed\xa0\x80", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"]


def mutated(seed: bytes, rng: random.Random) -> bytes:
    """A seed with a few changes."""
    content = bytearray(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(content) + 1)
        match rng.randrange(7):
            case 0 if content:
                content[min(at, len(content) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                content[at:at] = rng.choice(TOKENS)
            case 2:
                del content[at : at + rng.choice((1, 2, 8, len(content)))]
            case 3:
                content[at : at + rng.randrange(1, 9)] = rng.choice(TOKENS)
            case 4:
                content[at:at] = content[at // 2 : at]
            case 5:
                content[at:at] = rng.randbytes(rng.choice((1, 4, 8)))
            case _:
                content[at : at + 4] = rng.choice((0, 1, 255, 65_535, 2**31 - 1, 2**32 - 1)).to_bytes(4, "little")
    return bytes(content[:65_536])
