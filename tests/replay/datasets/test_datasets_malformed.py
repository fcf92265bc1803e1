"""What real files hold besides events: each is counted, told with its line, and the rest goes on."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay.datasets import Log, LogOptions, open_log

HEADER = "user_id,item_id,timestamp\n"


def items_of(log: Log) -> list[str]:
    return [item for events in log.batches() for item in events.items]


def rows_of(log: Log) -> list[tuple[str, str, float]]:
    return [row for e in log.batches() for row in zip(e.users, e.items, e.timestamps_s, strict=True)]


# malformed lines ------------------------------------------------------------------------------------------------------


def test_each_malformed_line_is_told_with_its_number_its_reason_and_its_text(write):
    lines = ["a,1,1", "", "b,2", "c,3,3,3", ",4,4", "e, ,5", "f,6,soon", "g,7,-7", "h,8,8"]
    with open_log(write("log.csv", HEADER + "\n".join(lines)), "csv") as log:
        assert items_of(log) == ["1", "8"]
        assert log.malformed.places == [
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
def test_numbers_of_lines_are_right_in_any_mixture(write, lines, windows):
    reasons = {SHORT: "missing_columns", NO_ITEM: "missing_item_id", NOT_UTF8: "invalid_encoding"}
    plenty = [GOOD] * 300 + lines  # if a tenth of them is not UTF-8, none is meant to be
    content = (b"\r\n" if windows else b"\n").join([HEADER.strip().encode(), *plenty])
    with open_log(write("log.csv", content), "csv") as log:
        expected = [(number, reasons[line]) for number, line in enumerate(plenty, 2) if line in reasons]
        told = [(int(p.split(":")[0].removeprefix("line ")), p.split(": ")[1]) for p in log.malformed.places]
        assert told == expected[:20]
        assert log.malformed.total == len(expected)
        assert len(log) == plenty.count(GOOD)


@pytest.mark.parametrize("threads", [1, 2])
def test_numbers_of_lines_are_right_far_into_a_compressed_file(write, threads):
    rng, lines, expected = random.Random(1), [HEADER.strip()], []
    for number in range(2, 200_000):
        kind = rng.choices(["good", "short", "late"], [1, 4e-5, 4e-5])[0]
        lines.append({"good": f"user{number},item{number % 99},{number}", "short": "x,y", "late": "x,y,never"}[kind])
        if kind != "good":
            expected.append(number)
    with open_log(write("log.csv.gz", "\n".join(lines)), "csv", LogOptions(threads=threads)) as log:
        assert [int(p.split(":")[0].removeprefix("line ")) for p in log.malformed.places] == expected[:20]
        assert log.malformed.total == len(expected)


def test_only_the_first_places_are_kept(write):
    with open_log(write("log.csv", HEADER + "a,b\n" * 50 + "a,b,1\n"), "csv") as log:
        assert len(log.malformed.places) == 20
        assert log.malformed.total == 50


def test_places_in_several_files_name_the_file(write):
    write("b.csv", HEADER + "u,x,1\nu,y\n")
    path = write("a.csv", HEADER + "u,,1\nu,z,2\n")
    with open_log(path.parent / "*.csv", "csv") as log:
        assert log.malformed.places == ["a.csv, line 2: missing_item_id: u,,1", "b.csv, line 3: missing_columns: u,y"]
        assert rows_of(log) == [("u", "x", 1.0), ("u", "z", 2.0)]


def test_lines_that_are_no_json_or_no_object_are_told(write):
    lines = ['{"user_id": 1, "item_id": 2}', "{", "", "[1]", '{"user_id": 3}', '{"user_id": 4, "item_id": 5}']
    with open_log(write("log.jsonl", "\n".join(lines)), "jsonl") as log:
        assert sorted(items_of(log)) == ["2", "5"]
        assert log.malformed.places == [
            "line 2: not_json: {",
            "line 4: not_an_event: [1]",
            'line 5: missing_item_id: {"user_id": 3}',
        ]


def test_rating_that_is_none_matters_only_where_ratings_do(write):
    path = write("log.csv", "user_id,item_id,rating\na,x,5\na,y,good\na,z,\n")
    with open_log(path, "csv") as log:
        assert (len(log), log.malformed.total) == (3, 0)
    with open_log(path, "csv", LogOptions(min_rating=1)) as log:
        assert (items_of(log), log.malformed.by_reason) == (["x"], {"bad_rating": 2})


# quotes ---------------------------------------------------------------------------------------------------------------


def test_quoted_values_keep_delimiters_and_doubled_quotes(write):
    path = write("log.csv", HEADER + '"Doe, Jane","a ""b""",1\n"x",y,2\n')
    with open_log(path, "csv") as log:
        assert rows_of(log) == [("Doe, Jane", 'a "b"', 1.0), ("x", "y", 2.0)]


