"""The wire format: what an event looks like in a record, and what becomes of a record
that is not one.

A record's value is JSON: one event, or an array of events.

    {"user_id": "ann", "item_id": 42, "timestamp": 1700000000,
     "user_features": {"country": "NL", "age": 31.0}, "item_features": {"genre":
     "jazz"}, "event_type": "purchase", "rating": 4.5}

user_id, item_id
    String or integer; becomes a string. Must not be empty.
timestamp
    A number: seconds since the epoch if below 7,258,118,400 (the year 2200), else
    milliseconds. Or a text in ISO 8601, UTC unless it says otherwise. Absent or null:
    the record's own time. Always within 1970 to 2199.
user_features, item_features
    Object. Strings, integers and booleans are categories and become strings (`42`,
    `true`); numbers with a fraction or an exponent (`31.0`) stay numbers; a null
    feature is absent.
event_type
    String or integer; looked at only when `EventSettings.event_types`,
    `catalogue_types` or `deletion_types` is set, or the learner tells types apart
    (`LearnerSettings.event_weights`). An event of one of the latter two is a
    catalogue event, and so is everything in the catalogue's topic.
rating
    Number; looked at only when `EventSettings.min_rating` is set.
weight
    Number from 0 to 1,000: how much the event counts. Looked at only when the learner
    tells types apart, or `EventSettings.fields` names it. Absent or null: that of the
    event's type, or 1.

A catalogue event is about an item, not about what a user did with it: it needs no user,
and becomes an event without one (an empty id).

    {"item_id": 42, "item_features": {"genre": "jazz"}, "title": "Kind of Blue",
    "deleted": false}

title
    String; a longer one is cut to 256 characters. It becomes the item feature `title`.
deleted
    Boolean. If true, or the type is one of `deletion_types`, or a record of the
    catalogue's topic has a key, the item's id, and no value: the item does not exist
    any more. The event has no item features then; any other has, if only {}.
hidden, pinned
    Boolean. Whether the item is never recommended; whether it comes before all others.
available_from, available_until
    Like a timestamp. The item is recommended from, and until, this time.

Other fields are ignored, of a repeated field the last counts, names can be mapped
(`EventSettings.fields`; with dots, `event.product.id` is a path). Features that the
model uses may also stand beside `item_features` and `user_features`.

Filters come before validation: a topic may carry other types of events, without an item
say, and those are filtered, not dead letters. An event without a type is of none of the
types asked for, and one without a rating has less than any rating asked for.

Nothing that a record holds makes `EventDecoder.decode` raise: bad input becomes a
`DeadLetter`. The unit of accounting is the event; a record that cannot be taken apart
counts as one. What was consumed is the sum of events, filtered and dead letters,
always.

May import: `dead_letters`, `sources.base`, `settings`, `errors`.
"""

from streamer.dead_letters.base import DeadLetter, Reason
from streamer.event.decoded import NO_USER, TITLE, Decoded, Features
from streamer.event.decoder import EventDecoder
from streamer.event.encoder import encode, encode_all
from streamer.settings import EventSettings

__all__ = [
    "NO_USER",
    "TITLE",
    "DeadLetter",
    "Decoded",
    "EventDecoder",
    "EventSettings",
    "Features",
    "Reason",
    "encode",
    "encode_all",
]
