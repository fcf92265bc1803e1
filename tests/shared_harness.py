"""Several trainers of one model in processes of their own, on one topic, and what they end with."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import redis
from contracts.store_trainer import Stored, by_id, stored
from crash_harness import TINY, Forker, records, trained_items
from kafka.errors import KafkaError
from kafka_harness import KafkaHarness, WrittenTopic
from line_harness import popularity_counts, until

from streamer.cache_store.redis.schema import Keys
from streamer.cache_store.redis.server import RedisServer
from streamer.cache_store.store import CacheStore
from streamer.learner import Learner
from streamer.sharing.sharing import Sharing, StoreSharing
from streamer.snapshot import Checkpoint, CheckpointStore

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


class Members(Forker):
    """Starts trainers. They do not outlive it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Member] = []
        super().__init__("shared_member.py")

    def start(self, name: str, arguments: Sequence[Any]) -> Member:
        """A process with this command line."""
        output = self._directory / f"{name}-{len(self._started)}-{uuid.uuid4().hex[:6]}"
        job = {"output": str(output), "journal": f"{output}.journal", "arguments": [str(a) for a in arguments]}
        member = Member(self, name, self.ask({"start": job}), output)
        self._started.append(member)
        return member

    def kill_all(self) -> None:
        """End whatever still runs."""
        for member in self._started:
            if member.code is None:
                member.kill()
        self._started = []

    def close(self) -> None:
        self.kill_all()
        super().close()


class Member:
    """A trainer in a process of its own."""

    def __init__(self, members: Members, name: str, pid: int, output: Path) -> None:
        self._members, self.name, self.pid, self._output = members, name, pid, output

    @property
    def code(self) -> int | None:
        """Its return code; None while it runs."""
        found: int | None = self._members.ask({"ended": self.pid})
        return found

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.ended()

    def ended(self) -> int:
        """Its return code, once it has ended."""
        until(lambda: self.code is not None, what=f"{self.name} ends")
        code = self.code
        assert code is not None
        return code

    def leave(self) -> None:
        """Ask it to end, and see that it does so in good order."""
        self.signal(signal.SIGTERM)
        assert self.ended() == 0, self.said()

    def said(self) -> str:
        """All of its standard error so far."""
        return Path(f"{self._output}.err").read_text()

    def journal(self, kind: str) -> Iterator[dict[str, Any]]:
        """Lines of its journal that begin with this key."""
        return (json.loads(line) for line in self._lines() if line.startswith(f'{{"{kind}"'.encode()))

    @property
    def batches(self) -> int:
        """How many micro-batches it has learned and contributed."""
        return sum(line.startswith(b'{"learned"') for line in self._lines())

    def _lines(self) -> list[bytes]:
        """All lines that are written to their end."""
        path = Path(f"{self._output}.journal")
        written = path.read_bytes() if path.exists() else b""
        return written[: written.rfind(b"\n") + 1].splitlines()


