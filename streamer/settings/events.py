"""What events look like, and which of them count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from streamer.model.setting import Settings, expert_setting, setting
from streamer.model.settings import RULES

FIELDS = (
    "user_id", "item_id", "timestamp", "user_features", "item_features", "event_type", "rating", "weight",
    "title", "deleted", *RULES,
)  # fmt: skip
"""The fields of an event by our own names; those from the title on are of catalogue
events.
"""
MAX_RECORD_BYTES = 1 << 24
"""No record can be allowed to be larger: more of a compressed one is never in memory."""


@dataclass(frozen=True, kw_only=True)
class EventSettings(Settings):
    """What the events of a topic look like, which of them count, and how large they may
    be.
    """

    heading: ClassVar[str] = "Events"

    fields: Mapping[str, str] = setting(
        {},
        "Name of a field in your records, e.g. user_id=uid or item_id=event.product.id; repeat it for several.",
        metavar="OURS=THEIRS",
        option="field",
        common=True,
    )
    event_types: tuple[str, ...] = setting(
        (), "Train only on events of this type; repeat it for several."
    )
    deletion_types: tuple[str, ...] = setting(
        (),
        "Events of this type, e.g. item_deleted, say that their item does not exist any more: it is forgotten. They "
        "need no user; repeat it for several.",
    )
    catalogue_types: tuple[str, ...] = setting(
        (),
        "Events of this type, e.g. item, are catalogue events: they create, describe or delete their item, and need no "
        "user; repeat it for several.",
    )
    min_rating: float | None = setting(
        None, "Train only on events with at least this rating."
    )
    value_format: Literal["json", "avro", "protobuf"] = setting(
        "json",
        "What the values of records are; avro and protobuf need --schema-registry.",
    )
    schema_registry: str | None = setting(
        None,
        "URL of a registry with the interface of Confluent's, e.g. http://user:password@registry:8081.",
    )
    max_id_length: int = expert_setting(
        256, "Maximum length of an id.", at_least=1, unit="characters"
    )
    max_features: int = expert_setting(
        64,
        "Maximum number of features of a user, and of an item, in one event.",
        at_least=1,
    )
    max_feature_length: int = expert_setting(
        256,
        "Maximum length of a feature's name or category.",
        at_least=1,
        unit="characters",
    )
    max_record_bytes: int = expert_setting(
        1 << 20,
        "Maximum size of a record's value.",
        at_least=1,
        at_most=MAX_RECORD_BYTES,
        unit="bytes",
    )
    max_events_per_record: int = expert_setting(
        10_000, "Maximum number of events in one record (an array).", at_least=1
    )

    def name_of(self, field: str) -> str:
        """What the topic calls one of our fields."""
        return self.fields.get(field, field)

    def problems(self) -> list[str]:
        found = [*super().problems(), *self._field_problems()]
        if self.value_format != "json" and self.schema_registry is None:
            found.append(
                f"value-format is {self.value_format}: give --schema-registry URL, which has the schemas"
            )
        if not all(self.event_types):
            found.append(
                f"event-type is {self.event_types!r}: each must be text that is not empty"
            )
        taken = set(self.event_types)
        for option, given in (
            ("deletion-type", self.deletion_types),
            ("catalogue-type", self.catalogue_types),
        ):
            if not all(given) or set(given) & taken:
                found.append(
                    f"{option} is {given!r}: each must be text that is not empty, and of no other kind"
                )
            taken |= set(given)
        return found

    def _field_problems(self) -> Iterator[str]:
        for ours, theirs in self.fields.items():
            if ours not in FIELDS:
                yield f"field: there is no field {ours!r}, only {', '.join(FIELDS)}"
            if (
                not isinstance(theirs, str)
                or not theirs
                or any(c in '"\\' or c < " " for c in theirs)
            ):
                yield f"field: {ours} cannot be called {theirs!r}: no quotes, backslashes or control characters"
        ours_of: dict[str, list[str]] = {}
        for ours in FIELDS:
            ours_of.setdefault(self.name_of(ours), []).append(ours)
        for theirs, several in ours_of.items():
            if len(several) > 1:
                yield f"field: {theirs!r} is the name of several fields: {', '.join(several)}"
