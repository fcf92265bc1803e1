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
    assert math.isnan(instruments.value("streamer_loss"))
    assert math.isnan(instruments.value("streamer_cache_slot_share", band="tail"))


def test_a_value_may_be_none_or_computed_at_a_scrape(instruments):
    values = iter((1.0, 2.0))
    instruments.put("a", {"streamer_loss": None, "streamer_users": lambda: next(values)})
    assert instruments.value("streamer_users") == 1
    assert math.isnan(instruments.value("streamer_loss"))


def test_parts_replace_their_own_series_and_leave_those_of_others(instruments):
    instruments.put("stream", {("streamer_lag_records", "t", "0"): 5, ("streamer_lag_records", "t", "1"): 6})
    instruments.put("learning", {"streamer_steps_total": 9, ("streamer_dead_letters_total", "too_deep"): 2})
    instruments.put("stream", {("streamer_lag_records", "t", "1"): 7})
    assert instruments.value("streamer_lag_records", topic="t", partition="0") is None
    assert instruments.value("streamer_lag_records", topic="t", partition="1") == 7
    assert instruments.value("streamer_steps_total") == 9
    assert instruments.value("streamer_dead_letters_total", reason="too_deep") == 2
    assert instruments.value("streamer_dead_letters_total", reason="not_json") == 0


def test_what_is_registered_is_the_catalogue(instruments):
    names = {family.name + ("_total" if family.type == "counter" else "") for family in instruments.registry.collect()}
    assert names == set(CATALOGUE)
