"""Requests of recommendations: how many a second, and how long one waits, beside a
plain handler around faiss.

The server is a process of its own, as `streamer serve` starts it; requests come from
this one. Waiting is measured with an open loop: requests are due at a steady rate, and
one that is sent late has waited. `alternative` is a FastAPI handler around
`faiss.IndexFlatIP` over the same number of vectors, which knows nothing but vectors.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np

import streamer
from common import long_tailed, new_parser, report
from load import closed_loop, open_loop, quantiles_ms, shuffled_paths
from processes import (
    cpu_s,
    free_port,
    others_cores,
    python_process,
    streamer_process,
    wait_for,
)
from streamer.learner import OnlineLearner
from streamer.model.rows.id_table import packed
from streamer.serve.settings import ServeSettings
from streamer.snapshot.places import DirectoryPlace
from streamer.snapshot.publisher import LINES, Due, Publisher

LEARNED_ITEMS = 2000
LEARNED_EVENTS = 30_000
USERS = 2000
WARM_UP_S = 2.0
"""A warm-up is not longer than a measurement."""
TRAINER_S = 600
"""The writer beside has events for this long."""
TOPIC = "bench"
SHARES = (0.01, 0.001, 0.0001)
"""Of all items, those that match a filter."""
PLAIN_SERVER = Path(__file__).parent / "plain_server.py"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    small = "Items of the smaller model; its trainer runs beside it."
    add("--items", type=int, default=40_000, help=small)
    many = "Items of the larger one; 0 leaves it out."
    add("--many-items", type=int, default=1_000_000, help=many)
    add("--rate", type=float, default=300.0, help="Requests a second, open loop.")
    learns = "Events a second that the trainer beside it learns."
    add("--events-per-second", type=float, default=1000.0, help=learns)
    add("--seconds", type=float, default=15.0, help="Length of each measurement.")
    add("--connections", type=int, default=16, help="Connections at a time.")
    report(measure, parser, arguments)


def measure(options: Namespace) -> dict[str, Any]:
    """Requests a second and waits at both sizes, alone and beside a trainer, and those
    of the alternative.
    """
    small = _measured(options, options.items, beside_trainer=True)
    result: dict[str, Any] = {
        "p99_ms_40k": small["beside_trainer"]["p99_ms"],
        "requests_per_second_40k": small["requests_per_second"],
    }
    if options.many_items:
        large = _measured(options, options.many_items, beside_trainer=False)
        over = large["requests_per_second"] / large["alternative_requests_per_second"]
        result["throughput_over_alternative_1m"] = round(over, 2)
        result["p99_filtered_over_plain_1m"] = max(
            one["p99_over_plain"] for one in large["filtered"].values()
        )
        result["many_items"] = large
    return result | {
        "items": small,
        "options": vars(options),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _measured(
    options: Namespace, items: int, *, beside_trainer: bool
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        vectors = directory / "vectors.npy"
        _publish(items, directory, with_checkpoint=beside_trainer)
        with _server(directory, items) as load:
            load.warm_up(options)
            found = load.throughput(options)
            found["alone"] = quantiles_ms(load.waits(options, options.seconds))
            if items == options.many_items:
                found["filtered"] = load.filtered(options, items)
            found["memory_mb"] = load.memory_mb()
            if beside_trainer:
                found["beside_trainer"] = _beside_trainer(options, directory, load)

        rng = np.random.default_rng(0)
        np.save(vectors, rng.standard_normal((items, 64), np.float32))
        port = free_port()
        with python_process(PLAIN_SERVER, vectors, port) as process:
            wait_for(f"http://127.0.0.1:{port}/healthz", process)
            load = _Load(port, process)
            load.warm_up(options)
            for figure, value in load.throughput(options).items():
                found[f"alternative_{figure}"] = value
    return found


class _Load:
    """Requests to a server, and what it takes for them."""

    def __init__(self, port: int, process: Popen[bytes]) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._paths = shuffled_paths(USERS, "/users/{}/recommendations")

    def warm_up(self, options: Namespace) -> None:
        seconds = min(WARM_UP_S, options.seconds)
        closed_loop(self._port, self._paths, seconds, options.connections)

    def one_connection(self) -> None:
        """Ask for a second, one request after the other."""
        closed_loop(self._port, self._paths, 1.0, 1)

    def throughput(self, options: Namespace) -> dict[str, Any]:
        """Requests a second, and what one takes of a core: the latter is the same on a
        machine that has more to do.
        """
        before = cpu_s(self.process.pid)
        seconds = options.seconds
        rate = closed_loop(self._port, self._paths, seconds, options.connections)
        taken_s = cpu_s(self.process.pid) - before
        each_s = taken_s / max(rate * seconds, 1)
        return {
            "requests_per_second": round(rate, 1),
            "cpu_ms_per_request": round(1000 * each_s, 3),
        }

    def waits(self, options: Namespace, seconds: float) -> list[float]:
        """How long requests wait that are due at a steady rate."""
        return open_loop(
            self._port, self._paths, options.rate, seconds, options.connections
        )

    def filtered(self, options: Namespace, items: int) -> dict[str, Any]:
        """Waits with a filter that few items match, in turn with those without one, and
        how often longer the 99th percentile is.
        """
        found = {}
        plain = self._paths
        for share in SHARES:
            path = f"/users/{{}}/recommendations?filter=place%3C{round(share * items)}"
            waits: dict[str, list[float]] = {"with": [], "without": []}
            for _ in range(4):
                self._paths = plain
                waits["without"] += self.waits(options, options.seconds / 4)
                self._paths = shuffled_paths(USERS, path)
                waits["with"] += self.waits(options, options.seconds / 4)
            figures = {name: quantiles_ms(some) for name, some in waits.items()}
            over = figures["with"]["p99_ms"] / figures["without"]["p99_ms"]
            found[str(share)] = figures | {"p99_over_plain": round(over, 2)}
        self._paths = plain
        return found

    def memory_mb(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024


@contextmanager
def _server(directory: Path, items: int) -> Iterator[_Load]:
    """`streamer serve` of what was published, ready, and with an index if it makes
    one.
    """
    port = free_port()
    options = ["--data-dir", directory, "--topic", TOPIC, "--port", port]
    published = directory / "published"
    with streamer_process("serve", "--from", published, *options) as process:
        load = _Load(port, process)
        wait_for(f"{load.url}/readyz", process)
        has_index = items > ServeSettings.exact_items
        while (
            has_index and not wait_for(f"{load.url}/status", process)["indexed_items"]
        ):
            load.one_connection()
        yield load


def _beside_trainer(options: Namespace, directory: Path, load: _Load) -> dict[str, Any]:
    """Waits while the trainer goes on from the checkpoint, and the server follows
    it.
    """
    rate = options.events_per_second
    common = ["--data-dir", directory, "--topic", TOPIC]
    replay = ["--events", int(rate * TRAINER_S), "--rate", rate]
    run = ["--publish-dir", directory / "published", "--threads", 1]
    with (
        streamer_process("replay", "synthetic", *common, *replay) as writer,
        streamer_process("run", *common, *run, "--log-format", "plain") as trainer,
    ):
        while wait_for(f"{load.url}/status", writer, trainer)["generation"] == 1:
            time.sleep(0.1)
        load.waits(options, min(WARM_UP_S, options.seconds))
        own = [os.getpid(), load.process.pid, writer.pid, trainer.pid]
        with others_cores(own) as others:
            waits = load.waits(options, options.seconds)
    return quantiles_ms(waits) | {"others_cores": round(others[0], 2)}


def _publish(items: int, directory: Path, *, with_checkpoint: bool) -> None:
    """Publish what a learner of that many items knows, as a trainer does."""
    learner = learned(items)
    place = DirectoryPlace(directory / "published")
    publisher = Publisher(learner.state, place, 1.0)
    while publisher.due() >= Due.DELTA:  # a base, slice by slice
        publisher.step(dict)
        publisher.flush()
    publisher.close(None)
    if with_checkpoint:
        learner.save(directory / "checkpoints")


def learned(items: int) -> OnlineLearner:
    """A learner of that many items: few were learned, the others resemble one of the
    less popular of these each.
    """
    learner = OnlineLearner(device="cpu", item_attributes=("place",))
    rng = np.random.default_rng(0)
    chosen = long_tailed(rng, LEARNED_ITEMS, LEARNED_EVENTS, 1.0).tolist()
    users = rng.integers(0, USERS, LEARNED_EVENTS).tolist()
    events = []
    for user, item in zip(users, chosen, strict=True):
        events.append((str(user), f"i{item}", 1.7e9 + len(events)))
    streamer.Learner(learner).learn(events, batch_size=2048)

    known = len(learner.state.items)
    for start in range(known, items, 1 << 15):
        rows = np.arange(start, min(start + (1 << 15), items))
        like = rng.integers(known // 2, known, len(rows))
        learner.state.put("items", rows, _similar_items(learner, rows, like, rng))
        learner.state.put("pairs", rows, learner.state.take("pairs", like))
    every = np.arange(items)
    none = np.zeros(items, np.int64)
    learner.state.attributes.set("place", every, none, rng.permutation(items) * 1.0)
    return learner


def _similar_items(
    learner: OnlineLearner, rows: Any, like: Any, rng: np.random.Generator
) -> dict[str, Any]:
    """Rows under new ids, whose vectors resemble those of other rows."""
    arrays = learner.state.take("items", like)
    utf8, offsets = packed([f"like {row}" for row in rows.tolist()])
    arrays["ids.utf8"] = utf8
    arrays["ids.length"] = np.diff(offsets).astype(np.int32)
    noise = rng.standard_normal(arrays[LINES].shape, np.float32)
    arrays[LINES] = arrays[LINES] + 0.3 * noise
    return arrays


if __name__ == "__main__":
    main()
