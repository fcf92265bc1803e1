"""What a fault happens to: a stream whose events are all different, trainers, a Redis; and what became of each event.

Every event has an item of its own, so that what was lost or trained twice is seen exactly: in the item counts of a
trainer's last checkpoint (`streamer inspect`), or, where trainers share counts, in the users that each has learned
(`streamer export`), as every event has a user of its own, too.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from commands import PATIENCE_S, Command, signal_at, until
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from servers.kafka import KafkaServer
from servers.process import free_ports
from servers.redis import LocalRedis

SESSION_S = 4.0
SMALL = [
    *("--dim", "8", "--batch-size", "64", "--cache-size", "64", "--threads", "1", "--json", "--log-format", "plain"),
    *("--set", "evaluation_share=0", "--set", "max_queued_events=256", "--set", "hash_slots=64"),
    *("--kafka", "retry_backoff_ms=20", "--kafka", "heartbeat_interval_ms=300"),
    *("--kafka", f"session_timeout_ms={SESSION_S * 1000:.0f}", "--kafka", "metadata_max_age_ms=1000"),
]
STEADY = ["--max-age", "0", "--checkpoint-every-events", "320"]
"""Batches and checkpoints depend on the stream alone."""
BRISK = ["--max-age", "0.1", "--checkpoint-every", "0.3"]
"""Small batches are trained and saved soon."""
MANY = "100000000"
POINTS: dict[str, tuple[str, str]] = {
    "after poll": ("after", "kafka:KafkaConsumer:poll"),
    "after decode": ("after", "streamer.event:EventDecoder:decode"),
    "in the step": ("during", "streamer.model.trainer:Trainer:step"),
    "after the step": ("after", "streamer.model.trainer:Trainer:step"),
    "after an exchange": ("after", "redis.client:Pipeline:execute"),
    "writing a checkpoint": ("before", "os:fsync"),
    "before the rename": ("before", "pathlib:Path:rename"),
    "after the rename": ("after", "pathlib:Path:rename"),
    "before the commit": ("before", "kafka:KafkaConsumer:commit_async"),
    "after the commit": ("after", "kafka:KafkaConsumer:commit_async"),
}
"""Points of a micro-batch's way: before, during or after a call. Those of libraries stay when the product changes."""


CLOCK = """
import os, sys
code = '''
import os, time
def jumping(path, seconds, nanoseconds):
    offset = lambda: os.stat(path).st_mtime_ns - 10**18
    time.time = lambda: seconds() + offset() / 1e9
    time.time_ns = lambda: nanoseconds() + offset()
jumping({path!r}, time.time, time.time_ns)
from streamer.cli.main import main
main()
'''
os.execv(sys.executable, [sys.executable, "-W", "ignore", "-c", code, *sys.argv[1:]])
"""
"""The prelude of a command with a wall clock that is wrong by as much as the time of a file is off 10^9 s: it begins
again as a new interpreter, in which nothing has taken the true one yet."""


class JumpingClock:
    """The wall clock of a trainer, which somebody sets while it runs."""

    def __init__(self, world: World) -> None:
        self._path = world.directory / "clock"
        self._path.touch()
        self.jump(0)
        self.prelude = CLOCK.format(path=str(self._path))

    def jump(self, seconds: float) -> None:
        """Be wrong by so much from now on."""
        os.utime(self._path, (0, 1e9 + seconds))


def _strikes(fault: str | None) -> str:
    """The prelude of a command that has this fault."""
    if fault is None:
        return ""
    point, nth, name = fault.split(":")
    when, target = POINTS[point]
    return signal_at(target, int(nth), name, when)


