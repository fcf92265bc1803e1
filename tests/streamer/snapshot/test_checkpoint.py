"""Checkpoints: chains of points, torn writes at every stage, damage, the lock, what is kept, copies."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from streamer.errors import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint, Superseded
from streamer.snapshot import CheckpointStore, RowChunk, SnapshotDirectory, directory
from streamer.snapshot.frames import NO_ROWS, pack_chunk
from streamer.snapshot.lease import Lease

ROWS = 8
"""Of a state in these tests."""


def value_of(row, number):
    """What a row holds in the state of this number: state n changes the rows whose remainder is n's."""
    return max(n for n in range(number + 1) if n == 0 or (n - row) % ROWS == 0)


def save_state(store, number, base=None):
    """The state of a number shows whether it is whole, and whether every link of its chain was used."""
    base = store.wants_base if base is None else base
    rows = np.arange(ROWS) if base else np.array([row for row in range(ROWS) if value_of(row, number) == number])
    values = np.array([value_of(row, number) for row in rows.tolist()], np.float32)
    halves = [half for half in np.array_split(np.arange(len(rows)), 2) if len(half)]
    chunks = [RowChunk("items", rows[half], {"lines": np.repeat(values[half, None], 3, 1)}) for half in halves]
    return store.save(chunks, {"dense": np.full(4, number)}, {"number": number}, base=base)


def save_states(store, *numbers, base=None):
    return [save_state(store, number, base) for number in numbers]


def save_chain(store, last):
    """A base of state 0, and a delta for each state up to the last; returns all paths."""
    return [save_state(store, number, base=number == 0) for number in range(last + 1)]


def assert_is_state(checkpoint, number):
    assert checkpoint is not None
    assert checkpoint.meta == {"number": number}
    assert (checkpoint.arrays()["dense"] == number).all()
    lines = np.full((ROWS, 3), -1.0, np.float32)
    for chunk in checkpoint.chunks():
        assert chunk.kind == "items"
        lines[chunk.rows] = chunk.arrays["lines"]
    assert lines.tolist() == [[value_of(row, number)] * 3 for row in range(ROWS)]


@pytest.fixture
def store(tmp_path):
    with CheckpointStore(tmp_path / "checkpoints", keep=3) as store:
        yield store


# --- chains --------------------------------------------------------------------------------------------------


def test_the_newest_point_is_its_base_and_all_deltas(store):
    paths = save_chain(store, 3)
    assert [path.name[-8:] for path in paths] == ["001.base", "02.delta", "03.delta", "04.delta"]
    checkpoint = store.load()
    assert_is_state(checkpoint, 3)
    assert (checkpoint.path, checkpoint.number) == (paths[3], 4)
    assert [one.path for one in checkpoint.chain] == store.paths() == paths
    assert checkpoint.size_bytes == sum(path.stat().st_size for path in paths)


@pytest.mark.parametrize("number", range(4))
def test_every_point_can_be_loaded(store, number):
    save_chain(store, 3)
    assert_is_state(store.load_number(number + 1), number)


def test_a_new_base_is_wanted_when_deltas_outweigh_it(store):
    save_state(store, 0)
    for number in range(1, 10):
        assert store.wants_base == (number > 8 or sum(p.stat().st_size for p in store.paths()[1:]) > base_bytes(store))
        if store.wants_base:
            break
        save_state(store, number)
    assert 2 < number < 9
    save_state(store, number)
    assert not store.wants_base
    assert_is_state(store.load(), number)


def base_bytes(store):
    return store.paths()[0].stat().st_size


def test_a_new_base_is_wanted_when_there_are_many_deltas(store, monkeypatch):
    monkeypatch.setattr("streamer.snapshot.store.MAX_DELTAS", 1)
    save_chain(store, 1)
    assert store.wants_base


def test_a_restart_adds_to_the_chain(tmp_path):
    with CheckpointStore(tmp_path) as store:
        save_chain(store, 1)
    with CheckpointStore(tmp_path) as store:
        assert_is_state(store.load(), 1)
        assert not store.wants_base
        assert save_state(store, 2).name == "ckpt-00000000000000000003.delta"
        assert_is_state(store.load(), 2)


