"""Malformed lines and rows are counted and shown; a file that is damaged as a whole is an error."""

from __future__ import annotations

import pytest
from contracts.dataset_contract import rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.errors import SourceError
from streamer.replay.datasets import LogSettings, open_log

HEADER = "user_id,item_id,timestamp\n"
LONGEST = "ü" * 256
CASES: dict[str, tuple[str | bytes, list[tuple[str, str, float]], list[str]]] = {
    "malformed lines": (
        "a,1,1\n\nb,2\nc,3,3,3\n,4,4\ne, ,5\nf,6,soon\ng,7,-7\nh,8,8\n",
        [("a", "1", 1), ("h", "8", 8)],
        [
            "line 4: missing_columns: b,2",
            "line 5: too_many_columns: c,3,3,3",
            "row 2: missing_user_id: , 4, 4",
            "row 3: missing_item_id: e,  , 5",
            "row 4: bad_timestamp: f, 6, soon",
            "row 5: bad_timestamp: g, 7, -7",
        ],
    ),
    "ids that are too long for an event": (
        f"{LONGEST},{LONGEST},1\n{LONGEST}x,i,2\nu,{LONGEST}x,3\n",
        [(LONGEST, LONGEST, 1)],
        [f"row 2: id_too_long: {80 * 'ü'}", f"row 3: id_too_long: u, {77 * 'ü'}"],
    ),
    "quotes within a line that do not match": (
        'a,b,1\nc,"12 in" x,2\ne,f,3\n',
        [("a", "b", 1), ("e", "f", 3)],
        ['line 3: unquoted_value: c,"12 in" x,2'],
    ),
    "values that span lines, as a rule": (
        "".join(f'u{n},"i\n{n}",{n}\n' for n in range(20)) + 'u,"i\nx",5,6\n',
        [(f"u{n}", f"i\n{n}", n) for n in range(20)],
        ['line 22: too_many_columns: u,"i\nx",5,6'],
    ),
    "spaces": (" ann , x y ,1\n\nbob,z,2\n", [("ann", "x y", 1), ("bob", "z", 2)], []),
    "Latin-1": ("José,Übermut,1\nZoë,Ärger,2\n".encode("latin-1"), [("José", "Übermut", 1), ("Zoë", "Ärger", 2)], []),
    "UTF-8": ("李,東京 É,1\n", [("李", "東京 É", 1)], []),
}


@pytest.mark.parametrize("case", CASES)
def test_file_is_read_as_far_as_possible(write, case):
    lines, rows, examples = CASES[case]
    raw = HEADER.encode() + (lines.encode() if isinstance(lines, str) else lines)
    with open_log(write("log.csv", raw), "csv") as log:
        assert rows_of(log) == rows
        assert log.malformed.examples == examples
        assert log.describe()["malformed"] == log.malformed.total >= len(examples)


GOOD = b"u,i,7"
REASONS = {
    b"u,i": "missing_columns",
    b"u,,7": "missing_item_id",
    b"u,i,7,8": "too_many_columns",
    b"u,\xff,7": "invalid_encoding",
}
LINES = st.lists(st.sampled_from([GOOD, GOOD, b"", *REASONS]), max_size=25)


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@given(LINES)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_all_are_found_in_any_mixture_however_lines_end(write, end, lines):
    # lines are taken for Latin-1 if more of the first 1,000 are that than UTF-8 beyond ASCII
    plenty = ["ü,i,7".encode()] * 50 + [GOOD] * 300 + lines
    content = b"".join(line + end for line in [HEADER.strip().encode(), *plenty])
    with open_log(write("log.csv", content), "csv") as log:
        rejected = [(n, REASONS[line]) for n, line in enumerate(plenty, 2) if line in REASONS and line != b"u,,7"]
        rows = [line for line in plenty if line and line.count(b",") == 2 and b"\xff" not in line]
        bad = [n for n, line in enumerate(rows, 1) if line == b"u,,7"]
        expected = [f"line {n}: {reason}" for n, reason in rejected] + [f"row {n}: missing_item_id" for n in bad]
        assert [": ".join(example.split(": ")[:2]) for example in log.malformed.examples] == expected[:20]
        assert log.malformed.total == len(expected)
        assert len(log) == 50 + plenty.count(GOOD)


def test_only_the_first_examples_are_kept(write):
    with open_log(write("log.csv", HEADER + "a,b\n" * 50 + "a,b,1\n"), "csv") as log:
        assert (len(log.malformed.examples), log.malformed.total) == (20, 50)


def test_byte_order_mark_is_no_part_of_the_header(write):
    with open_log(write("log.csv", b"\xef\xbb\xbf" + HEADER.encode() + b"a,b,1\n")) as log:
        assert rows_of(log) == [("a", "b", 1.0)]


def test_empty_lines_before_the_header_count_as_lines(write):
    with open_log(write("log.csv", "\n\n" + HEADER + "a,b,1\n,c,2\nd,e\n"), "csv") as log:
        assert log.malformed.examples == ["line 6: missing_columns: d,e", "row 2: missing_user_id: , c, 2"]


def test_rating_that_is_not_a_number_matters_only_where_ratings_do(write):
    path = write("log.csv", "user_id,item_id,rating\na,x,5\na,y,good\na,z,\n")
    with open_log(path, "csv") as log:
        assert (len(log), log.malformed.total) == (3, 0)
    with open_log(path, "csv", LogSettings(min_rating=1)) as log:
        assert (rows_of(log), log.malformed.by_reason) == ([("a", "x", None)], {"bad_rating": 2})


def test_one_of_several_files_may_have_malformed_lines(write):
    write("a.csv", HEADER + "a,1,1\n")
    write("b.csv", (HEADER + "b,2,2\nb,3\nb,4,4\n").replace("\n", "\r\n"))
    path = write("d.csv", HEADER + "d,9,9\n,10,10\n")
    with open_log(path.parent / "*.csv", "csv") as log:
        assert [item for _, item, _ in rows_of(log)] == ["1", "2", "4", "9"]
        assert log.malformed.examples == [
            f"{path.parent}/b.csv, line 3: missing_columns: b,3",
            f"{path}, row 2: missing_user_id: , 10, 10",
        ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a,1,1\r\nb,2,2\n", "log.csv: its lines end in different ways: make them alike"),
        ('a,b,1\nc,"d,2\ne,f,3\ng,"h",4\n', "log.csv: the quotes in line 3 do not match: correct it, or"),
        ('a,b,1\nc,"d,2\ne,f,3\n', "the quotes in line 3 do not match"),
    ],
)
def test_damage_that_would_lose_further_lines_is_an_error(write, lines, message):
    with pytest.raises(SourceError, match=message):
        open_log(write("log.csv", HEADER + lines), "csv")
    if "quotes" in message:
        with open_log(write("log.csv", HEADER + lines), "tsv", LogSettings(delimiter=",")) as log:
            assert len(log) == lines.count("\n")


def test_times_are_read_in_all_units_and_as_text(write):
    numbers = ["1415664000", "1415664000.0", "1415664000000", "1415664000000000", "1.415664e9"]
    texts = ["2014-11-11", "2014-11-11T00:00:00Z", "2014-11-11 00:00:00", "2014-11-11T08:00:00+08:00"]
    later = ["2014-11-11T00:00:00.25Z", "1415664000500"]
    rows = "".join(f"a,b,{time}\n" for time in [*numbers, *texts, *later])
    with open_log(write("log.csv", HEADER + rows), "csv") as log:
        assert [time for *_, time in rows_of(log)] == [1415664000.0] * 9 + [1415664000.25, 1415664000.5]