class Stream:
    """A topic of events that are all different; one in a hundred records is no event."""

    def __init__(self, kafka: KafkaServer, partitions: int, users: int | None, name: str | None = None) -> None:
        self.kafka, self.users, self.partitions = kafka, users, partitions
        self.name = kafka.create_topic(name, partitions)
        if name is None:
            kafka.create_topic(f"{self.name}.dead-letters")
        self.events: dict[str, tuple[int, int]] = {}
        """Item of each event -> its partition and offset."""
        self.bad = 0
        self._next = 0
        self._lock = threading.Lock()
        self._producer = self.new_producer()

    def continue_after(self, old: Stream) -> None:
        """Begin with the number after the last of a topic that is gone, and account for its events, too."""
        self._next, self.events, self.bad = old._next, dict(old.events), old.bad

    def grow(self, partitions: int) -> None:
        """Add partitions, and write to them, too."""
        with self.kafka.admin() as admin:
            admin.create_partitions({self.name: partitions})
        self._producer = self.new_producer()
        until(lambda: len(self._producer.partitions_for(self.name)) == partitions, "the partitions are there")
        self.partitions = partitions

    def new_producer(self, **more: Any) -> KafkaProducer:
        return KafkaProducer(
            bootstrap_servers=self.kafka.bootstrap,
            retry_backoff_ms=50,
            reconnect_backoff_max_ms=500,
            delivery_timeout_ms=int(2 * PATIENCE_S * 1000),
            enable_idempotence=True,
            linger_ms=5,
            **more,
        )

    def value(self, number: int) -> bytes:
        if number % 100 == 99:
            return b"no event %d" % number
        user = f"u{number}" if self.users is None else f"u{number * 7 % self.users}"
        event = {"user_id": user, "item_id": f"e{number}", "timestamp": 1_700_000_000 + number}
        return json.dumps(event).encode()

    def produce(self, count: int, producer: KafkaProducer | None = None, counts: bool = True) -> None:
        """Append records, in turn on each partition; those that do not count are never to be trained."""
        with self._lock:
            sent = []
            for number in range(self._next, self._next + count):
                promise = (producer or self._producer).send(
                    self.name, self.value(number), partition=number % self.partitions
                )
                sent.append((number, promise))
            self._next += count
            for number, promise in sent if counts else []:
                at = promise.get(timeout=2 * PATIENCE_S)
                if number % 100 == 99:
                    self.bad += 1
                else:
                    self.events[f"e{number}"] = (at.partition, at.offset)

    @contextmanager
    def flowing(self, count: int = 20, every_s: float = 0.05) -> Iterator[None]:
        """Append records again and again, all the while; ever more slowly, for a machine that cannot follow."""
        stop = threading.Event()
        problems: list[Exception] = []

        def write() -> None:
            try:
                while not stop.wait(every_s * (1 + len(self.events) / 2_000)):
                    self.produce(count)
            except Exception as error:
                problems.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert not problems, f"the stream could not be written: {problems}"

    def ends(self) -> dict[int, int]:
        places = [TopicPartition(self.name, number) for number in range(self.partitions)]
        consumer = KafkaConsumer(bootstrap_servers=self.kafka.bootstrap)
        try:
            return {tp.partition: offset for tp, offset in consumer.end_offsets(places).items()}
        finally:
            consumer.close()

    def committed(self, group: str) -> dict[int, int]:
        try:
            with self.kafka.admin() as admin:
                found = admin.list_group_offsets(group)[group]
        except KafkaError:
            return {}
        return {tp.partition: at.offset for tp, at in found.items() if tp.topic == self.name and at.offset >= 0}

    def dead_letters(self) -> set[bytes]:
        """What is in the topic of dead letters; those of a killed trainer may be there twice."""
        place = TopicPartition(f"{self.name}.dead-letters", 0)
        consumer = KafkaConsumer(bootstrap_servers=self.kafka.bootstrap)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        found: set[bytes] = set()
        while consumer.position(place) < end:
            for record in consumer.poll(500).get(place, []):
                found.add(record.value)
        consumer.close()
        return found


@dataclass
class Outcome:
    """A row of the table."""

    fault: str = ""
    produced: int = 0
    trained: int = 0
    dead_lettered: int = 0
    lost: int = 0
    trained_twice: int = 0
    may_lose: int = 0
    may_double: int = 0
    shared_expected: int | None = None
    shared_found: int | None = None
    shared_wrong: int | None = None
    seconds: float | None = None
    equal: bool | None = None
    problems: list[str] = field(default_factory=list)
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"as_promised": not self.problems}


