"""What sharing costs a training step, and whether the log stays bounded however slow a reader is."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

from streamer.bench.store_trainer import Job, Measured, seed_of, serve
from streamer.cache_store.errors import StoreError
from streamer.cache_store.redis.admin import StoreAdmin
from streamer.cache_store.redis.connection import connect
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.server import HARD_LOG_LENGTH, SOFT_LOG_LENGTH
from streamer.errors import SharingError, StreamerError

ANSWER_S = 300.0
SERVERS = ("redis-server", "valkey-server")
HURRY_S = 0.005
"""Seconds between exchanges while a reader is stopped: as many entries as possible."""
HURRY_MOST_S = 30.0


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What `streamer bench store` was asked.

    Args:
        redis_url: a Redis that is there; without it one is started.
        trainers: numbers of trainers.
        items: numbers of items.
        batch_size: events of a micro-batch.
        cache_size: items in the cache.
        dim: size of the embeddings.
        rounds: with Redis and alone, by turns.
        seconds: that a round takes; several exchanges, as the one that ends it counts too.
        entries: of the log that are written while a reader is stopped.
    """

    redis_url: str | None = None
    trainers: tuple[int, ...] = (1, 2, 4)
    items: tuple[int, ...] = (40_988, 1_000_000)
    batch_size: int = 2048
    cache_size: int = 2048
    dim: int = 32
    rounds: int = 3
    seconds: float = 6.0
    entries: int = 1500


