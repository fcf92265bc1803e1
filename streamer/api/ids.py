"""Ids as people have them, text or whole numbers, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Id = str | int
"""An id of a user or an item."""


def to_id(value: Any) -> Id:
    """An id as it comes back.

    Raises:
        ValueError: it is none; the message ends a sentence that begins with "the user".
    """
    if type(value) is str:
        if not value:
            raise ValueError("is empty")
        return value
    if type(value) is int:
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, str):
        return to_id(str(value))
    if is_missing(value):
        raise ValueError("is missing")
    kind = type(value).__name__
    raise ValueError(
        f"is {value!r} ({kind}): an id is text or a whole number, try str(...)"
    )


def to_texts(ids: Iterable[Id]) -> list[str]:
    """Several ids as text.

    Raises:
        ValueError: one of them is none, or they are one text.
    """
    if isinstance(ids, str):
        raise ValueError(f"{ids!r} is one id: give a list of them, [{ids!r}]")
    return [str(to_id(one)) for one in ids]


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, and what pandas has for them."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:  # pandas.NA does not say whether it is itself
        return True
    except ValueError:  # an array
        return False


class IdForms:
    """Which of the ids that were learned came as whole numbers and which as text.

    Most streams have ids of one form; only those of the other one are kept.

    Args:
        form: "int" or "str", that of most ids; None before there is any.
        others: ids, as text, that have the other form.

    Examples:
        >>> forms = IdForms()
        >>> forms.learn([7, "tea", 8])
        ['7', 'tea', '8']
        >>> [forms.id_of(text) for text in ("8", "tea")]
        [8, 'tea']
    """

    def __init__(self, form: str | None = None, others: Iterable[str] = ()) -> None:
        self.form = form
        self.others = set(others)

    def learn(self, ids: Sequence[Id]) -> list[str]:
        """The ids as text; from now on they come back in their form."""
        texts = list(map(str, ids))
        forms = {type(id_).__name__ for id_ in ids}
        if self.form is None and ids:
            self.form = type(ids[0]).__name__
        if forms <= {self.form} and not self.others:
            return texts
        for id_, text in zip(ids, texts, strict=True):
            if type(id_).__name__ == self.form:
                self.others.discard(text)
            else:
                self.others.add(text)
        return texts

    def id_of(self, text: str) -> Id:
        """The id as it was learned last."""
        is_whole = (self.form == "int") != (text in self.others)
        return int(text) if is_whole else text

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint: the arguments that make another one like it."""
        return {"form": self.form, "others": sorted(self.others)}