def test_quote_that_is_never_closed_spoils_no_other_line(write):
    path = write("log.csv", HEADER + 'a,b,1\n"c,d,2\ne,f,3\n"g","h",4\n')
    with open_log(path, "csv") as log:
        assert rows_of(log) == [("a", "b", 1.0), ("c", "d", 2.0), ("e", "f", 3.0), ("g", "h", 4.0)]


def test_number_of_lines_lost_to_an_unclosed_quote_is_none_in_a_large_file(write):
    lines = [f"u{n},i{n},{n}" for n in range(50_000)]
    lines[100] = '"u100,i100,100'
    with open_log(write("log.csv", HEADER + "\n".join(lines)), "csv") as log:
        assert len(log) == 50_000


# bytes ----------------------------------------------------------------------------------------------------------------


def test_byte_order_mark_windows_lines_and_spaces_are_no_part_of_ids(write):
    path = write("log.csv", b"\xef\xbb\xbfuser_id,item_id,timestamp\r\n ann , x y ,1\r\n\r\nbob,z,2\r\n")
    with open_log(path, "csv") as log:
        assert rows_of(log) == [("ann", "x y", 1.0), ("bob", "z", 2.0)]
        assert log.malformed.total == 0


def test_last_line_needs_no_end(write):
    with open_log(write("log.csv", HEADER + "a,b,1"), "csv") as log:
        assert items_of(log) == ["b"]


def test_empty_lines_before_the_header_do_not_matter(write):
    with open_log(write("log.csv", "\n\n" + HEADER + "a,b,1\n,c,2\nd,e\n"), "csv") as log:
        assert items_of(log) == ["b"]
        assert log.malformed.places == ["line 5: missing_user_id: ,c,2", "line 6: missing_columns: d,e"]


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


def test_units_of_time_are_told_apart_value_by_value(write):
    with open_log(write("log.csv", HEADER + "a,x,1415664000500\na,y,1415664000\na,z,2014-11-11T00:00:00.25Z\n")) as log:
        assert [(i, t) for _, i, t in rows_of(log)] == [("y", 1415664000.0), ("z", 1415664000.25), ("x", 1415664000.5)]


# compression ----------------------------------------------------------------------------------------------------------

TEXT = (HEADER + "a,x,1\nb,y,2\n").encode()


def zstd(raw: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(raw)


@pytest.mark.parametrize(
    ("ending", "compress"), [(".gz", gzip.compress), (".zst", zstd), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
@pytest.mark.parametrize("told", [True, False])
def test_compressed_files_are_read_whatever_they_are_called(tmp_path, ending, compress, told):
    path = tmp_path / ("log.csv" + (ending if told else ""))
    path.write_bytes(compress(TEXT))
    with open_log(path, "csv") as log:
        assert items_of(log) == ["x", "y"]


def test_plain_file_with_the_ending_of_a_compressed_one_is_read(tmp_path):
    (tmp_path / "log.csv.gz").write_bytes(TEXT)
    with open_log(tmp_path / "log.csv.gz") as log:
        assert items_of(log) == ["x", "y"]


def test_archive_with_one_file_is_that_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "log.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("deep/down.csv", TEXT)
    with open_log(tmp_path / "log.zip") as log:
        assert (log.name, items_of(log)) == ("csv", ["x", "y"])


def test_archive_with_several_files_yields_the_one_that_fits(tmp_path):
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        archive.writestr("ml-1/ratings.csv", "userId,movieId,rating,timestamp\n1,2,3,4\n")
        archive.writestr("ml-1/tags.csv", "userId,movieId,tag,timestamp\n1,2,nice,4\n")
        archive.writestr("ml-1/movies.csv", "movieId,title,genres\n2,Up,Animation\n")
    with open_log(tmp_path / "ml.zip") as log:
        assert (log.name, items_of(log)) == ("movielens", ["2"])
        assert next(log.batches()).item_features == [{"genres": "Animation"}]
