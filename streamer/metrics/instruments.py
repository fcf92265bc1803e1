"""The catalogue's metrics as objects that can be set, on a registry that is passed in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streamer.metrics.catalogue import CATALOGUE, Metric


class Instruments:
    """Every metric of a catalogue, that of trainers unless another is given.

    Series whose labels have closed sets of values exist from the start, so that a rate
    can be taken of the first event; a gauge that was never set is not a number until it
    is.

    Examples:
        >>> instruments = Instruments(CollectorRegistry())
        >>> instruments.set("streamer_loss", 0.5)
        >>> instruments.rise("streamer_steps_total", 7)
        >>> instruments.rise("streamer_steps_total", 9)
        >>> instruments.value("streamer_steps_total")
        9.0
    """

    def __init__(
        self, registry: CollectorRegistry, catalogue: Mapping[str, Metric] = CATALOGUE
    ) -> None:
        self.registry = registry
        self._catalogue = catalogue
        self._metrics = {
            name: _made(metric, registry) for name, metric in catalogue.items()
        }
        self._risen: dict[tuple[str, ...], float] = {}
        self._series: dict[str, set[tuple[str, ...]]] = {}
        for name, metric in catalogue.items():
            for values in product(*(label.values for label in metric.labels)):
                series = self.series(name, *values)
                if metric.kind == "gauge":
                    series.set(math.nan)

    def series(self, name: str, *labels: str) -> Any:
        """One series of a metric: keep it where it is set often.

        Raises:
            ValueError: a label has a value that the catalogue does not know.
        """
        metric = self._catalogue[name]
        for label, value in zip(metric.labels, labels, strict=True):
            if label.values and value not in label.values:
                raise ValueError(
                    f"{name} has no {label.name} {value!r}: it has {', '.join(label.values)}"
                )
        return self._metrics[name].labels(*labels) if labels else self._metrics[name]

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """Set a gauge; None is not a number."""
        self.series(name, *labels).set(math.nan if value is None else value)

    def rise(self, name: str, total: float, *labels: str) -> None:
        """Bring a counter up to a total that somebody else keeps, from where that total
        was at the first time: 0.
        """
        key = (name, *labels)
        before = self._risen.get(key, 0.0)
        if total > before:
            self.series(name, *labels).inc(total - before)
            self._risen[key] = total

    def replace(self, name: str, values: Mapping[tuple[str, ...], float]) -> None:
        """Set exactly these series of a gauge; those that are not among them any more
        are removed.
        """
        gone = self._series.get(name, set()) - values.keys()
        for labels in gone:
            self._metrics[name].remove(*labels)
        for labels, value in values.items():
            self.set(name, value, *labels)
        self._series[name] = set(values)

    def value(self, name: str, **labels: str) -> float | None:
        """What a scrape would see; None if there is no such series."""
        return self.registry.get_sample_value(name, labels)


def _made(metric: Metric, registry: CollectorRegistry) -> Any:
    names = [label.name for label in metric.labels]
    if metric.kind == "counter":
        return Counter(
            metric.name.removesuffix("_total"), metric.help, names, registry=registry
        )
    if metric.kind == "histogram":
        return Histogram(
            metric.name, metric.help, names, registry=registry, buckets=metric.buckets
        )
    return Gauge(metric.name, metric.help, names, registry=registry)
