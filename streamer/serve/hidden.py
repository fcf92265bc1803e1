"""Items that are never recommended, kept in a file: withdrawn goods stay withdrawn
after a restart.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from streamer.errors import StreamerError

MAX_HIDDEN = 100_000


class Hidden:
    """Ids of hidden items; each change is on disk before `hide` or `show` returns.

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
            found = json.loads(path.read_bytes())
            if not isinstance(found, list) or not all(
                isinstance(item, str) for item in found
            ):
                raise ValueError("it is not a list of ids")
        except (OSError, ValueError) as error:
            raise StreamerError(
                f"cannot read the hidden items in {path}: {error}. Mend the file, or remove it"
            ) from error
        self.ids = frozenset(found)

    def hide(self, item: str) -> None:
        """Never recommend this item.

        Raises:
            StreamerError: the file cannot be written, or there are too many.
        """
        with self._lock:
            if len(self.ids) >= MAX_HIDDEN and item not in self.ids:
                raise StreamerError(
                    f"{MAX_HIDDEN:,} items are hidden already: "
                    "retire goods from the catalogue instead"
                )
            self._save(self.ids | {item})

    def show(self, item: str) -> None:
        """Recommend it again.

        Raises:
            StreamerError: the file cannot be written.
        """
        with self._lock:
            self._save(self.ids - {item})

    def _save(self, ids: frozenset[str]) -> None:
        if self._path is not None and ids != self.ids:
            temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with temporary.open("w") as file:
                    json.dump(sorted(ids), file)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self._path)
            except OSError as error:
                raise StreamerError(
                    f"cannot write the hidden items to {self._path}: {error.strerror}"
                ) from error
        self.ids = ids
