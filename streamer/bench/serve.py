"""`streamer bench serve`: how many requests a server answers, and how long one waits."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np

from streamer.bench.base import long_tailed
from streamer.bench.catalogue import ServeBench
from streamer.bench.load import closed_loop, open_loop, quantiles_ms, shuffled
from streamer.bench.processes import cpu_s, free_port, others_cores, process, wait_for
from streamer.learner import Learner
from streamer.publish.directory import DirectoryWriter
from streamer.publish.publisher import LINES, Publisher
from streamer.settings import ServeSettings
from streamer.snapshot import pack_strings

LEARNED_ITEMS = 2000
LEARNED_EVENTS = 30_000
USERS = 2000
TOPIC = "bench"
EXACT_ITEMS = ServeSettings.exact_items


def measure(bench: ServeBench) -> dict[str, Any]:
    """Requests a second and waits at both sizes, alone and beside a trainer, and those
    of the alternative.
    """
    small = _measured(bench, bench.items, beside_trainer=True)
    result: dict[str, Any] = {
        "p99_ms_40k": small["beside_trainer"]["p99_ms"],
        "requests_per_second_40k": small["requests_per_second"],
    }
    if bench.many_items:
        large = _measured(bench, bench.many_items, beside_trainer=False)
        over = large["requests_per_second"] / large["alternative_requests_per_second"]
        result |= {
            "throughput_over_alternative_1m": round(over, 2),
            "many_items": large,
        }
    options = {name: getattr(bench, name) for name in ServeBench.all()}
    return result | {
        "items": small,
        "options": options,
        "load_before": round(os.getloadavg()[0], 2),
    }


def _measured(bench: ServeBench, items: int, *, beside_trainer: bool) -> dict[str, Any]:
    paths = shuffled(USERS, lambda user: f"/users/{user}/recommendations")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        learner = learned(items)
        publisher = Publisher(learner, DirectoryWriter(directory / "points"), 1.0, 1e9)
        publisher.start()
        while publisher.status.points == 0:
            publisher.step(dict, idle=True)
            publisher.flush()
        publisher.close(None)
        np.save(directory / "vectors.npy", learner.retriever.items().vectors.numpy())
        if beside_trainer:
            learner.save(directory / "checkpoints")
        del learner, publisher
        port = free_port()
        serve = (
            "serve",
            "--from",
            directory / "points",
            "--data-dir",
            directory,
            "--port",
            port,
            "--topic",
            TOPIC,
        )
        server = stack.enter_context(process(*serve))
        wait_for(f"http://127.0.0.1:{port}/readyz", server)
        while (
            items > EXACT_ITEMS
            and not wait_for(f"http://127.0.0.1:{port}/status", server)["indexed_items"]
        ):
            closed_loop(port, paths, 1.0, 1)
        closed_loop(port, paths, 2.0, bench.connections)
        found = _throughput(bench, port, paths, server.pid) | {
            "alone": quantiles_ms(
                open_loop(port, paths, bench.rate, bench.seconds, bench.connections)
            ),
            "memory_mb": _memory_mb(server.pid),
        }
        if beside_trainer:
            found["beside_trainer"] = _beside_trainer(
                bench, directory, port, paths, server
            )
    with tempfile.TemporaryDirectory() as name:
        np.save(
            Path(name) / "vectors.npy",
            np.random.default_rng(0).standard_normal((items, 64), np.float32),
        )
        port = free_port()
        with process(
            Path(name) / "vectors.npy", port, module="streamer.bench.plain_server"
        ) as alternative:
            wait_for(f"http://127.0.0.1:{port}/healthz", alternative)
            closed_loop(port, paths, 2.0, bench.connections)
            theirs = _throughput(bench, port, paths, alternative.pid)
    return found | {f"alternative_{name}": figure for name, figure in theirs.items()}


def _throughput(
    bench: ServeBench, port: int, paths: list[str], pid: int
) -> dict[str, Any]:
    """Requests a second, and what one takes of a core: the latter is the same on a
    machine that has more to do.
    """
    before = cpu_s(pid)
    rate = closed_loop(port, paths, bench.seconds, bench.connections)
    each_s = (cpu_s(pid) - before) / max(rate * bench.seconds, 1)
    return {
        "requests_per_second": round(rate, 1),
        "cpu_ms_per_request": round(1000 * each_s, 3),
    }


def _beside_trainer(
    bench: ServeBench,
    directory: Path,
    port: int,
    paths: list[str],
    server: Popen[bytes],
) -> dict[str, Any]:
    """The same while the trainer goes on from the checkpoint, and the server follows
    it.
    """
    count = int(bench.events_per_second * 600)
    replay = (
        "--events",
        count,
        "--rate",
        bench.events_per_second,
        "--data-dir",
        directory,
        "--topic",
        TOPIC,
    )
    run = (
        "--data-dir",
        directory,
        "--topic",
        TOPIC,
        "--publish-dir",
        directory / "points",
        "--threads",
        1,
    )
    with (
        process("replay", "synthetic", *replay) as writer,
        process("run", *run, "--log-format", "plain") as trainer,
    ):
        while (
            wait_for(f"http://127.0.0.1:{port}/status", writer, trainer)["generation"]
            == 1
        ):
            pass
        open_loop(port, paths, bench.rate, 2.0, bench.connections)
        own = [os.getpid(), server.pid, writer.pid, trainer.pid]
        with others_cores(own) as others:
            waits = open_loop(port, paths, bench.rate, bench.seconds, bench.connections)
        return quantiles_ms(waits) | {"others_cores": round(others[0], 2)}


def learned(items: int) -> Learner:
    """A learner of that many items: few were learned, the others resemble one of the
    less popular of these each.
    """
    learner = Learner(device="cpu")
    rng = np.random.default_rng(0)
    chosen = long_tailed(rng, LEARNED_ITEMS, LEARNED_EVENTS, 1.0)
    who = rng.integers(0, USERS, LEARNED_EVENTS)
    learner.learn(
        (
            (str(u), f"i{i}", 1.7e9 + n)
            for n, (u, i) in enumerate(zip(who, chosen, strict=True))
        ),
        2048,
    )
    known = len(learner.items)
    for start in range(known, items, 1 << 15):
        rows = np.arange(start, min(start + (1 << 15), items))
        like = rng.integers(known // 2, known, len(rows))
        for kind in ("items", "pairs"):
            arrays = learner.take(kind, like)
            if kind == "items":
                ids = pack_strings([f"like {row}" for row in rows.tolist()], "ids")
                arrays |= {
                    "ids.utf8": ids["ids.utf8"],
                    "ids.length": np.diff(ids["ids.offsets"]).astype(np.int32),
                }
                arrays[LINES] = arrays[LINES] + 0.3 * rng.standard_normal(
                    arrays[LINES].shape, np.float32
                )
            learner.put(kind, rows, arrays)
    return learner


def _memory_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024
