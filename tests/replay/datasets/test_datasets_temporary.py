"""Temporary directories: that of a killed process is removed, one that is in use is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamer.replay.datasets import LogSettings, open_log
from streamer.replay.datasets.database import LOCK, PREFIX, LockedDirectory, remove_abandoned

OWNER = """
import sys
from pathlib import Path
from streamer.replay.datasets.database import LockedDirectory
directory = LockedDirectory(Path(sys.argv[1]))
print(directory.path, flush=True)
input()
"""


@pytest.fixture
def owner(tmp_path: Path):
    """Another process that has a directory."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def made_by(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    (path / "spilled").mkdir()
    (path / "spilled" / "block").write_bytes(b"much")
    return path


def test_directory_of_a_killed_process_is_removed_by_the_next_log_and_no_other(owner, tmp_path, write):
    path, log = made_by(owner), write("log.csv", "user_id,item_id\na,x\n")
    unknown = tmp_path / f"{PREFIX}unknown"
    unknown.mkdir()
    with open_log(log, "csv", LogSettings(temp_dir=tmp_path)):
        assert path.exists(), "its process lives"
    owner.kill()
    owner.wait()
    assert path.exists()
    with open_log(log, "csv", LogSettings(temp_dir=tmp_path)):
        assert not path.exists()
    assert unknown.exists(), "nobody knows whether it is used"


def test_process_that_ends_leaves_nothing(owner, tmp_path):
    path = made_by(owner)
    owner.communicate("\n")
    assert not path.exists()


def test_two_directories_of_one_process_leave_each_other_alone(tmp_path):
    one, other = LockedDirectory(tmp_path), LockedDirectory(tmp_path)
    remove_abandoned(tmp_path)
    assert one.path.exists()
    assert other.path.exists()
    one.close()
    one.close()
    assert not one.path.exists()
    assert other.path.exists()
    other.close()


def test_directory_that_was_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    touch = Path.touch

    def removed_at_first(path: Path) -> None:
        touch(path)
        monkeypatch.undo()
        remove_abandoned(tmp_path)

    monkeypatch.setattr(Path, "touch", removed_at_first)
    directory = LockedDirectory(tmp_path)
    assert [path.name for path in directory.path.iterdir()] == [LOCK]
    directory.close()
    assert list(tmp_path.iterdir()) == []
