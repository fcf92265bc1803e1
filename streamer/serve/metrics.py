"""Metrics of a server for Prometheus."""

from __future__ import annotations

from collections import Counter
from itertools import product

from prometheus_client import CollectorRegistry, ProcessCollector

from streamer.metrics.catalogue import SERVER
from streamer.metrics.instruments import Instruments, Values
from streamer.serve.follower import Follower, Tail
from streamer.serve.freshness import CLOCKS, KINDS
from streamer.serve.service import Service


class ServerMetrics:
    """What a server counts, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._instruments = Instruments(self.registry, SERVER)
        histogram = self._instruments.histogram
        self._seconds = histogram("streamer_server_request_seconds")
        self._waits = {}
        for kind, clock in product(KINDS, CLOCKS):
            self._waits[kind, clock] = histogram(
                "streamer_freshness_seconds", kind, clock
            )
        self._requests: Counter[str | tuple[str, ...]] = Counter()
        self._follower: Follower | None = None
        self._tail: Tail | None = None

    def watch(self, follower: Follower, tail: Tail | None) -> None:
        """Report whether these threads can read."""
        self._follower = follower
        self._tail = tail

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests["streamer_server_requests_total", path, str(status)] += 1
        self._seconds.observe(seconds)

    def waited(self, kind: str, clock: str, seconds: float) -> None:
        """A request would see an event from now on."""
        self._waits[kind, clock].observe(seconds)

    def refresh(self, service: Service) -> None:
        """Set what is looked at when somebody asks."""
        values: Values = {"streamer_server_ready": service.ready().ok}
        values |= self._requests
        for name, value in service.status().items():
            values[f"streamer_server_{name.replace('age_s', 'age_seconds')}"] = value
        if self._follower is not None:
            values["streamer_server_following"] = self._follower.problem is None
        if self._tail is not None:
            values["streamer_server_tailing"] = self._tail.problem is None
        self._instruments.put("server", values)
