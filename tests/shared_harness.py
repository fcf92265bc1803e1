"""Several trainers of one model in processes of their own, on one topic, and what they end with."""

from __future__ import annotations

import signal
import threading
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from commands import Command
from contracts.store_trainer import column_totals
from crash_harness import TINY, records, trained_items
from kafka.errors import KafkaError
from kafka_harness import KafkaHarness, WrittenTopic
from line_harness import popularity_counts, until
from servers.process import free_ports

from streamer.cache_store.errors import StoreError
from streamer.cache_store.redis.admin import StoreAdmin
from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.store import CacheStore
from streamer.learner import OnlineLearner
from streamer.learner.checkpoint import checkpoint_settings
from streamer.sharing.sharing import StoreSharing
from streamer.snapshot import SnapshotDirectory

QUICK = ["--kafka", "retry_backoff_ms=20", "--kafka", "heartbeat_interval_ms=200"]
"""Client settings that make tests quick."""
IMPATIENT = ["--kafka", "session_timeout_ms=1500"]
"""With this a dead member is soon forgotten; on a busy machine, once in a while, a living one too."""
BRISK = [
    "--max-age",
    "0.05",
    "--checkpoint-every",
    "0.15",
    "--set",
    "max_queued_events=200",
    "--set",
    "share_every=0.05",
]
"""Small batches soon trained, saved and sent."""


class Member(Command):
    """A trainer in a process of its own, with a journal."""

    def __init__(self, name: str, arguments: Sequence[Any], output: Path, port: int) -> None:
        self.name = name
        self.port = port  # of its /metrics
        journal = f"import shared_journal\nshared_journal.keep({f'{output}.journal'!r})"
        super().__init__(arguments, output, journal)

    def leave(self) -> None:
        """Ask it to end, and see that it does so in good order."""
        self.signal(signal.SIGTERM)
        code, _ = self.ended()
        assert code == 0, self.said()

    def _journal(self) -> list[list[str]]:
        path = Path(f"{self._output}.journal")
        written = path.read_text() if path.exists() else ""
        return [line.split() for line in written[: written.rfind("\n") + 1].splitlines()]

    def learned(self) -> list[tuple[int, bool]]:
        """Of each micro-batch that it has learned, how many events it had, and whether they were counted."""
        return [(int(events), counted == "1") for events, counted, *_ in self._journal()]

    def positions(self) -> dict[str, int]:
        """How far it has trained each partition that it ever had."""
        found: dict[str, int] = {}
        for _, _, *places in self._journal():
            for place in places:
                partition, _, at = place.rpartition("=")
                found[partition] = int(at)
        return found

    @property
    def uncounted(self) -> int:
        """How many events it has trained and not counted, since they had been."""
        return sum(events for events, counted in self.learned() if not counted)

    def duplicate_events(self) -> float:
        """The same, as its `/metrics` says; -1 while it does not respond yet."""
        lines: list[str] = []
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as response,
        ):
            lines = response.read().decode().splitlines()
        found = [line for line in lines if line.startswith("streamer_store_duplicate_events_total ")]
        return float(found[0].split()[-1]) if found else -1.0

    @property
    def batches(self) -> int:
        """How many micro-batches it has learned."""
        return len(self.learned())


