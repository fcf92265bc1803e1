"""A stream of ever new ids at fixed limits: does anything grow, of the trainer or of the server?

    python benchmarks/soak.py --minutes 10
    python benchmarks/soak.py --quality --events 1000000

The catalogue is replaced bit by bit, users come and go, and a third of the events are
those of bots, each with a user and an item that never come again. `streamer run` learns
it from an embedded log that forgets what was committed, with limits that hold the ids of
the last 100,000 events; `streamer serve` follows, and is asked all the while. Half of
the time is for filling up; what is measured is the second half. Time of a step is
processor time of the training thread for an event, which what else the machine does
changes little; that of the server is of all its threads for a request.

With `--quality`: is it as good as without limits?
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from processes import free_port
from streamer.sources.embedded.log import EmbeddedLog

LIMITS = ["--max-users", "60000", "--max-items", "80000"]
GENERATION = 4_000
CLUSTERS = 40
RANKS = 20
LIFE = 12
BOTS = 0.33
EVERY_S = 1.0
WRITTEN_AT_ONCE = 500
MAX_QUEUED = 20_000
RETENTION_MB = 20
RUN = ["run", "--device", "cpu", "--threads", "1", "--set", "evaluation_share=0.2"]
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Sample(NamedTuple):
    """What a process looked like at one moment."""

    at_s: float
    work: int
    """Events that were trained, or requests that were answered."""
    rss: int
    descriptors: int
    threads: int
    disk: int
    cpu_s: float


def values(seed: int = 0) -> Iterator[bytes]:
    """Records of the stream, without end."""
    rng = random.Random(seed)
    users: list[int] = []
    k = 0
    while True:
        k += 1
        if rng.random() < BOTS:
            user, item = f"bot-{k}", f"junk-{k}"
        else:
            if len(users) < 2_000 or rng.random() < 1 / LIFE:
                users = [*users[-1_999:], k]
            number = users[rng.randrange(len(users))]
            age = min(int(rng.expovariate(1.0)), 6)
            rank = min(int(rng.paretovariate(1.0)), RANKS)
            user = f"u{number}"
            item = f"{max(k // GENERATION - age, 0)}-{number % CLUSTERS}-{rank}"
        event = {"user_id": user, "item_id": item, "timestamp": 1_700_000_000 + k}
        yield json.dumps(event).encode()


class Watched:
    """A command, and samples of its process until it is ended."""

    def __init__(self, *arguments: Any, directory: Path, main_thread: bool) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "streamer", *map(str, arguments)]
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.work = 0
        self.samples: list[Sample] = []
        of_thread = f"/task/{self.process.pid}" if main_thread else ""
        self._stat = Path(f"/proc/{self.process.pid}{of_thread}/stat")

    def check(self) -> None:
        """See that it runs."""
        if self.process.poll() is not None:
            said = (self.directory / "log").read_text()[-2000:]
            raise SystemExit(f"it ended with {self.process.returncode}: {said}")

    def sample(self) -> None:
        """Take one now."""
        self.check()
        proc = Path(f"/proc/{self.process.pid}")
        cpu = self._stat.read_text().rpartition(")")[2].split()[11:13]
        self.samples.append(
            Sample(
                at_s=time.monotonic(),
                work=self.work,
                rss=int((proc / "statm").read_text().split()[1]) * PAGE,
                descriptors=len(list((proc / "fd").iterdir())),
                threads=len(list((proc / "task").iterdir())),
                disk=_size(self.directory),
                cpu_s=sum(map(int, cpu)) / TICKS,
            )
        )

    def figures(self) -> dict[str, float]:
        """Of the second half: the mean of each figure, and its slope as a share of that
        an hour.
        """
        late = self.samples[len(self.samples) // 2 :]
        at_h = np.array([sample.at_s for sample in late]) / 3600
        found: dict[str, float] = {}
        series = {
            "rss_mb": [sample.rss / 1e6 for sample in late],
            "descriptors": [float(sample.descriptors) for sample in late],
            "threads": [float(sample.threads) for sample in late],
            "disk_mb": [sample.disk / 1e6 for sample in late],
            "cpu_us": _cpu_us(late),
        }
        for name, figures in series.items():
            mean = float(np.mean(figures))
            slope = float(np.polyfit(at_h[: len(figures)], figures, 1)[0])
            found[name] = round(mean, 1)
            found[f"{name}_growth"] = round(slope * (at_h[-1] - at_h[0]) / mean, 4)
        return found | {
            "work": late[-1].work,
            "seconds": round(3600 * (at_h[-1] - at_h[0])),
        }

    def end(self) -> None:
        """Ask it to end; a server ends by the signal itself."""
        self.process.terminate()
        if self.process.wait(120) not in (0, -signal.SIGTERM):
            raise SystemExit(f"it ended with {self.process.returncode}")


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _cpu_us(samples: list[Sample]) -> list[float]:
    """Microseconds of a processor for an event or a request, over ten samples each."""
    found = []
    for before, after in zip(samples, samples[10:], strict=False):
        work = max(1, after.work - before.work)
        found.append(1e6 * (after.cpu_s - before.cpu_s) / work)
    return found


def _get(url: str) -> str:
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(url, timeout=30) as answer,
    ):
        return str(answer.read().decode())
    return ""


def _trained(url: str) -> int:
    for line in _get(url).splitlines():
        if line.startswith("streamer_events_trained_total "):
            return int(float(line.split()[-1]))
    return 0


def soak(minutes: float, rate: float, directory: Path) -> dict[str, Any]:
    """Figures of a trainer and of a server."""
    published = directory / "trainer" / "published"
    metrics_port, port = free_port(), free_port()
    metrics = f"http://127.0.0.1:{metrics_port}/metrics"
    where = ["--data-dir", directory / "log"]
    log = EmbeddedLog(directory / "log")
    log.create_topic("interactions", 2)
    options = [*where, *LIMITS, "--set", f"embedded_retention_mb={RETENTION_MB}"]
    options += [
        "--checkpoint-dir",
        directory / "trainer" / "saved",
        "--checkpoint-every",
        10,
    ]
    options += [
        "--publish-dir",
        published,
        "--publish-every",
        1,
        "--metrics-port",
        metrics_port,
    ]
    trainer = Watched(*RUN, *options, directory=directory / "trainer", main_thread=True)
    options = ["--from", published, "--port", port, *where]
    server = Watched(
        "serve", *options, directory=directory / "server", main_thread=False
    )
    over = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        stream = values()
        while not over.wait(WRITTEN_AT_ONCE / rate):
            if written - trainer.work < MAX_QUEUED:
                records = [next(stream) for _ in range(WRITTEN_AT_ONCE)]
                log.append("interactions", [(None, value, 0) for value in records])
                written += WRITTEN_AT_ONCE

    def ask() -> None:
        while not over.wait(0.02):
            user = f"u{random.randrange(max(1, written))}"
            if _get(f"http://127.0.0.1:{port}/users/{user}/recommendations"):
                server.work += 1

    threads = [threading.Thread(target=write), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    try:
        while not (server.work and _trained(metrics)):
            time.sleep(EVERY_S)
            trainer.check()
            server.check()
        deadline = time.monotonic() + 60 * minutes
        while time.monotonic() < deadline:
            time.sleep(EVERY_S)
            trainer.work = _trained(metrics)
            trainer.sample()
            server.sample()
        found: dict[str, Any] = {
            "trainer": trainer.figures(),
            "server": server.figures(),
            "log_mb": round(_size(directory / "log") / 1e6, 1),
            "published_mb": round(_size(published) / 1e6, 1),
        }
    finally:
        over.set()
        for thread in threads:
            thread.join()
        server.end()
        trainer.end()
        log.close()
    return found


def grows(found: dict[str, Any]) -> list[str]:
    """What has grown by more than noise in the second half."""
    bounds = {
        "rss_mb": 0.03,
        "descriptors": 0.05,
        "threads": 0.05,
        "disk_mb": 0.3,
        "cpu_us": 0.15,
    }
    problems = []
    for name in ("trainer", "server"):
        for figure, bound in bounds.items():
            growth = found[name][f"{figure}_growth"]
            if growth > bound:
                problems.append(f"{figure} of the {name} has grown by {growth:.1%}")
    return problems


def quality(events: int) -> dict[str, float]:
    """The hit rate with limits, and that without over it."""
    found = {}
    for name, options in (
        ("limited", LIMITS),
        ("unlimited", ["--max-users", "100000000", "--max-items", "100000000"]),
    ):
        with tempfile.TemporaryDirectory() as directory:
            command = [
                *RUN,
                "--source",
                "-",
                "--until-end",
                "--json",
                "--data-dir",
                directory,
                *options,
            ]
            process = subprocess.Popen(
                [sys.executable, "-m", "streamer", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            stream = values()
            for _ in range(events):
                process.stdin.write(next(stream) + b"\n")
            process.stdin.close()
            found[name] = json.loads(process.stdout.read().splitlines()[-1])[
                "hit_rate_at_10"
            ]
    return found | {
        "limited_over_unlimited": round(found["limited"] / found["unlimited"], 4)
    }


def main() -> None:
    """Print one JSON object; fails if something grows, or is worse."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=2_000.0, help="events a second")
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--events", type=int, default=1_000_000, help="for --quality")
    given = parser.parse_args()
    if given.quality:
        found: dict[str, Any] = quality(given.events)
        problems = (
            ["it is worse with limits"]
            if found["limited_over_unlimited"] < 0.99
            else []
        )
    else:
        with tempfile.TemporaryDirectory() as directory:
            found = soak(given.minutes, given.rate, Path(directory))
        problems = grows(found)
    print(json.dumps(found, indent=2))
    if problems:
        raise SystemExit("; ".join(problems))


if __name__ == "__main__":
    main()
