"""A real run to look at: a trainer in a process of its own, and somebody who writes events while it trains."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from typing import Self

import numpy as np
from servers.process import Process

from streamer.event import encode
from streamer.sources.embedded.log import EmbeddedLog

TOPIC = "interactions"
SCRIPT = "<script>window.hacked = 1</script>"
IMAGE = '<img src=x onerror="window.hacked = 2">'
BAD_RECORD = b'<svg onload="window.hacked = 3"> is no event'
PATIENCE_S = 120.0
A_TURN = 400

OPTIONS = """
    --dim 8 --batch-size 128 --max-age 0.2 --cache-size 256 --set hash_slots=4096 --threads 1 --set evaluation_share=0.5
    --checkpoint-every 2 --metrics-port 0 --metrics-show-values --log-format plain
"""


class LiveRun:
    """A trainer and a writer; two of the items have names that a careless page would run.

    Args:
        directory: of the log, checkpoints and output.
    """

    def __init__(self, directory: Path) -> None:
        self._log = EmbeddedLog(directory)
        self._log.create_topic(TOPIC, 2)
        self._rng = np.random.default_rng(0)
        self._write()
        command = [sys.executable, "-m", "streamer", "run", "--data-dir", directory, "--topic", TOPIC]
        self.process = Process([*command, *OPTIONS.split()], directory / "run.log")
        self._ending = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="writer", daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self.process.wait_until(lambda: self._found_url() is not None, PATIENCE_S)
        self.url = self._found_url() or ""
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._log.close()

    def stop(self) -> None:
        """End both."""
        self._ending.set()
        self._writer.join()
        self.process.stop()

    def _found_url(self) -> str | None:
        found = re.search(r"live page at (http://\S+/),", self.process.log.read_text(errors="replace"))
        return found.group(1) if found else None

    def _write_on(self) -> None:
        while not self._ending.wait(0.25):
            self._write()

    def _write(self) -> None:
        """A turn of events, a bad record among them."""
        items = np.minimum(self._rng.zipf(1.4, A_TURN), 300)
        names = {1: SCRIPT, 2: IMAGE}
        users = self._rng.integers(0, 200, A_TURN)
        now = time.time()
        values = [
            encode(f"u{u}", names.get(i, f"item {i}"), now) for u, i in zip(users.tolist(), items.tolist(), strict=True)
        ]
        values.append(BAD_RECORD)
        self._log.append(TOPIC, [(None, value, int(1000 * now)) for value in values])
