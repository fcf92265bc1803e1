"""Brings what a record holds elsewhere to where the decoder looks for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from streamer.settings import EventSettings

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_FEATURE_STARTS = frozenset(b'"-0123456789tf')
"""First bytes of texts, numbers and booleans."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Members = dict[str, msgspec.Raw]


class FeatureNames(NamedTuple):
    """Features that the model uses."""

    items: Sequence[str] = ()
    users: Sequence[str] = ()


class Lift:
    """Rewrites records of JSON objects, if the settings name anything deeper or higher
    than it is looked for:

    1. a field whose name has dots, `event.product.id`, is copied to the top, unless the
       object has a member of just that name;
    2. a feature that stands beside `item_features` or `user_features` is copied into
       them, unless it is there. Names may have dots here, too; one that JSON must
       escape is not looked for.

    Args:
        settings: what the fields are called.
        features: those that are looked for.
    """

    def __init__(self, settings: EventSettings, features: FeatureNames) -> None:
        self._fields = [name for name in settings.fields.values() if "." in name]
        self._features: list[tuple[str, Sequence[str]]] = []
        for ours, names in (
            ("item_features", features.items),
            ("user_features", features.users),
        ):
            plain = [name for name in names if json.dumps(name) == f'"{name}"']
            if plain:
                self._features.append((settings.name_of(ours), plain))
        self.is_needed = bool(self._fields or self._features)
        wanted = list(self._fields)
        for _, looked_for in self._features:
            wanted += looked_for
        self._peek = _peek_decoder(wanted)

    def __call__(self, value: bytes) -> bytes:
        """The record as the decoder wants it; as it is, if it is no object."""
        try:
            peek = self._peek(value)
            if all(member is None for member in msgspec.structs.astuple(peek)):
                return value
            members = _decode_members(value)
            changed = self._lift_fields(members)
            changed |= self._lift_features(members)
        except _UNREADABLE:
            return value
        return _encode(members) if changed else value

    def _lift_fields(self, members: Members) -> bool:
        changed = False
        for name in self._fields:
            found = _find(members, name)
            if found is not None and name not in members:
                members[name] = found
                changed = True
        return changed

    def _lift_features(self, members: Members) -> bool:
        changed = False
        for target, names in self._features:
            found: Members = {}
            for name in names:
                content = _find(members, name)
                if content is not None and bytes(content)[0] in _FEATURE_STARTS:
                    found[name] = content
            if found:
                there = members.get(target, msgspec.Raw(b"null"))
                if bytes(there) != b"null":
                    found |= _decode_members(there)
                members[target] = msgspec.Raw(_encode(found))
                changed = True
        return changed


def _peek_decoder(names: Sequence[str]) -> Callable[[bytes], Any]:
    """Sees whether an object has any member of which a name might be, faster than by
    taking all of them apart.
    """
    wanted = sorted({*names, *(name.partition(".")[0] for name in names)})
    members = [(f"member_{k}", msgspec.Raw, None) for k in range(len(wanted))]
    called = {f"member_{k}": name for k, name in enumerate(wanted)}
    peek = msgspec.defstruct("Peek", members, rename=called, gc=False)
    return msgspec.json.Decoder(peek).decode


def _find(members: Members, name: str) -> msgspec.Raw | None:
    """A member of this name, or at this path; None if there is none."""
    if name in members or "." not in name:
        return members.get(name)
    first, _, rest = name.partition(".")
    inner = members.get(first)
    if inner is None or not bytes(inner).startswith(b"{"):
        return None
    return _find(_decode_members(inner), rest)
