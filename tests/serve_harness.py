"""A trainer that publishes, and a server that follows it, in one process."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from line_harness import PATIENCE_S, Event, micro_batch, small

from streamer.event import NO_USER, EventDecoder
from streamer.ingest.batcher import MicroBatch
from streamer.learner import OnlineLearner
from streamer.recommender import Recommender
from streamer.serve.follower import Follower
from streamer.serve.service import RecommendRequest, Service
from streamer.serve.settings import ServeSettings
from streamer.snapshot.places import DirectoryPlace, DirectoryReader, Place, SnapshotReader
from streamer.snapshot.publisher import Publisher
from streamer.sources.base import Partition, StartAt
from streamer.sources.embedded.source import EmbeddedSource
from streamer.web.serving import serving

CLICKS = Partition("clicks", 0)


def wait_until(happens: Callable[[], Any], what: str = "it") -> None:
    """Return when something has happened."""
    deadline = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.005)


class Trainer:
    """Learns events and publishes what it learned, one snapshot after the other, without heartbeats."""

    def __init__(self, place: Place | Path, learner: OnlineLearner | None = None, **settings: Any) -> None:
        self.learner = learner or OnlineLearner(small(**settings))
        self.offset, self.positions = 0, {CLICKS: 0}
        place = DirectoryPlace(place) if isinstance(place, Path) else place
        self.publisher = Publisher(self.learner.state, place, every_s=0.0, heartbeat_s=1e9)

    def learn(self, events: Sequence[Event], batch_size: int = 32) -> None:
        """Learn, and publish: a base the first time, then a delta."""
        for start in range(0, len(events), batch_size):
            batch = events[start : start + batch_size]
            self.offset += len(batch)
            self.positions = {CLICKS: self.offset}
            self.learner.learn_batch(micro_batch(batch, timestamps_s=[1e9 + self.offset] * len(batch)))
        self.publish()

    def publish(self) -> None:
        """Copy and write one snapshot."""
        before = self.publisher.status.snapshots
        wait_until(lambda: self._step() > before, "publishing")

    def base(self) -> None:
        """The next snapshot is a base."""
        self.publisher._begin_base()
        self.publish()

    def _step(self) -> int:
        self.publisher.step(lambda: self.positions)
        assert self.publisher.flush(), self.publisher.status.problem
        return self.publisher.status.snapshots

    def close(self) -> None:
        """Write what is left, and end."""
        self.publisher.close(lambda: self.positions)


class Server:
    """Follows a trainer until it is closed."""

    def __init__(self, reader: SnapshotReader | Path, clock: Callable[[], float] = time.time, **options: Any) -> None:
        self.service = Service(clock=clock)
        self.follower = Follower(
            self.service, DirectoryReader(reader, asks=True) if isinstance(reader, Path) else reader, **options
        )
        self.follower.start()

    def reach(self, trainer: Trainer) -> None:
        """Wait until the trainer's state is served."""
        wait_until(
            lambda: self.step == (trainer.publisher.status.generation, trainer.learner.state.trainer.steps), "following"
        )

    @property
    def step(self) -> tuple[int, int] | None:
        """Generation and step that are served, once what comes with them is counted."""
        with self.service._lock:
            end = self.service.end
            return (end.generation, end.step) if end is not None else None

    def close(self) -> None:
        """End."""
        self.follower.close()


class Client:
    """Asks a server that runs on a thread."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.settings = ServeSettings(
            **{"from_dir": directory / "points", "data_dir": directory, "port": 0, "host": "127.0.0.1"} | settings
        )
        self._serving = serving(self.settings)
        self.server = self._serving.__enter__()
        self.port = self.server.port
        self.server.__enter__()

    def ready(self) -> Client:
        """Itself, when everything that is published is served."""
        wait_until(lambda: self.ask("GET", "/readyz")[0] == 200, "readiness")
        return self

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        content = json.dumps(body).encode() if body is not None else None
        given = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, content, given | {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        raw = answer.read()
        connection.close()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(raw) if is_json else raw.decode()

    def get(self, path: str) -> Any:
        """What comes back."""
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def items(self, user: str, rest: str = "") -> list[str]:
        """What is recommended for a user."""
        return [found["item"] for found in self.get(f"/users/{quote(user, safe='')}/recommendations?{rest}")["items"]]

    def close(self) -> None:
        """End."""
        self.server.__exit__()
        self._serving.__exit__(None, None, None)


def catalogue_events(directory: Path, topic: str = "items") -> MicroBatch:
    """Everything that the embedded log has in the topic of the catalogue."""
    source = EmbeddedSource(directory, (topic,), group=None)
    source.open(StartAt({}))
    decoded = [EventDecoder(None, topic).decode(chunk) for chunk in source.poll(100, 0.1)]
    source.close()
    columns = [(list(one.items), list(one.item_features or [])) for one in decoded]
    items = [item for of_chunk, _ in columns for item in of_chunk]
    said = [features for _, of_chunk in columns for features in of_chunk]
    return MicroBatch([NO_USER] * len(items), items, [1e9] * len(items), item_features=said)


def served(service: Service, user: str, k: int = 10, **options: Any) -> list[tuple[str, float]]:
    """Items and scores of an answer."""
    return [
        (found["item"], found["score"])
        for found in service.recommend(RecommendRequest(user=user, k=k, **options))["items"]
    ]


def said(learner: OnlineLearner, user: str, k: int = 10, exclude_seen: bool = True) -> list[tuple[str, float]]:
    """What `streamer recommend` says."""
    recommender = Recommender(learner)
    found = recommender.recommend([recommender.user(user)], k, exclude_seen=exclude_seen)[0]
    return [(best.item, best.score) for best in found]
