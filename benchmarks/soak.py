"""A stream of ever new ids at fixed limits: do memory, speed and disk stay as they are,
and is it as good?

    python benchmarks/soak.py --events 1000000

The catalogue is replaced bit by bit, users come and go, and a third of the events are
those of bots, each with a user and an item that never come again. `streamer run` reads
it twice: with limits that hold the ids of the last 100,000 events, and without. Half of
the time is for filling up; what is measured is the second half. Speed is processor time
of the training thread, which does all arithmetic (`--threads 1`): what else the machine
does changes it little.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WINDOW = 100_000
LIMITS = ["--max-users", "60000", "--max-items", "80000"]
GENERATION = 4_000
CLUSTERS = 40
RANKS = 20
LIFE = 12
BOTS = 0.33
EVERY_S = 0.5


class Sample(NamedTuple):
    """What a run looked like at one moment."""

    events: int
    rss: int
    disk: int
    training_cpu_s: float


def lines(events: int, seed: int = 0) -> Any:
    """Records of the stream."""
    rng = random.Random(seed)
    users = []
    for k in range(events):
        if rng.random() < BOTS:
            yield f'{{"user_id":"bot-{k}","item_id":"junk-{k}","timestamp":{1_700_000_000 + k}}}\n'
            continue
        if len(users) < 2_000 or rng.random() < 1 / LIFE:
            users.append(k)
            users = users[-2_000:]
        user = users[rng.randrange(len(users))]
        age = min(int(rng.expovariate(1.0)), 6)
        item = f"{max(k // GENERATION - age, 0)}-{user % CLUSTERS}-{min(int(rng.paretovariate(1.0)), RANKS)}"
        yield f'{{"user_id":"u{user}","item_id":"{item}","timestamp":{1_700_000_000 + k}}}\n'


def run(
    events: int, directory: Path, options: list[str]
) -> tuple[list[Sample], dict[str, Any]]:
    """Samples of a run, and its summary."""
    command = [
        sys.executable,
        "-m",
        "streamer",
        "run",
        "--source",
        "-",
        "--until-end",
        "--json",
        "--device",
        "cpu",
    ]
    command += [
        "--threads",
        "1",
        "--data-dir",
        str(directory),
        "--checkpoint-every",
        "10",
    ]
    command += ["--set", "evaluation_share=0.2", *options]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    written = [0]
    samples = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(EVERY_S):
            rss = int(
                Path(f"/proc/{process.pid}/statm").read_text().split()[1]
            ) * os.sysconf("SC_PAGE_SIZE")
            disk = sum(
                path.stat().st_size for path in directory.rglob("*") if path.is_file()
            )
            times = (
                Path(f"/proc/{process.pid}/task/{process.pid}/stat")
                .read_text()
                .rpartition(")")[2]
                .split()[11:13]
            )
            samples.append(
                Sample(
                    written[0],
                    rss,
                    disk,
                    sum(map(int, times)) / os.sysconf("SC_CLK_TCK"),
                )
            )

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    for line in lines(events):
        process.stdin.write(line)
        written[0] += 1
    done.set()
    process.stdin.close()
    output = process.stdout.read()
    if process.wait():
        raise SystemExit(f"streamer run ended with {process.returncode}")
    return samples, json.loads(output.strip().splitlines()[-1])


def figures(samples: list[Sample], events: int) -> dict[str, float]:
    """Of the second half: growth of memory as a share of it, processor time of an
    event, largest disk.
    """
    late = [sample for sample in samples if sample.events > events // 2]
    at = np.array([s.events for s in late])
    rss = np.array([s.rss for s in late])
    slope = float(np.polyfit(at, rss, 1)[0])
    middle = len(late) // 2
    cpu_us = [_median_cpu_us(part) for part in (late[:middle], late[middle:])]
    return {
        "rss_mb": round(float(np.median(rss)) / 1e6, 1),
        "rss_growth_share": round(slope * (at[-1] - at[0]) / float(np.median(rss)), 4),
        "cpu_end_over_begin": round(cpu_us[1] / cpu_us[0], 3),
        "training_cpu_us_per_event": round(cpu_us[1], 1),
        "disk_mb": round(max(s.disk for s in late) / 1e6, 1),
        "disk_end_over_begin": round(
            max(s.disk for s in late[middle:]) / max(s.disk for s in late[:middle]), 3
        ),
    }


def _median_cpu_us(samples: list[Sample]) -> float:
    """Microseconds of the training thread for an event: the median over split_catalogue_events of
    ten samples.
    """
    split_catalogue_events = [
        (a, b)
        for a, b in zip(samples, samples[10:], strict=False)
        if b.events > a.events
    ]
    return float(
        np.median(
            [
                1e6 * (b.training_cpu_s - a.training_cpu_s) / (b.events - a.events)
                for a, b in split_catalogue_events
            ]
        )
    )


def main() -> None:
    """Print one JSON object; fails if something grows, or is worse."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    events = parser.parse_args().events
    result = {}
    for name, options in (
        ("limited", LIMITS),
        ("unlimited", ["--max-users", "100000000", "--max-items", "100000000"]),
    ):
        with tempfile.TemporaryDirectory() as directory:
            samples, summary = run(events, Path(directory), options)
        kept = {
            key: summary[key] for key in ("users", "items", "hit_rate_at_10", "trained")
        }
        result[name] = figures(samples, events) | kept
    limited = result["limited"]
    ratio = result["limited"]["hit_rate_at_10"] / result["unlimited"]["hit_rate_at_10"]
    result["hit_rate_over_unlimited"] = round(ratio, 4)
    print(json.dumps(result, indent=2))
    problems = [
        f"{name} is {value}"
        for name, value, wrong in (
            (
                "rss_growth_share",
                limited["rss_growth_share"],
                limited["rss_growth_share"] > 0.02,
            ),
            (
                "cpu_end_over_begin",
                limited["cpu_end_over_begin"],
                limited["cpu_end_over_begin"] > 1.1,
            ),
            (
                "disk_end_over_begin",
                limited["disk_end_over_begin"],
                limited["disk_end_over_begin"] > 1.1,
            ),
            ("hit_rate_over_unlimited", ratio, ratio < 0.99),
        )
        if wrong
    ]
    if problems:
        raise SystemExit("; ".join(problems))


if __name__ == "__main__":
    main()