class Company:
    """A topic, a model in Redis, and the trainers of both."""

    def __init__(self, kafka: KafkaHarness, redis_url: str, directory: Path, partitions: int = 4) -> None:
        self.kafka, self.redis_url, self.directory = kafka, redis_url, directory
        self.topic = WrittenTopic(kafka, partitions)
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self.model = f"model-{uuid.uuid4().hex[:12]}"
        self.server = RedisServer(redis_url, Keys(self.model), timeout_s=2.0)
        self.everybody: list[Member] = []

    # the stream -------------------------------------------------------------------------------------------------------

    def append(self, count: int) -> None:
        """Append records, in turn on each partition."""
        self.topic.append(records(count))

    @contextmanager
    def writing(self, count: int = 120, every_s: float = 0.1) -> Iterator[None]:
        """Append records again and again, all the while."""
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(every_s):
                self.append(count)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()

    # trainers ---------------------------------------------------------------------------------------------------------

    def start(self, name: str, *more: Any) -> Member:
        """A trainer; its name is that of its checkpoint directory."""
        (port,) = free_ports(1)
        member = Member(
            name,
            [
                *("run", "--metrics-port", port),
                *("--bootstrap-servers", self.kafka.server.bootstrap, "--topic", self.topic.name, *QUICK, *TINY),
                *("--group-id", self.group, "--redis-url", self.redis_url, "--model", self.model, *BRISK),
                *("--checkpoint-dir", self.directory / name, "--set", "evaluation_share=0", "--method", "xir", *more),
            ],
            self.directory / f"{name}-{len(self.everybody)}",
            port,
        )
        self.everybody.append(member)
        return member

    def start_all(self, count: int, *more: Any) -> list[Member]:
        """So many trainers, all in the group."""
        members = [self.start(f"trainer-{k}", *more) for k in range(count)]
        until(lambda: self.size == count, what=f"all {count} have joined")
        return members

    @property
    def size(self) -> int:
        """How many trainers the group has."""
        try:
            return self.kafka.members(self.group)
        except KafkaError:  # the broker has no coordinator for the group yet
            return 0

    # what is shared ---------------------------------------------------------------------------------------------------

    def following(self) -> dict[str, int]:
        """For each partition the offset before which it is counted; none while the store is away."""
        with suppress(StoreError):
            tops = self.server.tops().items()
            return {name[7:].partition("@")[0]: at for name, (at, _) in tops if name.startswith("counts:")}
        return {}

    def owners(self) -> set[str]:
        """Processes that count some partition, as far as they have said so in the last seconds."""
        with closing(StoreAdmin(self.redis_url, Keys(self.model))) as admin:
            summary = admin.summary()
            return {one.trainer for one in summary.active if one.partitions} if summary is not None else set()

    def wait_until_all_is_counted(self) -> None:
        """Wait until every event of the topic is in the store, and committed."""
        ends = self.topic.ends
        wanted = {str(p): at for p, at in ends.items()}
        until(lambda: self.following() == wanted, what=f"the store has everything, {wanted}")
        until(lambda: self.kafka.committed(self.group) == ends, what=f"everything is committed, {ends}")

    def trained_again(self) -> int:
        """How many events were trained more than once, over all processes that there ever were."""
        trained = sum(events for member in self.everybody for events, _ in member.learned())
        return trained - trained_items(self.topic.all_values).total()

    def uncommitted(self, member: Member) -> int:
        """How many events a member has trained that are not committed."""
        committed = {str(p): at for p, at in self.kafka.committed(self.group).items()}
        return sum(max(0, at - committed.get(p, 0)) for p, at in member.positions().items())

    def trained_uncounted(self) -> int:
        """How many events were trained and not counted, since they had been."""
        return sum(member.uncounted for member in self.everybody)

    def revived(self, name: str) -> Counter[str]:
        """The counts of a trainer that goes on from its last checkpoint."""
        checkpoint = SnapshotDirectory(self.directory / name).load()
        assert checkpoint is not None
        learner = OnlineLearner(checkpoint_settings(checkpoint))
        sharing = StoreSharing(learner, CacheStore(RedisServer(self.redis_url, Keys(self.model)), name))
        learner.state.restore(checkpoint.chunks(), checkpoint.arrays(), checkpoint.meta["learner"])
        sharing.restore(checkpoint.meta["sharing"], {})
        sharing.start()
        sharing.close()
        used = learner.state.items.used
        assert np.array_equal(learner.state.item_counts.counts(used), column_totals(sharing._table, "counts:", used)), (
            "what it works with is the sum of all entries"
        )
        return +popularity_counts(learner)

    def close(self) -> None:
        for member in self.everybody:
            member.kill()
        self.server.close()