class Trainer:
    """A trainer with a checkpoint directory of its own, which may be started several times."""

    def __init__(self, world: World, name: str, options: Sequence[Any]) -> None:
        self.world, self.name, self.options = world, name, list(options)
        self.directory = world.directory / name
        self.runs: list[Command] = []
        self.prelude = ""
        (self._port,) = free_ports(1)

    def start(self, *more: Any, fault: str | None = None, prelude: str = "") -> Command:
        """Start it; `fault` is a point, how often it is passed, and the signal that it sends itself there."""
        world = self.world
        number = len(self.runs)
        arguments = ["run", "--bootstrap-servers", world.bootstrap, "--topic", world.stream.name]
        arguments += ["--group-id", world.group, "--checkpoint-dir", self.directory, "--metrics-port", self._port]
        output = world.directory / f"{self.name}-{number}"
        self.runs.append(
            Command([*arguments, *SMALL, *self.options, *more], output, prelude or _strikes(fault) or self.prelude)
        )
        return self.runs[-1]

    @property
    def run(self) -> Command:
        return self.runs[-1]

    def metric(self, name: str) -> float:
        """A figure of `/metrics`, summed over its labels; 0 while it cannot be read."""
        with suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as response:
                lines = response.read().decode().splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name)
        return 0.0

    @property
    def trained(self) -> float:
        """Events that this process has trained."""
        return self.metric("streamer_events_trained_total")

    def ready(self) -> tuple[bool, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=5) as response:
                return True, response.read().decode()
        except OSError as error:
            return False, error.read().decode() if hasattr(error, "read") else str(error)

    def trains(self, events: int = 64) -> None:
        """Wait until it has trained so many more events."""
        before = self.trained if self.run.code is None else 0
        self.world.until(lambda: self.alive() and self.trained >= before + events, f"{self.name} trains")

    def alive(self) -> bool:
        assert self.run.code is None, f"{self.name} ended with {self.run.code}"
        return True

    def leave(self) -> None:
        """SIGTERM; it must end well, or at once if it has hardly begun."""
        self.run.signal(signal.SIGTERM)
        code, _ = self.run.ended()
        if code not in (0, -signal.SIGTERM):
            self.world.outcome.problems.append(f"{self.name} ended with {code} after SIGTERM")

    def restart(self, *more: Any, fault: str | None = None) -> None:
        """Start it again, and measure how long it takes until it trains."""
        self.start(*more, fault=fault)
        self.world.goes_on([self], fresh=True)

    def drain(self) -> None:
        """Train the rest of the stream, and end."""
        code, _ = self.start("--until-end").ended()
        assert code == 0, f"{self.name} ended with {code}"

    def inspect(self) -> dict[str, Any]:
        if not list(self.directory.glob("ckpt-*")):
            return {"accounting": Counter(), "popularity": {"top": []}, "positions": []}
        found: dict[str, Any] = self.world.json("inspect", "--checkpoint-dir", self.directory, "--top", MANY)
        return found

    def export(self) -> dict[str, Any]:
        """Everything that `streamer export` writes, by name."""
        out = self.world.directory / f"{self.name}-export.npz"
        self.world.command("export", "--checkpoint-dir", self.directory, "--out", out)
        with np.load(out) as arrays:
            return {name: arrays[name] for name in arrays.files if name != "about"}


