"""Guesses what strangers' records call the fields of an event."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from streamer.event import fields

COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "user_id": (
        *("user_id", "userid", "user", "uid", "customer_id"),
        *("visitorid", "visitor_id", "reviewerid"),
    ),
    "item_id": (
        *("item_id", "itemid", "item", "iid", "product_id"),
        *("movieid", "parent_asin", "asin"),
    ),
    "timestamp": (
        *("timestamp", "time_stamp", "time", "ts", "event_time"),
        *("datetime", "date", "unixreviewtime"),
    ),
    "rating": ("rating", "score", "overall"),
    "event_type": (
        *("event_type", "event", "action", "action_type"),
        *("behavior", "behavior_type"),
    ),
}
"""What people call the parts of an event in published logs: the first name that a log
has counts.
"""

_WORDS: Mapping[str, Sequence[str]] = {
    "user_id": (
        *("user", "uid", "customer", "client", "visitor", "member", "account", "buyer"),
        *("shopper", "reader", "listener", "viewer", "reviewer", "subscriber"),
        *("person", "profile", "session"),
    ),
    "item_id": (
        *("item", "iid", "product", "sku", "asin", "isbn", "ean", "article", "movie"),
        *("film", "song", "track", "book", "video", "content", "offer", "listing"),
        *("post", "business", "restaurant", "recipe", "hotel", "game", "app", "goods"),
        "stock",
    ),
    "timestamp": (
        *("timestamp", "time", "ts", "datetime", "date", "when", "at", "moment"),
    ),
}
"""Words by which a longer name, such as `clicked_product`, tells what it holds, the
likeliest first.
"""
_IDENTIFYING = ("id", "key", "code", "no", "number", "uuid", "guid", "hash")
"""Words after one of those that make a name an id's: `product_code`, `product.id`."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_EARLIEST_S = 500_000_000
"""A smaller number without a name to say so is hardly a time: that was in 1985."""
MAX_KEYS = 64
"""Keys that are told apart."""


class Guess(NamedTuple):
    """What records call our fields, and what they have."""

    fields: dict[str, str]
    """Our fields that were recognised, by our name: theirs, with dots for a path."""
    keys: list[str]
    """Their names, in the order in which they came."""

    @property
    def renamed(self) -> dict[str, str]:
        """What `--field` must say: the fields that are called otherwise than ours."""
        return {ours: name for ours, name in self.fields.items() if ours != name}


def guess_fields(records: Iterable[Mapping[str, Any]]) -> Guess:
    """Guess from some records which of their fields are ours: by names, as far as the
    values could be such.
    """
    values: dict[str, list[Any]] = {}
    for record in records:
        for key, value in _flat(record):
            if key in values or len(values) < MAX_KEYS:
                values.setdefault(key, []).append(value)

    found: dict[str, str] = {}
    for ours in COLUMN_NAMES:
        fits = _FITTING[ours]
        free = [
            k for k in values if k not in found.values() and all(map(fits, values[k]))
        ]
        theirs = guess_name(ours, free)
        if theirs is None and ours == "timestamp":
            theirs = next(
                (k for k in free if all(map(_looks_like_time, values[k]))), None
            )
        if theirs is not None:
            found[ours] = theirs
    for ours in ("user_features", "item_features"):
        if any(key.startswith(f"{ours}.") for key in values):
            found[ours] = ours
    return Guess(found, list(values))


def guess_name(ours: str, names: Sequence[str]) -> str | None:
    """The one of some names that most likely is a field of ours; None if none is."""
    spelled: dict[str, str] = {}
    for name in names:
        spelled.setdefault(_bare(name), name)
    for known in COLUMN_NAMES[ours]:
        if known in names:
            return known
        if _bare(known) in spelled:
            return spelled[_bare(known)]
    likely = [name for name in names if _word(ours, name)]
    return min(
        likely, key=lambda name: _WORDS[ours].index(_word(ours, name)), default=None
    )


def _word(ours: str, name: str) -> str:
    """The word at the end of a name that says that it holds this field; "" for none."""
    words: list[str] = [word.lower() for word in _WORD.findall(name)]
    if len(words) > 1 and words[-1] in _IDENTIFYING and ours != "timestamp":
        words.pop()
    for word in words[-1:]:
        for candidate in (word, word.removesuffix("id")):
            if candidate in _WORDS.get(ours, ()):
                return candidate
    return ""


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a record, those of objects in it by their paths."""
    for key, value in record.items():
        if isinstance(value, Mapping) and prefix.count(".") < 3:
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _is_number(value: Any) -> bool:
    return isinstance(_as_number(value), float)


def _is_time(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    try:
        return 0 <= fields.seconds(_as_number(value), 0) < fields.END_S
    except fields.Invalid:
        return False


def _looks_like_time(value: Any) -> bool:
    """Whether nothing but a time is like this: a date, or a number of our decades."""
    value = _as_number(value)
    return isinstance(value, str) or value >= _EARLIEST_S


def _as_number(value: Any) -> Any:
    """A number that a text holds, as the cells of a CSV are; else the value."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


_FITTING = {
    "user_id": _is_id,
    "item_id": _is_id,
    "timestamp": _is_time,
    "rating": _is_number,
    "event_type": _is_id,
}
