"""Metrics of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
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
        self._waits = {
            pair: self._instruments.series("streamer_freshness_seconds", *pair)
            for pair in product(KINDS, CLOCKS)
        }
        self._problems: dict[str, Callable[[], str | None]] = {}

    def watch(self, follower: Follower, tail: Tail | None) -> None:
        """Report whether these threads can read."""
        self._problems = {"following": lambda: follower.problem}
        if tail is not None:
            self._problems["tailing"] = lambda: tail.problem

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
        about = service.about() if service.replica is not None else {}
        sizes = service.sizes()
        values = {
            "ready": float(service.ready()[0]),
            "generation": about.get("generation"),
            "step": about.get("step"),
            "age_seconds": about.get("age_s"),
            **{
                name: float(problem() is None)
                for name, problem in self._problems.items()
            },
            **sizes,
        }
        for name, value in values.items():
            self._instruments.set(f"streamer_server_{name}", value)
        self._instruments.rise("streamer_server_deltas_total", service.applied_deltas)
        self._instruments.rise("streamer_server_bases_total", service.bases)
        self._instruments.rise(
            "streamer_server_refused_points_total", service.refused_points
        )
