"""Malformed lines are counted and shown with their numbers, damaged files are read as far as possible."""

from __future__ import annotations

import random

import pytest
from contracts.dataset_contract import rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.replay.datasets import Log, LogOptions, open_log

HEADER = "user_id,item_id,timestamp\n"


def items_of(log: Log) -> list[str]:
    return [item for events in log.batches() for item in events.items]


def numbers_and_reasons(log: Log) -> list[tuple[int, str]]:
    parts = (example.split(": ") for example in log.malformed.examples)
    return [(int(line.removeprefix("line ")), reason) for line, reason, *_ in parts]


# malformed lines ------------------------------------------------------------------------------------------------------


def test_each_malformed_line_is_shown_with_its_number_its_reason_and_its_text(write):
    lines = ["a,1,1", "", "b,2", "c,3,3,3", ",4,4", "e, ,5", "f,6,soon", "g,7,-7", "h,8,8"]
    with open_log(write("log.csv", HEADER + "\n".join(lines)), "csv") as log:
        assert items_of(log) == ["1", "8"]
        assert log.malformed.examples == [
            "line 4: missing_columns: b,2",
            "line 5: too_many_columns: c,3,3,3",
            "line 6: missing_user_id: ,4,4",
            "line 7: missing_item_id: e, ,5",
            "line 8: bad_timestamp: f,6,soon",
            "line 9: bad_timestamp: g,7,-7",
        ]
        assert log.malformed.total == 6
        assert log.describe()["reasons"]["bad_timestamp"] == 2
        assert log.describe()["malformed"] == 6


GOOD, EMPTY, SHORT, NO_ITEM, NOT_UTF8 = b"u,i,7", b"", b"u,i", b"u,,7", b"u,\xff,7"


@given(st.lists(st.sampled_from([GOOD, GOOD, EMPTY, SHORT, NO_ITEM, NOT_UTF8]), max_size=25), st.booleans())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_line_numbers_are_right_in_any_mixture(write, lines, windows):
    reasons = {SHORT: "missing_columns", NO_ITEM: "missing_item_id", NOT_UTF8: "invalid_encoding"}
    plenty = [GOOD] * 300 + lines  # if a tenth of them is not UTF-8, none is meant to be
    content = (b"\r\n" if windows else b"\n").join([HEADER.strip().encode(), *plenty])
    with open_log(write("log.csv", content), "csv") as log:
        expected = [(number, reasons[line]) for number, line in enumerate(plenty, 2) if line in reasons]
        assert numbers_and_reasons(log) == expected[:20]
        assert log.malformed.total == len(expected)
        assert len(log) == plenty.count(GOOD)


@pytest.mark.parametrize("threads", [1, 2])
def test_line_numbers_are_right_far_into_a_compressed_file(write, threads):
    rng, lines, expected = random.Random(1), [HEADER.strip()], []
    for number in range(2, 200_000):
        kind = rng.choices(["good", "short", "late"], [1, 4e-5, 4e-5])[0]
        lines.append({"good": f"user{number},item{number % 99},{number}", "short": "x,y", "late": "x,y,never"}[kind])
        if kind != "good":
            expected.append(number)
    with open_log(write("log.csv.gz", "\n".join(lines)), "csv", LogOptions(threads=threads)) as log:
        assert [number for number, _ in numbers_and_reasons(log)] == expected[:20]
        assert log.malformed.total == len(expected)


def test_only_the_first_examples_are_kept(write):
    with open_log(write("log.csv", HEADER + "a,b\n" * 50 + "a,b,1\n"), "csv") as log:
        assert len(log.malformed.examples) == 20
        assert log.malformed.total == 50


def test_examples_in_several_files_name_the_file(write):
    write("b.csv", HEADER + "u,x,1\nu,y\n")
    path = write("a.csv", HEADER + "u,,1\nu,z,2\n")
    with open_log(path.parent / "*.csv", "csv") as log:
        assert log.malformed.examples == ["a.csv, line 2: missing_item_id: u,,1", "b.csv, line 3: missing_columns: u,y"]
        assert rows_of(log) == [("u", "x", 1.0), ("u", "z", 2.0)]