class World:
    """One scenario's stream, trainers and servers, and what is found at its end."""

    def __init__(self, kafka: KafkaServer, directory: Path) -> None:
        self.kafka, self.directory = kafka, directory
        self.bootstrap = kafka.bootstrap
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.model = f"model-{uuid.uuid4().hex[:8]}"
        self.trainers: list[Trainer] = []
        self.others: list[Command] = []
        self.redis: LocalRedis | None = None
        self.redis_url = ""
        self.keeps_all_items = True
        self.outcome = Outcome()
        self.stream: Stream

    # set up -----------------------------------------------------------------------------------------------------------

    def open_stream(self, partitions: int = 1, events: int = 0, users: int | None = 50) -> Stream:
        self.stream = Stream(self.kafka, partitions, users)
        self.stream.produce(events)
        return self.stream

    def open_redis(self, *options: str) -> LocalRedis:
        self.redis = LocalRedis(*options)
        self.redis.start()
        self.redis_url = self.redis.url
        return self.redis

    def trainer(self, name: str, *options: Any) -> Trainer:
        if self.redis_url:
            options += ("--redis-url", self.redis_url, "--model", self.model, "--set", "share_every=0.1")
        self.trainers.append(Trainer(self, name, options))
        return self.trainers[-1]

    def close(self) -> None:
        for command in [*(run for trainer in self.trainers for run in trainer.runs), *self.others]:
            command.kill()
        if self.redis:
            self.redis.delete()

    # watch ------------------------------------------------------------------------------------------------------------

    def until(self, done: Callable[[], Any], what: str) -> None:
        until(done, what)

    def goes_on(self, trainers: Sequence[Trainer], fresh: bool = False) -> None:
        """The fault is over, now: measure the seconds until events are trained again, of several faults the longest."""
        began = time.monotonic()
        before = 0.0 if fresh else sum(trainer.trained for trainer in trainers)
        self.until(lambda: sum(t.trained for t in trainers if t.alive()) > before, "training goes on")
        self.outcome.seconds = max(self.outcome.seconds or 0.0, time.monotonic() - began)

    def all_is_committed(self) -> None:
        """Wait until the group has trained and saved everything."""
        ends = self.stream.ends()
        self.until(lambda: self.stream.committed(self.group) == ends, f"all is committed: {ends}")

    def json(self, *arguments: Any) -> Any:
        return json.loads(self.command(*arguments, "--json"))

    def command(self, *arguments: Any) -> str:
        """What a command prints that must end well."""
        command = Command(arguments, self.directory / f"command-{len(self.others)}")
        self.others.append(command)
        code, printed = command.ended()
        assert code == 0, f"`{command}` ended with {code}: {command.said()}"
        return printed

    # account ----------------------------------------------------------------------------------------------------------

    def account(self) -> None:
        """Compare what the checkpoints of all trainers hold with what was produced."""
        found, out = self.outcome, self.outcome
        events = self.stream.events
        reports = [trainer.inspect() for trainer in self.trainers]
        accounts = [report["accounting"] for report in reports]
        found.produced = len(events) + self.stream.bad
        found.trained = sum(account["trained"] for account in accounts)
        found.dead_lettered = sum(account["dead_lettered"] for account in accounts)
        filtered = sum(account["filtered"] for account in accounts)  # counted for others, which have trained them
        if self.redis_url:  # counts are everybody's, users each trainer's own
            users = Counter(user for t in self.trainers if any(t.directory.glob("ckpt-*")) for user in self._users(t))
            counts = Counter({f"e{user.removeprefix('u')}": n for user, n in users.items()})
            twice_inside = found.trained - users.total()
        else:
            counts = Counter()
            for report in reports:
                counts.update({entry["item"]: round(entry["events"]) for entry in report["popularity"]["top"]})
            twice_inside = 0
        out.lost = len(events.keys() - counts.keys())
        out.trained_twice = sum(n - 1 for n in counts.values()) + twice_inside
        unknown = counts.keys() - events.keys()
        checks = [
            (not unknown, f"{len(unknown)} events were trained that were never to be"),
            (out.lost == out.may_lose, f"{out.lost} lost, not {out.may_lose}"),
            (out.trained_twice <= out.may_double, f"{out.trained_twice} trained twice, not at most {out.may_double}"),
            (
                sum(a["consumed"] for a in accounts) == out.trained + filtered + out.dead_lettered,
                "the accounting is not closed",
            ),
            (out.trained == counts.total() + twice_inside, f"{out.trained} trained, {counts.total()} in the counts"),
        ]
        letters = len(self.stream.dead_letters() | self._refused_letters())
        checks += [(letters == self.stream.bad, f"{letters} dead letters in their topic, not {self.stream.bad}")]
        checks += [(out.dead_lettered >= self.stream.bad, f"{out.dead_lettered} dead letters of {self.stream.bad}")]
        out.problems += [problem for holds, problem in checks if not holds]
        if self.redis_url:
            self._account_shared()

    def _refused_letters(self) -> set[bytes]:
        """Dead letters that Kafka did not take: they are in a file of the trainer."""
        files = [file for trainer in self.trainers for file in trainer.directory.glob("*.dead-letters.jsonl")]
        return {json.loads(line)["value"].encode() for file in files for line in file.read_text().splitlines()}

    def _users(self, trainer: Trainer) -> list[str]:
        return [str(user) for user in trainer.export()["users.ids"]]

    def _account_shared(self) -> None:
        report = self.json("store", "inspect", "--redis-url", self.redis_url, "--model", self.model, "--top", MANY)
        found = Counter({e["item"]: e["events"] for e in report["popularity"]["top"]})
        expected = Counter(dict.fromkeys(self.stream.events, 1))
        out = self.outcome
        out.shared_expected, out.shared_found = expected.total(), found.total()
        missing = (expected - found).total() if self.keeps_all_items else 0
        out.shared_wrong = missing + (found - expected).total()
        if out.shared_wrong:
            out.problems.append(f"{out.shared_wrong} shared counts are wrong")

    def compare(self, trainer: Trainer) -> None:
        """Is what it has learned the same, to the last bit, as what an undisturbed trainer learns from the stream?"""
        group, self.group = self.group, f"{self.group}-undisturbed"
        undisturbed = Trainer(self, "undisturbed", trainer.options)
        undisturbed.drain()
        self.group = group
        found, expected = trainer.export(), undisturbed.export()
        same = [found[name].tobytes() == expected[name].tobytes() for name in expected]
        self.outcome.equal = found.keys() == expected.keys() and all(same)
        if not self.outcome.equal:
            self.outcome.problems.append("the model differs from the undisturbed one")

    def describe(self) -> str:
        """What a person needs who looks for the reason of a failure, beside what each process said."""
        lines = [f"problems: {self.outcome.problems}"]
        with suppress(Exception):
            lines.append(f"offsets of {self.stream.name}: ends {self.stream.ends()}")
            lines.append(f"committed by {self.group}: {self.stream.committed(self.group)}")
        return "\n".join(lines)