class StoreBench:
    """Trainers in processes of their own, each training real steps, with what they share in Redis and alone.

    `share_of_step` is what the store takes of a trainer for each step, over what a step takes. Both are times on a
    core, which hardly depend on what else the machine does. Above the line: the training thread inside receive, parts
    and contribute, and all of the exchange thread. Below it: all threads in a step alone, the median, divided by how
    many threads train; that is at most what the clock on the wall shows. Trainers that share the cores of one machine
    take longer for a step: exchanges are put so much further apart that as many steps lie between two of them as on
    machines of their own.

    `step_over_alone` is the direct comparison: the median step with Redis over the median step alone, by turns in the
    same processes under the same load; the server runs beside them.
    """

    def __init__(self, options: StoreOptions) -> None:
        self.options = options

    def run(self) -> dict[str, Any]:
        """Measure; see `table` for what is in the answer."""
        rows: list[dict[str, Any]] = []
        with ExitStack() as stack:
            url = self.options.redis_url or stack.enter_context(local_server())
            trainers = [stack.enter_context(_started()) for _ in range(max(self.options.trainers))]
            for items in self.options.items:
                with _model(url, items) as model:
                    rows += self._rows(url, model, items, trainers)
                    if items == self.options.items[0]:
                        slow = self._slow_reader(url, model, trainers)
                        exact = _is_exact(url, model, items, trainers)
                    _all(trainers, _asked("leave"))
        return {
            "rows": rows,
            "max_share_of_step": max(row["share_of_step"] for row in rows),
            **slow,
            "exact": exact,
            "options": asdict(self.options) | {"redis_url": None, "cores": _cores()},
        }

    # a model with so many items ---------------------------------------------------------------------------------------

    def _rows(self, url: str, model: str, items: int, trainers: Sequence[_Trainer]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        joined = 0
        for count in sorted(self.options.trainers):
            new = trainers[joined:count]
            joined = count
            seconds = _all(new, lambda t: ("join", self._job(url, model, items, trainers.index(t))))
            row = self._measured(url, trainers[:count])
            share = (row["calls_cpu_ms"] + row["exchange_cpu_ms"]) / row["step_cpu_ms"]
            rows.append({"trainers": count, "items": items, "share_of_step": share, **row, "join_s": max(seconds)})
        return [{name: round(value, 4) for name, value in row.items()} for row in rows]

    def _job(self, url: str, model: str, items: int, index: int) -> Job:
        o = self.options
        return Job(url, model, items, index, o.batch_size, o.cache_size, o.dim)

    def _measured(self, url: str, trainers: Sequence[_Trainer]) -> dict[str, float]:
        """Rounds with Redis and alone by turns, after one of each that is not counted."""
        _all(trainers, _asked("threads", max(1, _cores() // len(trainers))))
        redis: list[Measured] = []
        alone: list[Measured] = []
        server_s = 0.0
        for k in range(self.options.rounds + 1):
            without = _all(trainers, _asked("train", "alone", self.options.seconds))
            before_s = _server_cpu_s(url)
            shared = _all(trainers, _asked("train", "redis", self.options.seconds, _stretch(without)))
            if k:
                redis, alone = redis + shared, alone + without
                server_s += _server_cpu_s(url) - before_s
        return _figures(redis, alone, server_s)

    # the log ----------------------------------------------------------------------------------------------------------

    def _slow_reader(self, url: str, model: str, trainers: Sequence[_Trainer]) -> dict[str, Any]:
        """One trainer is stopped in the middle of what it does, and the others go on as fast as they can.

        1. all hurry;
        2. one is stopped; entries are written;
        3. it goes on; everything is sent.
        """
        joined = trainers[: max(self.options.trainers)]
        with closing(StoreAdmin(url, Keys(model))) as admin:
            # 1.
            for trainer in joined:
                trainer.tell("hurry", HURRY_S)
            first = _number(admin)
            # 2.
            with _stopped(joined[-1].pid) if len(joined) > 1 else nullcontext():
                longest, number = self._watched(admin, first)
            # 3.
            for trainer in joined:
                trainer.tell("enough")
            for trainer in joined:
                trainer.answer()  # of hurry
                trainer.answer()  # of what ended it
        return {
            "log_length_max": longest,
            "log_length_soft": SOFT_LOG_LENGTH,
            "log_length_bound": HARD_LOG_LENGTH,
            "log_entries_while_stopped": number - first,
        }

    def _watched(self, admin: StoreAdmin, first: int) -> tuple[int, int]:
        """The longest that the log becomes until so many entries were written, and the number of the last."""
        longest, number, deadline = 0, first, time.monotonic() + HURRY_MOST_S
        while number - first < self.options.entries and time.monotonic() < deadline:
            summary = admin.summary()
            if summary is not None:
                longest, number = max(longest, summary.log_length), summary.number
            time.sleep(0.002)
        return longest, number


def _stretch(measured: list[Measured]) -> float:
    """How many times longer than on a machine of its own a step takes."""
    step_s = statistics.median(s for m in measured for s in m.step_s)
    return max(1.0, step_s / statistics.median(s for m in measured for s in m.step_cpu_s))


def _figures(redis: list[Measured], alone: list[Measured], server_s: float) -> dict[str, float]:
    """Milliseconds and bytes a step."""
    steps = sum(len(m.step_s) for m in redis)
    step_ms, alone_step_ms = (1e3 * statistics.median(s for m in part for s in m.step_s) for part in (redis, alone))
    return {
        "step_ms": step_ms,
        "alone_step_ms": alone_step_ms,
        "step_over_alone": step_ms / alone_step_ms,
        "step_cpu_ms": 1e3 * statistics.median(s for m in alone for s in m.step_cpu_s),
        "calls_ms": 1e3 * sum(m.calls_s for m in redis) / steps,
        "calls_cpu_ms": 1e3 * sum(m.calls_cpu_s for m in redis) / steps,
        "exchange_cpu_ms": 1e3 * sum(m.exchange_cpu_s for m in redis) / steps,
        "server_cpu_ms": 1e3 * server_s / steps,
        "sent_bytes": sum(m.sent_bytes for m in redis) / steps,
        "received_bytes": sum(m.received_bytes for m in redis) / steps,
        "steps": steps,
    }


def _is_exact(url: str, model: str, items: int, trainers: Sequence[_Trainer]) -> bool:
    """Whether the store has counted every event that was contributed, once: also those of a stopped trainer."""
    contributed = sum(_all(trainers, _asked("contributed")))
    with closing(StoreAdmin(url, Keys(model))) as admin:
        _, contents = admin.contents()
    return bool(contents.events == int(contents.counts.sum()) == items + contributed)


def _number(admin: StoreAdmin) -> int:
    summary = admin.summary()
    return summary.number if summary is not None else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# processes ------------------------------------------------------------------------------------------------------------


class _Trainer:
    """A process that does what it is asked."""

    def __init__(self, process: Any, connection: Any) -> None:
        self._process, self._connection = process, connection
        self.pid: int = process.pid

    def tell(self, *words: Any) -> None:
        self._connection.send(words)

    def answer(self) -> Any:
        """What it says.

        Raises:
            StreamerError: it fails, or says nothing for minutes.
        """
        try:
            if not self._connection.poll(ANSWER_S):
                raise StreamerError(f"a trainer of the benchmark has not answered for {ANSWER_S:.0f} s")
            well, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise StreamerError("a trainer of the benchmark has died: is there enough memory?") from error
        if not well:
            raise StreamerError(f"a trainer of the benchmark has failed: {answer}")
        return answer

    def ask(self, *words: Any) -> Any:
        self.tell(*words)
        return self.answer()


def _all(trainers: Sequence[_Trainer], words: Callable[[_Trainer], tuple[Any, ...]]) -> list[Any]:
    """Ask all of them at once."""
    for trainer in trainers:
        trainer.tell(*words(trainer))
    return [trainer.answer() for trainer in trainers]


def _asked(*words: Any) -> Callable[[_Trainer], tuple[Any, ...]]:
    """The same of each."""
    return lambda _: words


@contextmanager
def _started() -> Iterator[_Trainer]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield _Trainer(process, ours)
    finally:
        ours.close()
        process.kill()
        process.join()


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# the server -----------------------------------------------------------------------------------------------------------


@contextmanager
def local_server() -> Iterator[str]:
    """The URL of a Redis that lives as long as this.

    Raises:
        StreamerError: there is none on this machine.
    """
    program = next((path for name in SERVERS if (path := shutil.which(name))), None)
    if program is None:
        raise StreamerError(f"there is no {' or '.join(SERVERS)} on the PATH: install one, or give --redis-url")
    with tempfile.TemporaryDirectory() as home:
        port = _free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", home, "--save", "", "--appendonly", "no"]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_for(url)
            yield url
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(url: str) -> None:
    with closing(connect(url, 5.0)) as client:
        for _ in range(300):
            with suppress(Exception):
                client.ping()
                return
            time.sleep(0.1)
    raise StreamerError("the Redis that was started for the benchmark does not answer")


def _server_cpu_s(url: str) -> float:
    with closing(connect(url, 30.0)) as client:
        used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


@contextmanager
def _model(url: str, items: int) -> Iterator[str]:
    """A model with so many items, removed afterwards.

    Raises:
        SharingError: Redis cannot be used.
    """
    name = f"bench-{secrets.token_hex(4)}"
    try:
        with closing(RedisServer(url, Keys(name), timeout_s=30.0)) as server:
            server.seed(seed_of(items, secrets.token_hex(8)))
        yield name
        with closing(StoreAdmin(url, Keys(name), timeout_s=30.0)) as admin:
            admin.reset()
    except StoreError as error:
        raise SharingError(str(error)) from error


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    o = result["options"]
    lines = [
        f"sharing through Redis: B = {o['batch_size']}, C = {o['cache_size']}, d = {o['dim']}, xir, {o['cores']} cores",
        "",
        f"{'':>9} {'':>10} {'share':>8} {'a step, ms':^22} {'ms on a core, for each step':^37} {'bytes':^19}",
        f"{'trainers':>9} {'items':>10} {'of step':>8} {'Redis':>7} {'alone':>7} {'ratio':>6} {'step':>8} "
        f"{'in calls':>9} {'exchange':>9} {'server':>8} {'sent':>9} {'received':>9}",
    ]
    lines += [_line(row) for row in result["rows"]]
    lines += [
        "",
        f"one reader stopped for {result['log_entries_while_stopped']:,} entries: the log grew to "
        f"{result['log_length_max']:,}, it is trimmed from {result['log_length_soft']:,}, never beyond "
        f"{result['log_length_bound']:,}",
        f"every event counted once: {'yes' if result['exact'] else 'NO'}",
    ]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['trainers']:>9} {row['items']:>10,} {row['share_of_step']:8.2%} {row['step_ms']:7.1f} "
        f"{row['alone_step_ms']:7.1f} {row['step_over_alone']:6.3f} {row['step_cpu_ms']:8.2f} "
        f"{row['calls_cpu_ms']:9.3f} {row['exchange_cpu_ms']:9.3f} {row['server_cpu_ms']:8.3f} "
        f"{row['sent_bytes']:9,.0f} {row['received_bytes']:9,.0f}"
    )