def test_rating_that_is_not_a_number_matters_only_where_ratings_do(write):
    path = write("log.csv", "user_id,item_id,rating\na,x,5\na,y,good\na,z,\n")
    with open_log(path, "csv") as log:
        assert (len(log), log.malformed.total) == (3, 0)
    with open_log(path, "csv", LogOptions(min_rating=1)) as log:
        assert (items_of(log), log.malformed.by_reason) == (["x"], {"bad_rating": 2})


def test_id_that_is_too_long_for_an_event_is_malformed(write):
    longest = "ü" * 256
    path = write("log.csv", f"{HEADER}{longest},{longest},1\n{longest}x,i,2\nu,{longest}x,3\n")
    with open_log(path, "csv") as log:
        assert rows_of(log) == [(longest, longest, 1.0)]
        assert log.malformed.by_reason == {"id_too_long": 2}
        assert numbers_and_reasons(log) == [(3, "id_too_long"), (4, "id_too_long")]


# ends of lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["\n", "\r\n"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_lines_may_end_in_different_ways(write, first, quote):
    lines = [f"u{n},{quote}i{n}{quote},{n}" for n in range(1000)]
    other = "\r\n" if first == "\n" else "\n"
    text = HEADER.strip() + first + first.join(lines[:900]) + first + other.join(lines[900:])
    with open_log(write("log.csv", text), "csv") as log:
        assert rows_of(log) == [(f"u{n}", f"i{n}", float(n)) for n in range(1000)]
        assert log.malformed.total == 0


TOO_LONG = b"u,i,7,8"
ENDED = st.tuples(st.sampled_from([GOOD, EMPTY, SHORT, NO_ITEM, TOO_LONG, NOT_UTF8]), st.sampled_from([b"\n", b"\r\n"]))


@given(st.lists(ENDED, min_size=1, max_size=25))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_line_numbers_are_right_however_lines_end(write, lines):
    reasons = {SHORT: "missing_columns", NO_ITEM: "missing_item_id", NOT_UTF8: "invalid_encoding"}
    reasons[TOO_LONG] = "too_many_columns"
    plenty = [(GOOD, b"\n"), (GOOD, b"\r\n")] * 150 + lines
    content = HEADER.encode() + b"".join(line + end for line, end in plenty)
    with open_log(write("log.csv", content), "csv") as log:
        expected = [(number, reasons[line]) for number, (line, _) in enumerate(plenty, 2) if line in reasons]
        assert numbers_and_reasons(log) == expected[:20]
        assert log.malformed.total == len(expected)
        assert len(log) == sum(line == GOOD for line, _ in plenty)


def test_carriage_return_within_a_line_takes_nothing_from_others(write):
    text = HEADER + "a,b,1\nc,d\re,f,3\ng,h,4\r\nk,l,5\n"
    with open_log(write("log.csv", text), "csv") as log:
        assert rows_of(log) == [("a", "b", 1.0), ("e", "f", 3.0), ("g", "h", 4.0), ("k", "l", 5.0)]
        assert log.malformed.by_reason == {"missing_columns": 1}


def test_one_of_several_files_may_be_damaged(write):
    write("a.csv", HEADER + "a,1,1\n")
    write("b.csv", HEADER + "b,2,2\r\nb,3\nb,4,4\r\n")
    write("c.csv", HEADER + 'c,"5,5\nc,"6",6\nc,"7, 7",7\n,8,8\n')
    path = write("d.csv", HEADER + "d,9,9\nd,10\n")
    with open_log(path.parent / "*.csv", "csv") as log:
        assert items_of(log) == ["1", "2", "4", "5", "6", "7, 7", "9"]
        assert log.malformed.examples == [
            "b.csv, line 3: missing_columns: b,3",
            "c.csv, line 5: missing_user_id: ,8,8",
            "d.csv, line 3: missing_columns: d,10",
        ]


# quotes ---------------------------------------------------------------------------------------------------------------


def test_quote_that_is_never_closed_spoils_no_other_line(write):
    path = write("log.csv", HEADER + 'a,b,1\n"c,d,2\ne,f,3\n"g","h",4\n')
    with open_log(path, "csv") as log:
        assert rows_of(log) == [("a", "b", 1.0), ("c", "d", 2.0), ("e", "f", 3.0), ("g", "h", 4.0)]


def test_unclosed_quote_in_a_large_file_loses_no_line(write):
    lines = [f"u{n},i{n},{n}" for n in range(50_000)]
    lines[100] = '"u100,i100,100'
    with open_log(write("log.csv", HEADER + "\n".join(lines)), "csv") as log:
        assert len(log) == 50_000


