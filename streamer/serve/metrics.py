"""Metrics of a server for Prometheus."""

from __future__ import annotations

from itertools import product

from prometheus_client import CollectorRegistry, ProcessCollector

from streamer.metrics.catalogue import SERVER
from streamer.metrics.instruments import Instruments
from streamer.serve.follower import Follower, Tail
from streamer.serve.freshness import CLOCKS, KINDS
from streamer.serve.service import Service


class ServerMetrics:
    """What a server counts, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._instruments = Instruments(self.registry, SERVER)
        self._seconds = self._instruments.series("streamer_server_request_seconds")
        self._waits = {}
        for kind, clock in product(KINDS, CLOCKS):
            wait = self._instruments.series("streamer_freshness_seconds", kind, clock)
            self._waits[kind, clock] = wait
        self._follower: Follower | None = None
        self._tail: Tail | None = None

    def watch(self, follower: Follower, tail: Tail | None) -> None:
        """Report whether these threads can read."""
        self._follower = follower
        self._tail = tail

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._instruments.series(
            "streamer_server_requests_total", path, str(status)
        ).inc()
        self._seconds.observe(seconds)

    def waited(self, kind: str, clock: str, seconds: float) -> None:
        """A request would see an event from now on."""
        self._waits[kind, clock].observe(seconds)

    def refresh(self, service: Service) -> None:
        """Set what is looked at when somebody asks."""
        gauges: dict[str, float | None] = dict(service.sizes())
        gauges["ready"] = service.ready().ok
        about = service.about() if service.replica is not None else {}
        gauges["generation"] = about.get("generation")
        gauges["step"] = about.get("step")
        gauges["age_seconds"] = about.get("age_s")
        if self._follower is not None:
            gauges["following"] = self._follower.problem is None
        if self._tail is not None:
            gauges["tailing"] = self._tail.problem is None
        for name, value in gauges.items():
            self._instruments.set(f"streamer_server_{name}", value)
        totals = {
            "deltas": service.applied_deltas,
            "bases": service.bases,
            "refused_points": service.refused_points,
        }
        for name, total in totals.items():
            self._instruments.rise(f"streamer_server_{name}_total", total)
