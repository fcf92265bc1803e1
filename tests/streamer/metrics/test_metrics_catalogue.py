"""The list of metrics: names by convention, labels that are bounded, documentation that agrees."""

from __future__ import annotations

import re

import pytest

from streamer.cache_store import errors as store_errors
from streamer.dead_letters.base import Reason
from streamer.evaluation import LINE_BASELINES, MODEL, WITHOUT_TOWERS
from streamer.metrics.catalogue import BANDS, EVIDENCE, GROUPS, HISTORIES, RECOMMENDERS, SERVER, STORE_ERRORS
from streamer.metrics.catalogue import CATALOGUE as TRAINER
from streamer.metrics.composition import Composition
from streamer.model.ranking.features import BUCKET_NAMES, KINDS

CATALOGUE = TRAINER | SERVER
MAX_SERIES = 400
"""Of all metrics with closed sets of labels together, buckets not counted."""


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=lambda m: m.name)
def test_names_follow_the_convention(metric):
    assert re.fullmatch(r"streamer(_[a-z0-9]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(ms|milliseconds|minutes|kilobytes|percent|count|sum|bucket|info_total)$", metric.name)
    assert metric.help.endswith(".")
    assert (metric.kind == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_names_are_unique():
    assert sum(map(len, GROUPS.values())) == len(TRAINER) + len(SERVER) == len(CATALOGUE)


@pytest.mark.parametrize("metric", [m for m in CATALOGUE.values() if m.labels], ids=lambda m: m.name)
def test_every_label_is_a_closed_set_or_says_what_bounds_it(metric):
    for label in metric.labels:
        assert bool(label.values) != bool(label.bound)
        assert not {"user", "item", "id", "offset", "key"} & {label.name}


def test_all_closed_sets_together_are_few_series():
    def series(metric):
        count = 1
        for label in metric.labels:
            count *= max(len(label.values), 1)
        return count

    assert sum(series(metric) for metric in CATALOGUE.values()) < MAX_SERIES


def test_labels_know_every_value_that_the_code_has():
    assert set(CATALOGUE["streamer_dead_letters_total"].labels[0].values) == {str(reason) for reason in Reason}
    assert set(RECOMMENDERS) == {MODEL, WITHOUT_TOWERS, *LINE_BASELINES}
    assert (BUCKET_NAMES, tuple(KINDS)) == (HISTORIES, EVIDENCE)
    assert Composition._fields == BANDS
    words = re.findall(r"`([a-z-]+)`", store_errors.StoreUnavailable.__doc__ or "")
    assert words
    assert set(words) | {"refused", "other"} == set(STORE_ERRORS)
