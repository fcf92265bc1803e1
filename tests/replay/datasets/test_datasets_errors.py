"""What cannot be read is reported in a sentence that helps, and leaves nothing behind."""

from __future__ import annotations

import gzip
import zipfile

import pytest
from contracts.dataset_contract import rows_of

from streamer.errors import SettingsError, SourceError, StreamerError
from streamer.replay.datasets import LogSettings, open_log

GOOD = "user_id,item_id,timestamp\na,x,1\n"
RATINGS = "196\t242\t3\t881250949\n"
MOVIE = "242|x|01-Jan-1995||url" + 19 * "|1" + "\n"
INTER = "user_id:token\titem_id:token\n1\t7\n"


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("interaction.csv", "csv", r"interaction\.csv does not exist; there is interactions\.csv, other\.txt"),
        ("nowhere/log.csv", "csv", r"there is no directory .*nowhere"),
        (".", "ta-feng", r"no file in it is named .*D11 and D12.*there is interactions\.csv, other\.txt"),
        ("x.zip", "movielens", "is an archive: unpack it first"),
        (".", "movielens", r"no file in it is named ratings\.csv or .*u\.data; there is interactions\.csv"),
    ],
)
def test_log_that_is_not_there_is_reported_with_what_is(write, path, name, message):
    where = write("interactions.csv", GOOD).parent
    write("other.txt", "hello")
    if path == "x.zip":
        with zipfile.ZipFile(where / "x.zip", "w") as archive:
            archive.writestr("a.md", "a")
    with pytest.raises(SourceError, match=message):
        open_log(where / path, name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("csv", "user_id,item_id,timestamp\n", "is empty: it has no row"),
        (None, "", "is empty"),
        (
            "csv",
            "usr_id,item_id\na,x\n",
            r"no column 'user_id' for user_id; the columns are usr_id, item_id",
        ),
        ("csv", "one\ntwo\n", "no two columns"),
        ("gowalla", "a\tb\n", r"2 columns, e\.g\. 'a\\tb'; expected"),
        ("gowalla", "1\tno\t1\t2\t3\n", r"none of its 1 rows is an event, e\.g\. row 1: bad_timestamp: 1, no"),
        ("jsonl", "[1]\n", r"none of its first lines is a JSON object: '\[1\]'"),
        ("lightgcn", "hello\n", "none of its first lines is a user and its items: 'hello'"),
        ("parquet", GOOD, r"log\.csv: it cannot be read"),
    ],
)
def test_file_of_another_format_is_reported(write, name, content, message):
    with pytest.raises(SourceError, match=message):
        open_log(write("log.csv", content), name)


@pytest.mark.parametrize("part", ["user_id", "item_id", "timestamp", "rating", "event_type"])
def test_column_that_was_named_and_is_missing_is_reported(write, part):
    with pytest.raises(SourceError, match=f"no column 'nothing' for {part}"):
        open_log(write("log.csv", GOOD), "csv", LogSettings(columns={part: "nothing"}, header=True))


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"log.csv": GOOD}, {"item_features": ("colour",)}, "no column 'colour'; the columns are user_id"),
        ({"x.inter": INTER}, {"item_features": ("colour",)}, r"no column 'colour', and no x\.item beside it"),
        ({"x.inter": INTER, "x.item": "id:token\ta:token\n7\tb\n"}, {}, r"x\.item: there is no column 'item_id'"),
        ({"u.data": RATINGS}, {"item_features": ("colour",)}, r"and no movies\.csv or movies\.dat or u\.item beside"),
        ({"u.data": RATINGS}, {"user_features": ("shoe",)}, r"no column 'shoe', and no users\.dat or u\.user beside"),
        ({"u.data": RATINGS, "u.item": MOVIE}, {"item_features": ("colour",)}, r"u\.item: there is no column 'colour'"),
    ],
)
def test_missing_feature_is_reported(write, files, options, message):
    path, *_ = [write(name, content) for name, content in files.items()]
    with pytest.raises(SourceError, match=message):
        open_log(path, None, LogSettings(**options))


def test_of_two_columns_of_one_name_the_first_counts(write):
    with open_log(write("log.csv", "user_id,item_id,item_id,note,note\na,x,y,n,n\n"), "csv") as log:
        assert rows_of(log) == [("a", "x", None)]


def test_compressed_file_that_is_cut_off_is_reported(tmp_path):
    raw = gzip.compress(("user_id,item_id\n" + "".join(f"u{n},i{n * n}\n" for n in range(50_000))).encode())
    (tmp_path / "log.csv.gz").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(SourceError, match=r"log\.csv\.gz: .* cut off"):
        open_log(tmp_path / "log.csv.gz", "csv")


def test_pattern_that_reaches_into_directories_takes_files_of_one_name(write):
    write("pat/a/part.csv", "user_id,item_id,timestamp\na,x,1\n,x,2\n")
    path = write("pat/b/part.csv", "user_id,item_id,timestamp\nb,y,3\n")
    with open_log(path.parents[1] / "*" / "part.csv", "csv") as log:
        assert rows_of(log) == [("a", "x", 1.0), ("b", "y", 3.0)]
        assert log.files == [path.parents[1] / "a" / "part.csv", path]
        assert log.malformed.examples == [f"{log.files[0]}, row 2: missing_user_id: , x, 2"]


def test_files_with_different_columns_are_reported(write):
    write("b.csv", "item_id,user_id,timestamp\nx,a,1\n")
    path = write("a.csv", GOOD)
    with pytest.raises(SourceError, match=r"different columns: b\.csv begins with 'item_id"):
        open_log(path.parent, "csv")


def test_too_little_memory_is_reported(write):
    path = write("log.csv", "user_id,item_id\n" + "".join(f"u{n},i{n}\n" for n in range(200_000)))
    with pytest.raises(StreamerError, match="memory-limit"):
        open_log(path, "csv", LogSettings(memory_limit="1MB"))


def test_memory_limit_that_is_none_is_reported(write):
    with pytest.raises(SettingsError, match="memory-limit is 'much'"):
        open_log(write("log.csv", GOOD), "csv", LogSettings(memory_limit="much"))


def test_temporary_files_are_gone_when_the_log_is_closed_and_it_may_be_closed_twice(write, tmp_path, monkeypatch):
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with open_log(write("log.csv", GOOD), "csv") as log:
        assert list(temporary.iterdir())
    assert list(temporary.iterdir()) == []
    log.close()
    for content in ("", "one\ntwo\n", "user_id,item_id\n,\n"):
        with pytest.raises(SourceError) as caught:  # keeps all that the failed call knew alive
            open_log(write("log.csv", content), "csv")
        assert list(temporary.iterdir()) == []
        assert caught.value.__traceback__ is not None
