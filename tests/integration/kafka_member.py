"""A member of a consumer group in a process of its own, for tests that kill it.

Reads until it is killed, and prints `assigned <numbers>` and `read <partition> <offset>`.

Args: bootstrap server, topic, group, client settings as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from streamer.sources.base import Partition, Positions
from streamer.sources.kafka.settings import KafkaSettings
from streamer.sources.kafka.source import KafkaSource


class Printing:
    def on_assigned(self, partitions: Iterable[Partition]) -> Positions:
        print("assigned", *sorted(partition.number for partition in partitions), flush=True)
        return {}

    def on_revoked(self, partitions: Iterable[Partition]) -> None:
        print("revoked", *sorted(partition.number for partition in partitions), flush=True)


def main() -> None:
    bootstrap, topic, group, client = sys.argv[1:]
    source = KafkaSource(KafkaSettings(bootstrap, topic, group_id=group, client=json.loads(client)))
    source.open(Printing())
    while True:
        for chunk in source.poll(100, 0.1):
            for offset in chunk.offsets:
                print("read", chunk.partition.number, offset, flush=True)


if __name__ == "__main__":
    main()
