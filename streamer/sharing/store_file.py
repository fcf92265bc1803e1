"""The shared state of a model in a file: what `streamer store export` writes and
`streamer store import` reads.

`.npz` without object arrays, so that numpy reads it without pickle:

    about                     uint8, a JSON object as UTF-8: format, model, generation, number, events, saved_at
    ids.utf8, ids.offsets     item ids by row, as `streamer.snapshot.pack_strings` packs them
    counts                    int64 [N], events of each item
    drawn                     int64 [N], how often each item was resampled
    partitions.utf8, .offsets names of the P partitions
    next                      int64 [P], offset up to which each is counted; -1 for none
    epochs                    int64 [P], the epoch in which each was claimed last; -1 for never
    cache                     int64 [C], item rows; empty if there is no cache
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.cache_store.redis.admin import Contents
from streamer.cache_store.replica import LogPosition
from streamer.errors import CorruptCheckpoint, StreamerError
from streamer.snapshot import pack_strings, unpack_strings

FORMAT = 1


def write(path: Path, contents: Contents, about: Mapping[str, Any]) -> None:
    """Write the state; `about` is added to what describes it."""
    described = {
        "format": FORMAT,
        "generation": contents.position.generation,
        "number": contents.position.number,
        "events": contents.events,
        "has_cache": contents.cache is not None,
    }
    partitions = sorted(contents.next.keys() | contents.epochs.keys())
    arrays = {
        **pack_strings(contents.ids, "ids"),
        "counts": contents.counts,
        "drawn": contents.drawn,
        **pack_strings(partitions, "partitions"),
        "next": np.array(
            [contents.next.get(name, -1) for name in partitions], np.int64
        ),
        "epochs": np.array(
            [contents.epochs.get(name, -1) for name in partitions], np.int64
        ),
        "cache": contents.cache
        if contents.cache is not None
        else np.empty(0, np.int64),
        "about": np.frombuffer(json.dumps({**about, **described}).encode(), np.uint8),
    }
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read(path: Path) -> tuple[Contents, dict[str, Any]]:
    """The state that `write` has written, and what describes it.

    Raises:
        StreamerError: `write` has not written it, or it is damaged; with every problem.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(arrays["about"].tobytes())
        ids = unpack_strings(arrays, "ids")
        partitions = unpack_strings(arrays, "partitions")
        problems = _problems(arrays, about, ids, partitions)
    except OSError as error:
        raise StreamerError(f"cannot read {path}: {error.strerror or error}") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        EOFError,
        CorruptCheckpoint,
    ) as error:
        raise StreamerError(
            f"{path} is not an export of a store, or it is damaged: {error}"
        ) from error
    if problems:
        raise StreamerError(f"{path} cannot be imported: {'; '.join(problems)}")
    position = LogPosition(str(about["generation"]), int(about["number"]), "", "")
    events = int(about["events"])
    following, epochs = (
        {
            name: int(n)
            for name, n in zip(partitions, arrays[column], strict=True)
            if n >= 0
        }
        for column in ("next", "epochs")
    )
    cache = arrays["cache"] if about["has_cache"] else None
    return Contents(
        position,
        events,
        ids,
        arrays["counts"],
        arrays["drawn"],
        following,
        epochs,
        cache,
    ), about


def _problems(
    arrays: Mapping[str, NDArray[Any]],
    about: Mapping[str, Any],
    ids: list[str],
    partitions: list[str],
) -> list[str]:
    """Everything that is wrong; empty if nothing is."""
    if about["format"] != FORMAT:
        return [f"it has format {about['format']}, this version reads {FORMAT}"]
    lengths = {
        "counts": len(ids),
        "drawn": len(ids),
        "next": len(partitions),
        "epochs": len(partitions),
        "cache": None,
    }
    found = []
    for name, length in lengths.items():
        array = arrays[name]
        if array.dtype != np.int64 or array.ndim != 1:
            found.append(
                f"{name} is {array.dtype} of {array.ndim} dimensions, not int64 of one"
            )
        elif length is not None and len(array) != length:
            found.append(f"{name} has {len(array):,} numbers, not {length:,}")
        elif array.min(initial=0) < (-1 if name in ("next", "epochs") else 0):
            found.append(f"{name} has numbers below zero")
    if len(set(ids)) != len(ids):
        found.append("ids come twice")
    if arrays["cache"].max(initial=-1) >= len(ids):
        found.append("the cache names rows that have no id")
    if not isinstance(about["events"], int) or about["events"] < 0:
        found.append(f"it counts {about['events']!r} events")
    return found