def test_line_with_an_open_quote_spoils_no_quoted_line_and_is_logged(write, caplog):
    title = ("plain", '"Title, ""part"" 7"')
    lines = [f"u{n},i{n},{title[n % 2]},{n}" for n in range(1000)]
    lines[700] = 'u700,i700,"12 inch,700'
    path = write("log.csv", "user_id,item_id,title,timestamp\n" + "\n".join(lines))
    with (
        caplog.at_level("INFO", "streamer.replay.datasets"),
        open_log(path, "csv", LogOptions(item_features=("title",))) as log,
    ):
        assert [e.items for e in log.batches()] == [[f"i{n}" for n in range(1000)]]
        titles = [f["title"] for e in log.batches() for f in e.item_features]
        assert titles[700:702] == ["12 inch", 'Title, "part" 7']
    assert caplog.messages == [
        "log.csv: the quotes in line 702 do not match, so each of its lines is read alone, which is slower"
    ]


def test_line_with_an_open_quote_that_has_other_columns_is_malformed_alone(write):
    text = HEADER + 'a,"x, y",1\nb,"12 inch, long,2\nc,"z, y",3\n"d"\ne,"v",4\n'
    with open_log(write("log.csv", text), "csv") as log:
        assert rows_of(log) == [("a", "x, y", 1.0), ("c", "z, y", 3.0), ("e", "v", 4.0)]
        assert log.malformed.examples == ['line 3: unclosed_quote: b,"12 inch, long,2', 'line 5: missing_columns: "d"']


def test_values_that_go_over_several_lines_are_kept_where_they_are_the_rule(write):
    rows = "".join(f'u{n},"i\n{n}",{n}\n' for n in range(20))
    with open_log(write("log.csv", HEADER + rows + 'u,"i\nx",5,6\n'), "csv") as log:
        assert (len(log), log.malformed.by_reason) == (20, {"too_many_columns": 1})


# bytes ----------------------------------------------------------------------------------------------------------------


def test_byte_order_mark_windows_lines_and_spaces_are_no_part_of_ids(write):
    path = write("log.csv", b"\xef\xbb\xbfuser_id,item_id,timestamp\r\n ann , x y ,1\r\n\r\nbob,z,2\r\n")
    with open_log(path, "csv") as log:
        assert rows_of(log) == [("ann", "x y", 1.0), ("bob", "z", 2.0)]
        assert log.malformed.total == 0


def test_empty_lines_before_the_header_do_not_matter(write):
    with open_log(write("log.csv", "\n\n" + HEADER + "a,b,1\n,c,2\nd,e\n"), "csv") as log:
        assert items_of(log) == ["b"]
        assert log.malformed.examples == ["line 5: missing_user_id: ,c,2", "line 6: missing_columns: d,e"]


def test_latin_1_is_read_if_the_file_is_that(write):
    text = HEADER + "José,Übermut,1\nZoë,Ärger,2\n"
    with open_log(write("log.csv", text.encode("latin-1")), "csv") as log:
        assert items_of(log) == ["Übermut", "Ärger"]


def test_utf_8_beyond_ascii_is_kept(write):
    with open_log(write("log.csv", HEADER + "李,東京 É,1\n"), "csv") as log:
        assert rows_of(log) == [("李", "東京 É", 1.0)]


@pytest.mark.parametrize(
    "time", ["1415664000", "1415664000.0", "1415664000000", "1415664000000000", "1.415664e9", "2014-11-11",
             "2014-11-11T00:00:00Z", "2014-11-11 00:00:00", "2014-11-11T08:00:00+08:00"],
)  # fmt: skip
def test_times_are_read_in_all_units_and_as_text(write, time):
    with open_log(write("log.csv", f"{HEADER}a,b,{time}\n"), "csv") as log:
        assert rows_of(log) == [("a", "b", 1415664000.0)]


def test_units_of_time_are_recognised_value_by_value(write):
    with open_log(write("log.csv", HEADER + "a,x,1415664000500\na,y,1415664000\na,z,2014-11-11T00:00:00.25Z\n")) as log:
        assert [(i, t) for _, i, t in rows_of(log)] == [("y", 1415664000.0), ("z", 1415664000.25), ("x", 1415664000.5)]
