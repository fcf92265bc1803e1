"""What commands print for a person."""

from __future__ import annotations

import pytest

from streamer.cli.output import format_age, render, table


def lines(report: dict) -> list[str]:
    return render(report).splitlines()


def test_plain_values_come_first_a_line_each():
    assert lines({"sizes": {"users": 1234567}, "exact": True, "names": ["a", "b"], "owner": None, "left": []}) == [
        "exact  yes",
        "names  a, b",
        "owner  -",
        "left   none",
        "",
        "\x1b[1msizes\x1b[0m",
        "  users  1,234,567",
    ]


def test_sections_may_have_sections():
    assert lines({"cache": {"slots": 4, "bands": {"head": 0.75, "tail": 0.25}}})[1:] == [
        "  slots  4",
        "  bands",
        "    head  75.00%",
        "    tail  25.00%",
    ]


def test_a_list_is_a_table_with_numbers_on_the_right():
    assert lines({"top": [{"item": "tea", "events": 7}, {"item": "7", "events": 1000, "owner": "ada"}]})[1:] == [
        "  item  events  owner",
        "  tea        7",
        "  7      1,000  ada",
    ]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("sent_bytes", 27_342_669, "sent bytes  27.3 MB"),
        ("claimed_ago_s", 150.0, "claimed ago  2 min"),
        ("share_of_step", 0.0123, "share of step  1.23%"),
        ("step_ms", 0.01234567, "step, ms  0.01235"),
        ("total", 12345.6, "total  12,346"),
    ],
)
def test_names_say_how_a_number_is_written(name, value, line):
    assert lines({name: value}) == [line]


def test_text_cannot_write_codes_to_the_terminal():
    assert lines({"item": "\x1b[2J"}) == [r"item  '\x1b[2J'"]


def test_an_empty_text_is_left_out():
    assert lines({"note": "", "slots": 1}) == ["slots  1"]


def test_a_table_may_be_empty():
    assert list(table([], ("item", "score"))) == ["  item  score"]


def test_an_age_in_the_future_is_none():
    assert format_age(-5.0) == "0 s"
