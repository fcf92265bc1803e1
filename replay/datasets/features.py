"""Features of events: columns of the log, and what other files say of users and items.

The database sees the features of an event as one text, all values with a separator between. There are few different
ones beside the events, so they get codes as ids do, and are taken apart once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.event import Features
from streamer.event.fields import normal_features
from streamer.replay.datasets.layout import LONGEST_FEATURE, FeatureColumn

MOST_SHARED = 1_000_000
"""Up to so many different ones are kept taken apart, and shared by the events."""
SEPARATOR = "\x1f"

Column = list[Features | None]
Codes = NDArray[np.integer[Any]]
Make = Callable[[str], Features | None]
_decode = msgspec.json.Decoder().decode


def packed_sql(features: Sequence[FeatureColumn]) -> str:
    """SQL of the features of an event as one text."""
    between = f", '{SEPARATOR}', "
    return f"concat({between.join(feature.sql for feature in features)})"  # null becomes an empty text


class FeatureReader:
    """Features of the items, or of the users. Treat what it answers as read-only: it is shared.

    Args:
        features: the columns.
        texts: all different features in the log as texts, by their codes.
        about: what other files say, by id.
    """

    def __init__(self, features: Sequence[FeatureColumn], texts: NDArray[Any], about: Mapping[str, Features]) -> None:
        self._make, self._texts, self._about = _maker(features), texts, about
        self._shared: NDArray[Any] | None = None
        if len(texts) <= MOST_SHARED:
            self._shared = np.empty(len(texts), object)
            self._shared[:] = _all_plain(features, texts) or [self._make(text) for text in texts]
        self.any = bool(features) or bool(about)

    def read(self, ids: Sequence[str], codes: Codes | None) -> Column | None:
        """The features of some events; None if none has any.

        Args:
            ids: of their items or users.
            codes: of their features in the log; None if that has none.
        """
        if not self.any:
            return None
        column: Column = list(map(self._about.get, ids)) if self._about else [None] * len(ids)
        if codes is not None:
            column = list(map(_joined, column, self._own(codes))) if self._about else self._own(codes)
        return column if any(features is not None for features in column) else None

    def _own(self, codes: Codes) -> Column:
        """Features from the log itself."""
        if self._shared is None:
            return [self._make(text) for text in self._texts[codes]]
        own: Column = self._shared[codes].tolist()
        return own


def _all_plain(features: Sequence[FeatureColumn], texts: NDArray[Any]) -> Column | None:
    """Features of many texts at once, if they are plain: no value is empty, padded, quoted or too long."""
    if any(feature.kind != "category" for feature in features) or not len(texts):
        return None
    together = SEPARATOR.join(texts)
    values = together.split(SEPARATOR)
    names = [feature.name for feature in features]
    if len(values) != len(names) * len(texts) or values != together.split() or '"' in together:
        return None
    if max(map(len, values)) > LONGEST_FEATURE:
        return None
    rows = zip(*(values[k :: len(names)] for k in range(len(names))), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _maker(features: Sequence[FeatureColumn]) -> Make:
    """What makes features of a text."""
    if any(feature.kind == "object" for feature in features):
        return _from_json
    names = [feature.name for feature in features]
    kinds: list[Callable[[str], str | float]] = [float if f.kind == "number" else unpadded for f in features]

    def make(text: str) -> Features | None:
        values = text.split(SEPARATOR, len(names) - 1)
        return {name: kind(v) for name, kind, v in zip(names, kinds, values, strict=True) if v.strip('" ')} or None

    return make


def _from_json(text: str) -> Features | None:
    """Features of an object as on the wire; what is no feature is left out."""
    value = _decode(text) if text else None
    if type(value) is not dict:
        return None
    plain = {_cut(name): v for name, v in value.items() if name and type(v) not in (list, dict)}
    return normal_features({n: _cut(v) if type(v) is str else v for n, v in plain.items()}, LONGEST_FEATURE)


def unpadded(text: str) -> str:
    """A category without spaces around it, and without quotes if it begins with one; not too long."""
    text = text.strip()
    return _cut(text.strip('" ') if text.startswith('"') else text)


def _cut(text: str) -> str:
    return text[:LONGEST_FEATURE]


def _joined(about: Features | None, own: Features | None) -> Features | None:
    return about | own if about and own else about or own