def test_numbers_that_are_not_finite_are_refused_by_name_and_leave_nothing(store):
    lines = np.ones((2, 2), np.float32)
    lines[1, 0] = np.nan
    with pytest.raises(CheckpointError, match="1 of 4 numbers in items/lines are not finite"):
        store.save([RowChunk("items", np.arange(2), {"lines": lines})], {}, {})
    with pytest.raises(CheckpointError, match="in dense are not finite"):
        store.save([], {"dense": np.array([np.inf])}, {})
    assert [entry.name for entry in store.directory.iterdir()] == [".lock"]


def test_numbers_whose_sum_is_not_finite_are_saved(store):
    bits = np.array([0x80000000, 0x00000001, 0x7F7FFFFF, 0x7F7FFFFF], np.uint32)
    store.save([], {"x": bits.view(np.float32)}, {})
    assert (store.load().arrays()["x"].view(np.uint32) == bits).all()


def test_a_checkpoint_can_be_read_after_its_files_are_removed(store):
    paths = save_chain(store, 2)
    checkpoint = store.load()
    for path in paths:
        path.unlink()
    assert_is_state(checkpoint, 2)


# --- damage --------------------------------------------------------------------------------------------------


DAMAGES = {
    "emptied": lambda content: b"",
    "cut by a byte": lambda content: content[:-1],
    "cut in half": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"\0",
    "zeroed": lambda content: bytes(len(content)),
    "without its last frame": lambda content: content[: content.rindex(b"STRM")],
    "without its first frame": lambda content: content[content.index(b"STRM", 4) :],
    "twice": lambda content: content + content,
}


def damaged(path, how):
    path.write_bytes(DAMAGES[how](path.read_bytes()))


@pytest.mark.parametrize("how", [*DAMAGES, "missing"])
@pytest.mark.parametrize("link", [1, 2, 3])
def test_the_newest_point_before_a_damaged_link_is_used_and_the_next_is_a_base(store, caplog, how, link):
    paths = save_chain(store, 3)
    paths[link].unlink() if how == "missing" else damaged(paths[link], how)
    with caplog.at_level(logging.WARNING):
        assert_is_state(store.load(), link - 1)
    if how != "missing" or link < 3:  # nobody can know that there was a newer one
        assert len(caplog.messages) == 1, "one for all points that need the link"
        assert paths[link].stem in caplog.text
        assert store.wants_base
    assert_goes_on_from(store, link - 1)


@pytest.mark.parametrize("how", [*DAMAGES, "missing"])
def test_a_damaged_base_makes_its_chain_unusable(store, caplog, how):
    first = save_chain(store, 1)
    second = [save_state(store, 2, base=True), save_state(store, 3)]
    second[0].unlink() if how == "missing" else damaged(second[0], how)
    assert_is_state(store.load(), 1)
    assert "Skipped" in caplog.text
    assert store.paths()[:2] == first
    assert_goes_on_from(store, 1)


def assert_goes_on_from(store, number):
    """What is saved next can be loaded."""
    save_state(store, number + 1)
    assert_is_state(store.load(), number + 1)


def test_a_single_flipped_bit_anywhere_is_noticed(store):
    for path in save_chain(store, 1):
        content = path.read_bytes()
        for position in range(len(content)):
            flipped = bytearray(content)
            flipped[position] ^= 1 << (position % 8)
            path.write_bytes(flipped)
            problems = store.verify()
            assert problems[path] is not None
        path.write_bytes(content)
    assert_is_state(store.load(), 1)


def test_a_delta_of_another_chain_is_noticed(store, tmp_path, caplog):
    """The file is whole, but it continues another base than the one that is there."""
    save_chain(store, 1)
    with CheckpointStore(tmp_path / "other") as other:
        foreign = [save_state(other, 5, base=True), save_state(other, 6)]
    shutil.copy(foreign[1], store.paths()[1])
    assert_is_state(store.load(), 0)
    assert "does not continue" in caplog.text


def test_all_corrupt_checkpoints_are_listed(store):
    paths = save_states(store, 1, 2, base=True)
    for path in paths:
        damaged(path, "emptied")
    with pytest.raises(CorruptCheckpoint, match="every checkpoint") as caught:
        store.load()
    assert all(str(path) in str(caught.value) for path in paths)


def test_a_missing_base_is_named(store):
    base, _ = save_chain(store, 1)
    base.unlink()
    with pytest.raises(CorruptCheckpoint, match=r"ckpt-0{19}1.* is missing"):
        store.load()


