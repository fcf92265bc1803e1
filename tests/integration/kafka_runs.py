"""Topics of a real broker, and the arguments of runs that read them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crash_harness import TINY
from kafka_harness import KafkaHarness, WrittenTopic

QUICK = ["retry_backoff_ms=20", "session_timeout_ms=1500", "heartbeat_interval_ms=200"]
"""Client settings with which a dead member is soon forgotten."""
PATIENT = ["retry_backoff_ms=20", "session_timeout_ms=300000", "heartbeat_interval_ms=200"]
"""Client settings with which a dead member is remembered for longer than a test waits."""
START_MS = int(time.time() * 1000) - 600_000
"""When the records were written: not long ago, or the broker removes them for their age."""


class Topic(WrittenTopic):
    """A topic with records, and the arguments of runs that read it."""

    def __init__(self, kafka: KafkaHarness, directory: Path, partitions: int) -> None:
        super().__init__(kafka, partitions)
        self.directory = directory
        self.group = f"group-{uuid.uuid4().hex[:12]}"

    def append(self, values: Sequence[bytes], **how: Any) -> None:
        super().append(values, first_time_ms=START_MS, **how)

    def run(self, name: str, *more: Any, group: str | None = None, client: Sequence[str] = QUICK) -> list[Any]:
        """A run with a name of its own, which is that of its checkpoint directory."""
        options = [part for setting in client for part in ("--kafka", setting)]
        return [
            *("run", "--bootstrap-servers", self.kafka.server.bootstrap, "--topic", self.name, *options, *TINY),
            *("--group-id", group or self.group, "--checkpoint-dir", self.directory / name, *more),
        ]
