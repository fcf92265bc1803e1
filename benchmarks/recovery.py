"""How long training pauses when one of the trainers of a group is killed.

    python benchmarks/recovery.py --trainers 2 --kills 6

A stream is written to an embedded log all the time. A pause lasts from SIGKILL until
there is a checkpoint that holds more events than were saved before: processes start,
load the last checkpoint, train, and save.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from streamer.event import encode
from streamer.snapshot import CheckpointStore, SnapshotDirectory
from streamer.sources.embedded.log import EmbeddedLog

USERS = 100_000
ITEMS = 40_000


def write(directory: Path, rate: int, stop: threading.Event) -> None:
    """Append this many events a second, keyed by user."""
    rng = random.Random(1)
    with EmbeddedLog(directory) as log:
        while not stop.wait(0.1):
            users = [f"u{rng.randrange(USERS)}" for _ in range(rate // 10)]
            items = (f"i{int(rng.paretovariate(0.5)) % ITEMS}" for _ in users)
            now = time.time()
            log.append(
                "interactions",
                [
                    (u.encode(), encode(u, i, now), int(1000 * now))
                    for u, i in zip(users, items, strict=True)
                ],
            )


def consumed(store: CheckpointStore) -> int:
    """How many events the newest checkpoint holds."""
    found = store.load()
    return int(found.meta["accounting"]["consumed"]) if found is not None else 0


def ranks(launcher: int) -> list[int]:
    """The processes that a launcher has started."""
    return [
        int(pid)
        for pid in Path(f"/proc/{launcher}/task/{launcher}/children")
        .read_text()
        .split()
    ]


def wait_for_more(store: CheckpointStore, than: int) -> None:
    """Return when a checkpoint holds more events."""
    while consumed(store) <= than:
        time.sleep(0.02)


def main() -> None:
    """Kill rank after rank, and print the pauses."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--rate", type=int, default=5_000, help="events a second")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="streamer-recovery-") as name:
        directory = Path(name)
        stop = threading.Event()
        with EmbeddedLog(directory) as log:
            log.create_topic("interactions", 4)
        writer = threading.Thread(target=write, args=(directory, given.rate, stop))
        writer.start()
        run = [
            "run",
            "--data-dir",
            name,
            "--trainers",
            str(given.trainers),
            "--checkpoint-every",
            "1",
        ]
        launcher = subprocess.Popen(
            [sys.executable, "-m", "streamer", *run], stderr=subprocess.DEVNULL
        )
        store = SnapshotDirectory(directory / "checkpoints")
        pauses = []
        wait_for_more(store, 0)
        for kill in range(given.kills):
            time.sleep(5)
            before = ranks(launcher.pid)
            began = time.monotonic()
            os.kill(before[kill % given.trainers], signal.SIGKILL)
            while set(before) & set(
                ranks(launcher.pid)
            ):  # what they are writing may be safe yet
                time.sleep(0.02)
            wait_for_more(store, consumed(store))
            pauses.append(round(time.monotonic() - began, 2))
        stop.set()
        writer.join()
        launcher.terminate()
        launcher.wait()
    print(
        json.dumps(
            {
                "median_s": statistics.median(pauses),
                "longest_s": max(pauses),
                "pauses_s": pauses,
            }
        )
    )


if __name__ == "__main__":
    main()