def test_a_checkpoint_of_another_format_is_refused_not_skipped(store):
    save_states(store, 1)
    as_before = {"format": 5, "frames": 0, "previous": None, "meta": {"settings": {}}}
    store.path(2, is_base=True).write_bytes(pack_chunk("end", NO_ROWS, {}, as_before))
    with pytest.raises(IncompatibleCheckpoint, match="format 5"):
        store.load()


def test_a_link_that_vanishes_while_we_run_makes_the_next_point_a_base(store):
    paths = save_chain(store, 1)
    paths[0].unlink()
    assert store.wants_base


# --- crashes -------------------------------------------------------------------------------------------------


def test_what_is_renamed_is_synced_before_and_the_directory_after(store, monkeypatch):
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def recorded_fsync(descriptor):
        steps.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def recorded_rename(self, target):
        steps.append(f"rename to {Path(target).name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "rename", recorded_rename)
    path = save_state(store, 1)
    assert steps == [f".tmp-{path.name}", f"rename to {path.name}", store.directory.name]


def test_leftovers_of_crashes_are_removed_at_the_next_start(tmp_path):
    (tmp_path / ".tmp-ckpt-00000000000000000003.delta").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    with CheckpointStore(tmp_path) as store:
        assert store.load() is None
        assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", "notes.txt"]


def test_a_failed_save_leaves_the_older_checkpoints_and_no_litter(store, monkeypatch):
    save_chain(store, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for base in (True, False):
            with pytest.raises(CheckpointError, match=r"No space left on device.*make room"):
                save_state(store, 2, base)
    names = [".lock", "ckpt-00000000000000000001.base", "ckpt-00000000000000000002.delta"]
    assert sorted(entry.name for entry in store.directory.iterdir()) == names
    assert_is_state(store.load(), 1)
    save_state(store, 2, base=False)
    assert_is_state(store.load(), 2)


def test_a_checkpoint_counts_as_saved_even_if_an_old_one_cannot_be_removed(store, monkeypatch, caplog):
    paths = save_states(store, 1, 2, 3, base=True)
    unlink = Path.unlink

    def refuse_old(self, missing_ok=False):
        if self == paths[0]:
            raise PermissionError(errno.EACCES, "Permission denied")
        return unlink(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse_old)
        paths += save_states(store, 4, base=True)
    assert store.paths() == paths
    assert f"Could not remove the old checkpoint {paths[0]}" in caplog.text
    paths += save_states(store, 5, base=True)
    assert store.paths() == paths[2:]


# --- what is kept --------------------------------------------------------------------------------------------


def test_only_the_newest_points_and_their_chains_are_kept(tmp_path):
    with CheckpointStore(tmp_path, keep=2) as store:
        chain = save_chain(store, 3)
        assert store.paths() == chain, "the newest two need all of it"
        later = [save_state(store, 4, base=True)]
        assert store.paths() == chain + later, "the newest delta still needs its chain"
        later.append(save_state(store, 5))
        assert store.paths() == later


def test_older_points_go_when_a_start_keeps_fewer(tmp_path):
    """A full disk is freed before the first save."""
    with CheckpointStore(tmp_path, keep=3) as before:
        paths = save_states(before, 1, 2, 3, base=True)
    SnapshotDirectory(tmp_path).load()
    assert SnapshotDirectory(tmp_path).paths() == paths, "who only reads removes nothing"
    with CheckpointStore(tmp_path, keep=1) as store:
        assert_is_state(store.load(), 3)
        assert store.paths() == paths[2:]


def test_corrupt_points_do_not_count_among_those_that_are_kept(tmp_path):
    with CheckpointStore(tmp_path, keep=2) as store:
        paths = save_states(store, 1, 2, base=True)
        damaged(paths[1], "zeroed")
        assert_is_state(store.load(), 1)
        third = save_state(store, 3, base=True)
        assert store.paths() == [*paths, third]
        fourth = save_state(store, 4, base=True)
        assert store.paths() == [third, fourth]


@pytest.mark.parametrize("keep", [0, -1])
def test_at_least_one_checkpoint_must_be_kept(tmp_path, keep):
    with pytest.raises(ValueError, match="keep"):
        CheckpointStore(tmp_path, keep=keep)


# --- copies --------------------------------------------------------------------------------------------------


def test_a_copy_is_whole_and_does_not_follow_the_original(store, tmp_path):
    save_chain(store, 2)
    reader = SnapshotDirectory(store.directory)
    reader.copy(tmp_path / "copy")
    for number in range(3, 9):
        save_state(store, number)
    with CheckpointStore(tmp_path / "copy") as copy:
        assert_is_state(copy.load(), 2)
        save_state(copy, 3)
        assert_is_state(copy.load(), 3)
    assert_is_state(store.load(), 8)


def test_what_a_trainer_removes_meanwhile_is_copied_nevertheless(store, tmp_path, monkeypatch):
    paths = save_chain(store, 2)
    reader, link = SnapshotDirectory(store.directory), os.link

    def removed_before(source, target):
        for path in paths:
            path.unlink(missing_ok=True)
        link(source, target)

    monkeypatch.setattr(os, "link", removed_before)
    reader.copy(tmp_path / "copy")
    assert_is_state(SnapshotDirectory(tmp_path / "copy").load(), 2)


def test_a_copy_is_not_mixed_with_other_checkpoints(store, tmp_path):
    save_chain(store, 1)
    store.copy(tmp_path / "copy")
    with pytest.raises(CheckpointError, match="has checkpoints already"):
        store.copy(tmp_path / "copy")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        SnapshotDirectory(tmp_path / "absent").copy(tmp_path / "other")


# --- who may write -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment", [(directory, "_write_frames"), (Lease, "check"), (directory, "sync_to_disk")], ids=lambda at: at[1]
)
def test_a_start_that_slept_while_it_saved_learns_that_a_newer_one_took_its_place(tmp_path, monkeypatch, moment):
    """It sleeps before a moment of its save; meanwhile the newer one saves, and removes what it does not keep."""
    slept, original = CheckpointStore(tmp_path, keep=1), getattr(*moment)

    def sleeping(*given, **options):
        monkeypatch.undo()
        if moment[1] == "check":
            original(*given)
        with CheckpointStore(tmp_path, keep=1, takeover_s=0.1) as newer:
            save_states(newer, 2, 3, base=True)
        if moment[1] != "check":
            original(*given, **options)

    monkeypatch.setattr(*moment, sleeping)
    is_visible = moment[1] == "sync_to_disk"
    with contextlib.nullcontext() if is_visible else pytest.raises(Superseded, match="a newer start"):
        save_state(slept, 1)
    with pytest.raises(Superseded, match="a newer start"):
        slept.beat()
    slept.close()
    assert_is_state(SnapshotDirectory(tmp_path).load(), 3)


def test_whoever_slept_before_it_removes_points_removes_nothing(tmp_path, monkeypatch):
    slept, first_of = CheckpointStore(tmp_path, keep=1), CheckpointStore._first_of

    def sleeping(*given):
        monkeypatch.undo()
        with CheckpointStore(tmp_path, keep=1, takeover_s=0.1) as newer:
            save_state(newer, 3)
        return first_of(*given)

    save_state(slept, 1)
    monkeypatch.setattr(CheckpointStore, "_first_of", sleeping)  # asked for before points are removed
    save_state(slept, 2, base=True)
    slept.close()
    assert slept.paths() == [slept.path(4, is_base=True)], "the newer one has removed them"
    with CheckpointStore(tmp_path, keep=1) as again:
        assert_is_state(again.load(), 3)


def test_a_reader_goes_on_to_the_next_when_the_trainer_removes_one_meanwhile(store, monkeypatch, caplog):
    save_states(store, 1, 2)
    reader = SnapshotDirectory(store.directory)
    points = reader.numbers() | {3: store.directory / "ckpt-00000000000000000003.delta"}
    monkeypatch.setattr(reader, "numbers", lambda: points)
    assert_is_state(reader.load(), 2)
    assert caplog.messages == []


def test_a_reader_looks_again_when_the_trainer_removed_all_it_knew(store, monkeypatch):
    reader = SnapshotDirectory(store.directory)
    save_states(store, 1)
    gone = {n: store.directory / f"ckpt-{n:020d}.base" for n in (7, 8)}
    known, points = [gone, gone, gone], reader.numbers
    monkeypatch.setattr(reader, "numbers", lambda: known.pop(0) if known else points())
    assert_is_state(reader.load(), 1)


def test_a_directory_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot use"):
        CheckpointStore(tmp_path / "file" / "checkpoints")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"a\nb"])
def test_a_file_that_holds_no_id_of_a_trainer_is_named(tmp_path, content):
    (tmp_path / "trainer-id").write_bytes(content)
    with CheckpointStore(tmp_path) as store, pytest.raises(CheckpointError, match="trainer-id does not hold"):
        assert store.trainer