class Company:
    """A topic, a model in Redis, and the trainers of both."""

    def __init__(
        self, kafka: KafkaHarness, redis_url: str, members: Members, directory: Path, partitions: int = 4
    ) -> None:
        self.kafka, self.redis_url, self.directory, self._members = kafka, redis_url, directory, members
        self.topic = WrittenTopic(kafka, partitions)
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self.model = f"model-{uuid.uuid4().hex[:12]}"
        self.server = RedisServer(redis_url, Keys(self.model), timeout_s=2.0)
        self.everybody: list[Member] = []
        self.entries: dict[str, bytes] = {}
        """Everything that was ever seen in the store's log, by chain."""

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
                self.note_log()

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
        member = self._members.start(
            name,
            [
                *("run", "--bootstrap-servers", self.kafka.server.bootstrap, "--topic", self.topic.name, *QUICK, *TINY),
                *("--group-id", self.group, "--redis-url", self.redis_url, "--model", self.model, *BRISK),
                *("--checkpoint-dir", self.directory / name, "--set", "evaluation_share=0", "--method", "xir", *more),
            ],
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

    def note_log(self) -> None:
        """Remember what is in the log now, if it can be read."""
        with suppress(redis.RedisError), redis.Redis.from_url(self.redis_url) as client:
            self.entries |= {fields[b"c"].decode(): fields[b"d"] for _, fields in client.xrange(self.server.keys.log)}

    def following(self) -> dict[str, int]:
        """For each partition the offset up to which the store has contributions; none while it is away."""
        with suppress(redis.RedisError), redis.Redis.from_url(self.redis_url) as client:
            return {name.decode(): int(at) for name, at in client.hgetall(self.server.keys.next).items()}
        return {}

    def owners(self) -> dict[str, str]:
        """For each partition the trainer that claimed it last."""
        with redis.Redis.from_url(self.redis_url) as client:
            return {name.decode(): owner.decode() for name, owner in client.hgetall(self.server.keys.owners).items()}

    @property
    def reached(self) -> dict[str, int]:
        """For each partition the offset after its last event."""
        values = self.topic.values.items()
        return {str(p): max(k for k, v in enumerate(written) if trained_items([v])) + 1 for p, written in values}

    def wait_until_all_is_counted(self) -> Stored:
        """Wait until every event of the topic is in the store, and committed."""
        wanted = self.reached
        ends = self.topic.ends
        until(lambda: self.following() == wanted, what=f"the store has everything, {wanted}")
        until(lambda: self.kafka.committed(self.group) == ends, what=f"everything is committed, {ends}")
        self.note_log()
        found = stored(self.server)
        assert found is not None
        return found

    # checks -----------------------------------------------------------------------------------------------------------

    def assert_every_event_is_counted_once(self, found: Stored) -> None:
        assert found.counts == trained_items(self.topic.all_values)

    def learned(self) -> list[dict[str, Any]]:
        """What every process has learned and contributed, in its own words."""
        return [line["learned"] for member in self.everybody for line in member.journal("learned")]

    def accepted(self) -> list[dict[str, Any]]:
        """Of that, what is in the entries that were in the store's log."""
        sent = {line["sent"]: line["parts"] for member in self.everybody for line in member.journal("sent")}
        assert self.entries.keys() <= sent.keys(), "what is in the log was sent by one of them"
        return [part for chain in self.entries for part in sent[chain]]

    def assert_draws_belong_to_the_events(self, found: Stored) -> None:
        """What is in the log was learned as it stands there, event by event once, and adds up to what is shared.

        Of a batch that was learned again in part, only the events are in the log.
        """
        accepted, learned = self.accepted(), Counter(json.dumps(part) for part in self.learned())
        spans = sorted(tuple(span) for part in accepted for span in part["spans"])
        for (name, _, stop), (following, start, _) in itertools.pairwise(spans):
            assert name != following or stop <= start, f"events of {name} before {stop} are in the log twice"
        whole = Counter(json.dumps(part) for part in accepted if part["drawn"])
        assert whole <= learned, "what was resampled is in the log twice, or was never resampled"
        assert found.drawn == summed(accepted, "drawn")
        assert found.counts == summed(accepted, "items")

    def revived(self, name: str) -> tuple[Counter[str], Counter[str]]:
        """Counts and occurrence of a trainer that goes on from its last checkpoint."""
        checkpoint = CheckpointStore(self.directory / name, readonly=True).load()
        assert checkpoint is not None
        learner, sharing = restored(checkpoint, RedisServer(self.redis_url, Keys(self.model)))
        sharing.start()
        until(lambda: not sharing.status().backlog_events, what="what waited in the checkpoint is sent")
        sharing.receive()
        sharing.close()
        return view(learner)

    def close(self) -> None:
        self._members.kill_all()
        self.server.close()


def restored(checkpoint: Checkpoint, server: RedisServer) -> tuple[Learner, Sharing]:
    """A trainer as it was when a checkpoint was written."""
    learner = Learner.from_checkpoint(checkpoint)
    sharing = StoreSharing(learner, CacheStore(server))
    arrays = {n.removeprefix("sharing."): a for n, a in checkpoint.arrays().items() if n.startswith("sharing.")}
    sharing.restore(arrays, checkpoint.meta["sharing"], {})
    return learner, sharing


def view(learner: Learner) -> tuple[Counter[str], Counter[str]]:
    """Events and draws of each item, as a learner has them."""
    occurrence = learner.state.occurrence.values(learner.state.items.used)
    assert np.array_equal(occurrence, np.rint(occurrence)), "counts are whole"
    return +popularity_counts(learner), by_id(occurrence, learner.state.items.ids)


def summed(parts: Sequence[dict[str, Any]], key: str) -> Counter[str]:
    """What some contributions add together."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part[key])
    return total
