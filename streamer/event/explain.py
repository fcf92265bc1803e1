"""What is wrong with records that are not events, and what to try, for a person."""

from __future__ import annotations

import csv
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from streamer.dead_letters.base import DeadLetter, Reason
from streamer.event.guess import guess_fields
from streamer.settings import EventSettings

READS_JSON = "Streamer reads one JSON object, or an array of them, from each record"
FILE_KINDS: Mapping[bytes, str] = {
    b"PAR1": "a Parquet file",
    b"Obj\x01": "an Avro file",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
}
"""How files begin that have no lines."""
DELIMITERS = ",\t;|"
MAX_KEYS_SHOWN = 12


def explain(
    settings: EventSettings, source: str | None, letters: Sequence[DeadLetter]
) -> str:
    """Sentences that say what some dead letters have in common, and what to try.

    Args:
        settings: what events should look like.
        source: the file of lines that the records come from; None for a topic.
        letters: dead letters of the stream, one at least.
    """
    values = [letter.value for letter in letters if letter.value]
    said = _other_format(values, source)
    if said is None:
        said = _unknown_fields(settings, letters, values)
    return said


def _other_format(values: Sequence[bytes], source: str | None) -> str | None:
    """What the values are, if they are not JSON but something that is known."""
    if not values:
        return None
    if all(value[:1] == b"\0" and len(value) > 5 for value in values):
        number = int.from_bytes(values[0][1:5])
        return (
            f"they are in the format of a schema registry (schema {number}), as a rule Avro. "
            "Try --value-format avro --schema-registry http://HOST:8081."
        )
    for beginning, kind in FILE_KINDS.items():
        if values[0].startswith(beginning):
            return f"they are {kind}. {READS_JSON}. {_command(kind, source)}"
    if any(b"\0" in value or not _is_text(value) for value in values):
        start = values[0][:8].hex(" ")
        return f"they are binary (the first begins with {start}), such as Avro or Protobuf. {READS_JSON}."
    if (table := _table(values)) is None:
        return None
    columns = _shown(list(table[0]))
    return f"they are CSV, with the columns {columns}. {READS_JSON}. {_command('CSV', source)}"


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _table(values: Sequence[bytes]) -> list[dict[str, str]] | None:
    """The rows of lines of CSV, the first of which is the header if it has no digits;
    None if they are no CSV.
    """
    lines = [value.decode().strip("\r\n") for value in values]
    if any(line.lstrip()[:1] in ("{", "[", '"{') for line in lines):
        return None
    for delimiter in DELIMITERS:
        rows = list(csv.reader(lines, delimiter=delimiter))
        widths = {len(row) for row in rows}
        if len(widths) != 1 or widths == {1}:
            continue
        names = [str(number + 1) for number in range(len(rows[0]))]
        if not any(character.isdigit() for cell in rows[0] for character in cell):
            names = rows.pop(0)
        return [dict(zip(names, row, strict=True)) for row in rows or [names]]
    return None


def _command(kind: str, source: str | None) -> str:
    """How a file of another format is learned from, if it can be."""
    if source is None or source == "-" or kind == "an Avro file":
        return "Convert them."
    return f"Try `streamer up {shlex.quote(source)}`."


def _unknown_fields(
    settings: EventSettings, letters: Sequence[DeadLetter], values: Sequence[bytes]
) -> str:
    """What is wrong with most of the events, the keys that they have, and what those
    might be.
    """
    reasons = Counter(letter.reason for letter in letters)
    reason = reasons.most_common(1)[0][0]
    detail = next(letter.detail for letter in letters if letter.reason is reason)
    if reason is Reason.BAD_TIMESTAMP:  # its detail quotes what the record holds
        detail = "timestamp is neither a number since the epoch nor ISO 8601"
    said = f"{detail}."
    guess = guess_fields(_objects(values))
    if guess.keys:
        said += f" Keys seen: {_shown(guess.keys)}."
    tries = []
    for ours, theirs in guess.fields.items():
        if ours in ("rating", "event_type"):
            continue
        if theirs != settings.name_of(ours):
            tries.append(f"--field {shlex.quote(f'{ours}={theirs}')}")
    if tries:
        said += f" Try {' '.join(tries)}."
    return said


def _shown(keys: Sequence[str]) -> str:
    """Keys of strangers, as many as a line takes, without what moves a cursor."""
    shown = [k if k.isprintable() else ascii(k) for k in keys[:MAX_KEYS_SHOWN]]
    if len(keys) > len(shown):
        shown.append("...")
    return ", ".join(shown)


def _objects(values: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    for value in values:
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for event in found if isinstance(found, list) else [found]:
            if isinstance(event, dict):
                yield event
