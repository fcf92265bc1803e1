"""The catalogue's metrics on a registry that is passed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from streamer.metrics.catalogue import CATALOGUE, Metric

Value = float | None | Callable[[], float]
"""A number; None is not a number; a function is called at a scrape."""
Values = dict[str | tuple[str, ...], Value]
"""By the name of a metric, followed by its labels if it has some."""


class Instruments(Collector):
    """Every metric of a catalogue, that of trainers unless another is given.

    Series whose labels have closed sets of values exist from the start, so that a rate
    can be taken of the first event; a gauge that was never set is not a number until it
    is.

    Examples:
        >>> instruments = Instruments(CollectorRegistry())
        >>> instruments.put("learning", {"streamer_loss": 0.5, "streamer_steps_total": 9})
        >>> instruments.value("streamer_steps_total")
        9
    """

    def __init__(
        self, registry: CollectorRegistry, catalogue: Mapping[str, Metric] = CATALOGUE
    ) -> None:
        self.registry = registry
        self._catalogue = catalogue
        self._values: dict[str, Values] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, metric in catalogue.items():
            if metric.kind == "histogram":
                self._histograms[name] = Histogram(
                    name,
                    metric.help,
                    [label.name for label in metric.labels],
                    registry=registry,
                    buckets=metric.buckets,
                )
                for labels in product(*(label.values for label in metric.labels)):
                    self.histogram(name, *labels)
        registry.register(self)

    def histogram(self, name: str, *labels: str) -> Histogram:
        """One series of a histogram: keep it where it is used often."""
        found = self._histograms[name]
        return found.labels(*labels) if labels else found

    def put(self, part: str, values: Values) -> None:
        """Set all counters and gauges of a part; those that were among them before and
        are not any more are gone.
        """
        self._values[part] = values

    def collect(self) -> Iterator[Any]:
        """What a scrape sees of counters and gauges; called on any thread."""
        found: dict[str, dict[tuple[str, ...], Value]] = {}
        for values in list(self._values.values()):
            for key, value in values.items():
                name, *given = (key,) if isinstance(key, str) else key
                found.setdefault(name, {})[tuple(given)] = value
        for name, metric in self._catalogue.items():
            if metric.kind == "histogram":
                continue
            is_counter = metric.kind == "counter"
            kind = CounterMetricFamily if is_counter else GaugeMetricFamily
            family = kind(
                name, metric.help, labels=[label.name for label in metric.labels]
            )
            closed = product(*(label.values for label in metric.labels))
            series: dict[tuple[str, ...], Value] = dict.fromkeys(
                closed, 0.0 if is_counter else None
            )
            for labels, value in (series | found.get(name, {})).items():
                number = value() if callable(value) else value
                family.add_metric(labels, math.nan if number is None else number)
            yield family

    def value(self, name: str, **labels: str) -> float | None:
        """What a scrape would see; None if there is no such series."""
        return self.registry.get_sample_value(name, labels)
