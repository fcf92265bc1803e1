from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry

from streamer.metrics.catalogue import CATALOGUE
from streamer.metrics.instruments import Instruments


@pytest.fixture
def instruments() -> Instruments:
    return Instruments(CollectorRegistry())


def test_series_of_closed_sets_are_there_before_anything_happens(instruments):
    assert instruments.value("streamer_dead_letters_total", reason="not_json") == 0
    assert instruments.value("streamer_phase_seconds_count", phase="step") == 0


def test_a_gauge_that_nothing_has_set_is_not_a_number(instruments):
    assert math.isnan(instruments.value("streamer_loss"))
    assert math.isnan(instruments.value("streamer_cache_slot_share", band="tail"))


def test_none_is_not_a_number(instruments):
    instruments.set("streamer_loss", 1.0)
    instruments.set("streamer_loss", None)
    assert math.isnan(instruments.value("streamer_loss"))


def test_a_counter_follows_a_total_and_never_falls(instruments):
    for total in (0, 5, 5, 12, 3, 13):
        instruments.rise("streamer_steps_total", total)
    assert instruments.value("streamer_steps_total") == 13


def test_totals_of_different_labels_are_kept_apart(instruments):
    instruments.rise("streamer_dead_letters_total", 5, "not_json")
    instruments.rise("streamer_dead_letters_total", 2, "too_deep")
    assert instruments.value("streamer_dead_letters_total", reason="too_deep") == 2


def test_a_value_outside_the_closed_set_is_refused_with_those_there_are(instruments):
    with pytest.raises(ValueError, match=r"no reason 'bad luck'.*not_json"):
        instruments.rise("streamer_dead_letters_total", 1, "bad luck")


def test_series_that_are_not_replaced_are_gone(instruments):
    instruments.replace("streamer_lag_records", {("t", "0"): 5, ("t", "1"): 6})
    instruments.replace("streamer_lag_records", {("t", "1"): 7})
    assert instruments.value("streamer_lag_records", topic="t", partition="0") is None
    assert instruments.value("streamer_lag_records", topic="t", partition="1") == 7


def test_two_processes_in_one_do_not_meet_on_their_own_registries():
    first, second = Instruments(CollectorRegistry()), Instruments(CollectorRegistry())
    first.set("streamer_loss", 1.0)
    assert math.isnan(second.value("streamer_loss"))


def test_what_is_registered_is_the_catalogue(instruments):
    names = {family.name + ("_total" if family.type == "counter" else "") for family in instruments.registry.collect()}
    assert names == set(CATALOGUE)
