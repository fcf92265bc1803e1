"""Names that a request may have: others are refused, and never passed over, because who
mistypes one would take the answer for what was asked.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

UNKNOWN_NAME = "unknown_name"
"""Type of the error about a key that a body may not have."""
SHOWN_NAME = 60
"""Characters of an unknown name that are quoted."""


def unknown_name(kind: str, name: str, known: Collection[str]) -> str:
    """What to say about a parameter or key that is not known: which one may be meant.

    Args:
        kind: `parameter` or `key`.
        name: as it was sent.
        known: names that could have been sent.
    """
    shown = name[:SHOWN_NAME].encode(errors="replace").decode()
    if not known:
        return f"Unknown {kind} `{shown}`: there are none here."
    close = get_close_matches(name[:SHOWN_NAME], sorted(known), n=1, cutoff=0.5)
    meant = f"did you mean `{close[0]}`? " if close else ""
    listed = ", ".join(f"`{one}`" for one in sorted(known))
    return f"Unknown {kind} `{shown}`: {meant}Known are {listed}."


class KnownKeys(BaseModel):
    """A body, or a part of one, with no other keys than its fields."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for key in given:
                if key not in cls.model_fields:
                    sentence = unknown_name("key", str(key), cls.model_fields)
                    said = {"sentence": sentence}
                    raise PydanticCustomError(UNKNOWN_NAME, "{sentence}", said)
        return given
