"""A look at the records that a run would read, by which `streamer doctor` judges them.

It joins no group and commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from streamer.build import (
    dead_letter_share,
    event_decoder,
    kafka_settings,
    start_policy,
)
from streamer.cli.findings import Finding
from streamer.dead_letters.share import FIRST_LOOK
from streamer.errors import SourceUnavailable
from streamer.event import Decoded
from streamer.event.explain import explain
from streamer.settings import RunSettings
from streamer.sources.base import Chunk, Partition, Positions, Source, StartAt

PATIENCE_S = 4.0
"""How long records are waited for."""


def examine_events(settings: RunSettings, chunks: list[Chunk]) -> Iterator[Finding]:
    """How many of some records are events, and what is wrong with the others."""
    decoder = event_decoder(settings)
    try:
        decoded = [decoder.decode(chunk) for chunk in chunks]
    except SourceUnavailable as error:
        yield Finding("events", "failure", str(error), "check --schema-registry")
        return
    letters = [letter for chunk in decoded for letter in chunk.letters]
    total = sum(chunk.consumed for chunk in decoded)
    if not total:
        yield Finding("events", "ok", "no record waits to be read")
        return
    found = f"{total - len(letters):,} of the next {total:,} records are events"
    for absent in absent_features(settings, decoded):
        advice = "check its name"
        yield Finding("features", "warning", f"{absent} is in none of them", advice)
    if not letters:
        yield Finding("events", "ok", found)
        return
    is_refused = len(letters) > dead_letter_share(settings).max_share * total
    wrong = explain(settings, settings.source, letters)
    yield Finding("events", "failure" if is_refused else "warning", found, wrong)


def absent_features(settings: RunSettings, decoded: list[Decoded]) -> list[str]:
    """Features of the settings that no event has."""
    seen: dict[str, set[str]] = {"item": set(), "user": set()}
    for chunk in decoded:
        for features in chunk.item_features or ():
            seen["item"].update(features or ())
        for features in chunk.user_features or ():
            seen["user"].update(features or ())
    named = {
        "item": (*settings.item_features, *settings.item_numeric_features),
        "user": (*settings.user_features, *settings.user_numeric_features),
    }
    if not any(len(chunk) for chunk in decoded):
        return []
    found = []
    for side, names in named.items():
        found += [f"{side}-feature {name}" for name in names if name not in seen[side]]
    return found


def next_records(
    settings: RunSettings, positions: Positions, limit: int = FIRST_LOOK
) -> list[Chunk]:
    """The next records of the source, at most `limit`."""
    found: list[Chunk] = []
    with closing(open_beside(settings, positions)) as source:
        deadline = time.monotonic() + PATIENCE_S
        while limit and time.monotonic() < deadline and not _is_read(source):
            for chunk in source.poll(limit, 0.1):
                found.append(chunk)
                limit -= len(chunk)
    return found


def open_beside(settings: RunSettings, positions: Positions) -> Source:
    """A reader of the stream beside all others; without a position it begins at the
    start time, or at the beginning.
    """
    source: Source
    settings = replace(settings, start="earliest")
    if settings.source:
        from streamer.sources.files import FileSource

        source = FileSource(settings.source)
    elif (kafka := kafka_settings(settings)) is not None:
        from streamer.sources.kafka.tail import KafkaTail

        source = KafkaTail(kafka)
    else:
        from streamer.sources.embedded.source import EmbeddedSource

        source = EmbeddedSource(
            settings.data_dir,
            settings.all_topics,
            start=start_policy(settings),
            group=None,
        )
    source.open(StartAt(positions))
    return source


def _is_read(source: Source) -> bool:
    """Whether nothing more is there."""
    if source.at_end:
        return True
    read: dict[Partition, int] = dict(source.positions())
    ends = source.end_offsets()
    return bool(ends) and all(read.get(p, 0) >= end for p, end in ends.items())
