"""Items that are never recommended, kept in a file: withdrawn goods stay withdrawn
after a restart.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from streamer.errors import StreamerError
from streamer.snapshot.directory import system_errors, whole_file

MAX_HIDDEN = 10_000
"""Each request looks for all of them, so they are not many."""


class Hidden:
    """Ids of hidden items; each change is on disk before `put` returns.

    Args:
        path: a JSON file; None keeps them in memory.

    Raises:
        StreamerError: the file cannot be read.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()  # requests come from several threads
        self.ids: frozenset[str] = frozenset()
        if path is None or not path.exists():
            return
        try:
            content = path.read_bytes()
            self.ids = msgspec.json.decode(content, type=frozenset[str])
        except (OSError, msgspec.MsgspecError) as error:
            raise StreamerError(
                f"cannot read the hidden items in {path}: {error}. Mend the file, or remove it"
            ) from error

    def put(self, item: str, is_hidden: bool) -> None:
        """Never recommend this item, or recommend it again.

        Raises:
            StreamerError: the file cannot be written, or there are too many.
        """
        with self._lock:
            ids = self.ids | {item} if is_hidden else self.ids - {item}
            if len(ids) > max(MAX_HIDDEN, len(self.ids)):
                raise StreamerError(
                    f"{MAX_HIDDEN:,} items are hidden, which is the most: show some "
                    "again (DELETE /hidden/ITEM)"
                )
            if self._path is not None and ids != self.ids:
                with system_errors("write", self._path, StreamerError):
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    with whole_file(self._path) as file:
                        file.write(msgspec.json.encode(sorted(ids)))
            self.ids = ids
