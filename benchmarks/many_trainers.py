"""HR@10 of a group of trainers, by their number: each event is ranked by the rank that
reads it, before it is trained.

    python benchmarks/many_trainers.py LOG.inter [LOG.inter ...] --events 100000
    --trainers 1,2,4

The first events of each log are written to an embedded log of four partitions, keyed by
user. `plain` is `streamer run` without `--trainers`. Prints the rows of the table in
docs/results.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

PARTITIONS = 4
PLAIN = 0
"""Instead of a number of trainers: one without a group."""


class Found(NamedTuple):
    """What one process found."""

    hits: float
    events: int
    digest: str
    """Of what all ranks hold alike."""


def main() -> None:
    """Train each log with each number of trainers, and print a line of each log."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--trainers", default="1,2,4")
    options = parser.parse_args()
    sizes = [PLAIN, *map(int, options.trainers.split(","))]
    print(
        "| log | events |",
        " | ".join("plain" if not size else f"{size}" for size in sizes),
        "| same model |",
    )
    for log in options.logs:
        with tempfile.TemporaryDirectory() as directory:
            where = [
                "--data-dir",
                directory,
                "--partitions",
                str(PARTITIONS),
                "--limit",
                str(options.events),
            ]
            write = [
                sys.executable,
                "-m",
                "streamer",
                "replay",
                "recbole",
                "--path",
                str(log),
                *where,
            ]
            subprocess.run(write, check=True, stdout=subprocess.DEVNULL)
            found = [_train(Path(directory), size) for size in sizes]
        rates = [
            sum(f.hits for f in ranks) / sum(f.events for f in ranks) for ranks in found
        ]
        digests = {
            f.digest
            for size, ranks in zip(sizes, found, strict=True)
            if size
            for f in ranks
        }
        events = sum(f.events for f in found[0])
        figures = " | ".join(f"{rate:.4f}" for rate in rates)
        print(
            f"| {log.name.split('.')[0]} | {events:,} | {figures} | {'yes' if len(digests) == 1 else 'NO'} |",
            flush=True,
        )


def _train(directory: Path, size: int) -> list[Found]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    arguments = [(directory, size, rank, port) for rank in range(max(size, 1))]
    with multiprocessing.get_context("spawn").Pool(len(arguments)) as processes:
        return processes.starmap(_rank, arguments, chunksize=1)


def _rank(directory: Path, size: int, rank: int, port: int) -> Found:
    """Train as one rank of `size`, and rank every event."""
    import torch

    from streamer.build import build_pipeline
    from streamer.evaluation import EventSampler, Prequential
    from streamer.settings import RunSettings

    torch.set_num_threads(1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(max(size, 1)), **address}
    own: dict[str, Any] = {
        "checkpoint_dir": directory / f"{size}-trainers",
        "evaluation_share": 0.0,
    }
    pipeline = build_pipeline(
        RunSettings(data_dir=directory, until_end=True, trainers=size or None, **own)
    )
    test = pipeline._prequential = Prequential(
        pipeline.learner, EventSampler(time_share=None, max_events=None), baselines=()
    )
    pipeline.run()
    events = test.model.events
    return Found(
        (test.model.overall or 0.0) * events, events, pipeline.learner.digest().hex()
    )


if __name__ == "__main__":
    main()
