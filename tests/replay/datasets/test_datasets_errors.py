"""What cannot be read is told in a sentence that helps, and leaves nothing behind."""

from __future__ import annotations

import gzip
import zipfile

import pytest

from streamer.errors import SettingsError, SourceError, StreamerError
from streamer.replay.datasets import DATASETS, LogOptions, open_log

GOOD = "user_id,item_id,timestamp\na,x,1\n"


def test_missing_file_is_told_with_names_that_are_near(write):
    path = write("interactions.csv", GOOD)
    with pytest.raises(SourceError, match=r"interaction\.csv does not exist; did you mean interactions\.csv\?"):
        open_log(path.parent / "interaction.csv", "csv")


def test_missing_file_is_told_with_what_is_there(write):
    path = write("x.csv", GOOD)
    with pytest.raises(SourceError, match=r"there is x\.csv"):
        open_log(path.parent / "something-else-entirely", "csv")


def test_missing_directory_is_told(tmp_path):
    with pytest.raises(SourceError, match=r"there is no directory .*nowhere"):
        open_log(tmp_path / "nowhere" / "log.csv", "csv")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", sorted(DATASETS.keys() - {"parquet"}))
def test_empty_file_is_told(write, name, content):
    with pytest.raises(SourceError, match="empty"):
        open_log(write("log.txt", content), name)


def test_header_alone_is_told(write):
    with pytest.raises(SourceError, match="is empty: it has no row"):
        open_log(write("log.csv", "user_id,item_id,timestamp\n"), "csv")


def test_missing_column_is_told_with_a_near_one_and_all_that_are_there(write):
    path = write("log.csv", "usr_id,item_id,when\na,x,1\n")
    with pytest.raises(
        SourceError, match=r"no column 'user_id'.* did you mean usr_id\? the columns are usr_id, item_id"
    ):
        open_log(path, "csv")


@pytest.mark.parametrize("part", ["user_id", "item_id", "timestamp", "rating", "event_type"])
def test_column_that_was_named_and_is_not_there_is_told(write, part):
    with pytest.raises(SourceError, match=f"no column 'nothing' for {part}"):
        open_log(write("log.csv", GOOD), "csv", LogOptions(columns={part: "nothing"}, header=True))


def test_two_columns_of_one_name_are_told_where_it_matters(write):
    with pytest.raises(SourceError, match=r"two columns are called 'item_id': .* item_id=2"):
        open_log(write("log.csv", "user_id,item_id,item_id\na,x,y\n"), "csv")
    with open_log(write("log.csv", "user_id,item_id,note,note\na,x,y,z\n"), "csv") as log:
        assert len(log) == 1


def test_missing_feature_is_told(write):
    with pytest.raises(SourceError, match="no column 'colour'"):
        open_log(write("log.csv", GOOD), "csv", LogOptions(item_features=("colour",)))


def test_file_of_another_format_is_told_with_its_first_line(write):
    with pytest.raises(SourceError, match=r"2 columns, e\.g\. 'a\\tb'; expected"):
        open_log(write("log.txt", "a\tb\n"), "gowalla")
    with pytest.raises(SourceError, match="no two columns"):
        open_log(write("log.csv", "one\ntwo\n"), "csv")


def test_file_in_which_no_row_is_an_event_is_told_with_an_example(write):
    path = write("log.txt", "1\tsoon\t1\t2\t3\n")
    with pytest.raises(SourceError, match=r"none of its 1 rows is an event, e\.g\. line 1: bad_timestamp: 1\tsoon"):
        open_log(path, "gowalla")


def test_compressed_file_that_is_cut_off_is_told(write, tmp_path):
    raw = gzip.compress(("user_id,item_id\n" + "".join(f"u{n},i{n * n}\n" for n in range(50_000))).encode())
    (tmp_path / "log.csv.gz").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(SourceError, match=r"log\.csv\.gz: the compressed file is cut off or damaged"):
        open_log(tmp_path / "log.csv.gz", "csv")


def test_archive_without_a_fitting_file_is_told_with_its_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.md", "a")
        archive.writestr("b.md", "b")
    with pytest.raises(SourceError, match=r"no file in it is named u\.data|ratings\.csv.*there is a\.md, b\.md"):
        open_log(tmp_path / "x.zip", "movielens")
    with pytest.raises(SourceError, match="cannot be guessed"):
        open_log(tmp_path / "x.zip")


def test_directory_without_a_fitting_file_is_told_with_its_files(write):
    path = write("readme.txt", "hello")
    write("other.txt", "hello")
    with pytest.raises(SourceError, match=r"no file in it is named .*D11 and D12.*there is other\.txt, readme\.txt"):
        open_log(path.parent, "ta-feng")


def test_pattern_that_reaches_into_directories_takes_files_of_one_name(write):
    write("pat/a/part.csv", "user_id,item_id,timestamp\na,x,1\n,x,2\n")
    path = write("pat/b/part.csv", "user_id,item_id,timestamp\nb,y,3\n")
    with open_log(path.parents[1] / "*" / "part.csv", "csv") as log:
        assert [user for events in log.batches() for user in events.users] == ["a", "b"]
        assert log.files == [path.parents[1] / "a" / "part.csv", path]
        assert log.malformed.places == ["a/part.csv, line 3: missing_user_id: ,x,2"]


def test_files_with_different_columns_are_told(write):
    write("b.csv", "item_id,user_id,timestamp\nx,a,1\n")
    path = write("a.csv", GOOD)
    with pytest.raises(SourceError, match=r"different columns: b\.csv begins with 'item_id"):
        open_log(path.parent, "csv")


def test_parquet_that_is_none_is_told(write):
    with pytest.raises(SourceError, match=r"log\.parquet: it cannot be read"):
        open_log(write("log.parquet", GOOD), "parquet")


def test_too_little_memory_is_told(write):
    path = write("log.csv", "user_id,item_id\n" + "".join(f"u{n},i{n}\n" for n in range(200_000)))
    with pytest.raises(StreamerError, match="memory_limit"):
        open_log(path, "csv", LogOptions(memory_limit="1MB"))


def test_place_for_temporary_files_that_is_none_is_told(write):
    path = write("log.csv", GOOD)
    with pytest.raises(SettingsError, match="temp_dir"):
        open_log(path, "csv", LogOptions(temp_dir=path.parent / "nowhere"))


@pytest.fixture
def temporary(tmp_path):
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


def test_temporary_files_are_gone_when_the_log_is_closed(write, temporary):
    with open_log(write("log.csv", GOOD), "csv", LogOptions(temp_dir=temporary)):
        assert list(temporary.iterdir())
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("content", ["", "one\ntwo\n", "user_id,item_id\n,\n"])
def test_temporary_files_are_gone_when_the_log_cannot_be_opened(write, temporary, content):
    with pytest.raises(SourceError) as caught:  # keeps all that the failed call knew alive
        open_log(write("log.csv", content), "csv", LogOptions(temp_dir=temporary))
    assert list(temporary.iterdir()) == []
    assert caught.value.__traceback__ is not None


def test_log_may_be_closed_twice(write):
    log = open_log(write("log.csv", GOOD), "csv")
    log.close()
    log.close()
