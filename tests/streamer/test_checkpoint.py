"""Checkpoints: round trips, torn writes at every stage, damage, the lock, what is kept."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamer.checkpoint import CheckpointStore, pack_strings, unpack_strings
from streamer.checkpoint.files import read_files
from streamer.errors import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint

STATE, META, MANIFEST = "state.safetensors", "meta.json", "manifest.json"


def state(number):
    """A state that shows whether it is whole: every value is the number."""
    return {"weights": torch.full((5, 3), float(number)), "rows": np.full(4, number)}, {"number": number}


def assert_is_state(checkpoint, number):
    assert checkpoint is not None
    assert checkpoint.meta == {"number": number}
    assert checkpoint.tensors.keys() == {"weights", "rows"}
    assert (checkpoint.tensors["weights"] == number).all()
    assert (checkpoint.tensors["rows"] == number).all()


@pytest.fixture
def store(tmp_path):
    with CheckpointStore(tmp_path / "checkpoints") as store:
        yield store


def save_states(store, *numbers):
    return [store.save(*state(number)) for number in numbers]


# --- round trips ---------------------------------------------------------------------------------------------


def test_a_new_directory_has_no_checkpoint(store):
    assert store.load() is None
    assert store.list() == []


def test_the_newest_checkpoint_is_loaded(store):
    first, second = save_states(store, 1, 2)
    checkpoint = store.load()
    assert_is_state(checkpoint, 2)
    assert (checkpoint.path, checkpoint.sequence) == (second, 2)
    assert store.list() == [first, second]
    assert second.name == "ckpt-00000000000000000002"


def test_meta_comes_back_as_json(store):
    meta = {
        "offsets": {"t[0]": 2**60},
        "none": None,
        "text": "ü \ud800 \x00",
        "list": [1, 2.5, True],
        "deep": {"a": {}},
    }
    store.save({}, meta)
    assert store.load().meta == meta
    assert store.load().tensors == {}


def test_meta_that_is_not_json_is_refused_and_leaves_nothing(store):
    with pytest.raises(CheckpointError, match="must be JSON"):
        store.save({}, {"bad": object()})
    assert store.list() == []
    assert [entry.name for entry in store.directory.iterdir()] == [".lock"]


numpy_dtypes = st.sampled_from(
    ["float32", "float64", "float16", "int64", "int32", "uint8", "bool", ">f4", ">i8", "uint32"]
)
arrays = numpy_dtypes.flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=hnp.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False),
    )
)


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=8), arrays, max_size=5))
def test_arrays_of_any_shape_come_back_bit_for_bit(tensors):
    with tempfile.TemporaryDirectory() as directory, CheckpointStore(directory) as store:
        store.save(tensors, {})
        loaded = store.load().tensors
    assert loaded.keys() == tensors.keys()
    for name, array in tensors.items():
        expected = array.astype(array.dtype.newbyteorder("="))
        assert isinstance(loaded[name], np.ndarray)
        assert (loaded[name].dtype, loaded[name].shape) == (expected.dtype, expected.shape)
        assert loaded[name].tobytes() == expected.tobytes()
        assert loaded[name].flags.writeable


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool],
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 5)])
def test_tensors_of_any_type_come_back_as_tensors(store, dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    store.save({"x": tensor}, {})
    loaded = store.load().tensors["x"]
    assert isinstance(loaded, torch.Tensor)
    assert (loaded.dtype, loaded.shape) == (dtype, tensor.shape)
    assert torch.equal(loaded, tensor)


def test_special_values_keep_their_bits(store):
    """Minus zero, the smallest number, and the largest, the sum of which is infinite."""
    bits = np.array([0x80000000, 0x00000001, 0x7F7FFFFF, 0x7F7FFFFF], dtype=np.uint32)
    store.save({"x": torch.from_numpy(bits.view(np.float32))}, {})
    assert (store.load().tensors["x"].numpy().view(np.uint32) == bits).all()


def test_views_and_shared_memory_are_saved_as_what_they_show(store):
    base = torch.arange(24.0).reshape(4, 6)
    array = np.arange(12).reshape(3, 4)
    tensors = {
        "base": base,
        "same": base,
        "row": base[1],
        "transposed": base.T,
        "every other": base[:, ::2],
        "expanded": torch.ones(1, 3).expand(2, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "array": array,
        "columns": array[:, 1:3],
        "turned": array.T,
        "readonly": np.broadcast_to(np.int64(7), (2, 2)),
    }
    store.save(tensors, {})
    loaded = store.load().tensors
    for name, value in tensors.items():
        shown = value.detach().numpy() if isinstance(value, torch.Tensor) else value
        assert np.array_equal(np.asarray(loaded[name]), shown)
        assert type(loaded[name]) is (np.ndarray if isinstance(value, np.ndarray) else torch.Tensor)


def test_an_array_of_objects_is_refused_by_name(store):
    with pytest.raises(CheckpointError, match="'ids' of dtype object"):
        store.save({"ids": np.array(["a", None], dtype=object)}, {})
    assert store.load() is None


def test_the_state_is_a_plain_safetensors_file(store):
    path = store.save(*state(3))
    assert torch.equal(safetensors.torch.load_file(path / STATE)["weights"], torch.full((5, 3), 3.0))


def test_loaded_tensors_do_not_depend_on_the_files(store):
    [path] = save_states(store, 1)
    loaded = store.load()
    (path / STATE).write_bytes(bytes((path / STATE).stat().st_size))
    assert_is_state(loaded, 1)


# --- damage --------------------------------------------------------------------------------------------------


def damaged(path, name, how):
    content = (path / name).read_bytes()
    (path / name).write_bytes(how(content))


DAMAGES = {
    "emptied": lambda content: b"",
    "cut by a byte": lambda content: content[:-1],
    "cut in half": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"\0",
    "zeroed": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("name", [STATE, META, MANIFEST])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(store, caplog, name, how):
    _, second = save_states(store, 1, 2)
    damaged(second, name, DAMAGES[how])
    with caplog.at_level(logging.WARNING):
        assert_is_state(store.load(), 1)
    assert len(caplog.messages) == 1
    assert str(second) in caplog.text


@pytest.mark.parametrize("name", [STATE, META, MANIFEST])
def test_a_missing_file_is_noticed(store, caplog, name):
    _, second = save_states(store, 1, 2)
    (second / name).unlink()
    assert_is_state(store.load(), 1)
    assert name in caplog.text


@pytest.mark.parametrize("name", [STATE, META, MANIFEST])
def test_a_single_flipped_bit_anywhere_is_noticed(store, name):
    [path] = save_states(store, 7)
    content = (path / name).read_bytes()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        (path / name).write_bytes(flipped)
        with pytest.raises(CorruptCheckpoint):
            store.load()
    (path / name).write_bytes(content)
    assert_is_state(store.load(), 7)


def test_files_of_two_checkpoints_do_not_mix(store, tmp_path):
    first, second = save_states(store, 1, 2)
    shutil.copy(first / META, second / META)
    assert_is_state(store.load(), 1)


def test_all_corrupt_checkpoints_are_listed(store):
    paths = save_states(store, 1, 2)
    damaged(paths[0], META, DAMAGES["emptied"])
    (paths[1] / STATE).unlink()
    with pytest.raises(CorruptCheckpoint, match="every checkpoint") as caught:
        store.load()
    assert all(str(path) in str(caught.value) for path in paths)


def test_an_empty_checkpoint_directory_is_corrupt(store):
    save_states(store, 1)
    (store.directory / "ckpt-00000000000000000009").mkdir()
    assert_is_state(store.load(), 1)


def test_a_checkpoint_of_a_newer_format_is_refused_not_skipped(store, monkeypatch):
    save_states(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr("streamer.checkpoint.files.FORMAT", 2)
        save_states(store, 2)
    with pytest.raises(IncompatibleCheckpoint, match="format 2"):
        store.load()


# --- crashes -------------------------------------------------------------------------------------------------


def test_a_crash_at_any_step_of_a_save_leaves_the_old_state_or_the_new(store, tmp_path, monkeypatch):
    """The directory is copied before each sync, rename and removal: what a crash there would leave."""
    save_states(store, 1, 2, 3)
    copies: list[Path] = []

    def copying(function):
        def wrapped(*args, **kwargs):
            copies.append(tmp_path / f"crash-{len(copies)}")
            shutil.copytree(store.directory, copies[-1])
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", copying(os.fsync))
        patch.setattr(Path, "rename", copying(Path.rename))
        patch.setattr(os, "unlink", copying(os.unlink))
        save_states(store, 4)
    found = set()
    for copy in copies:
        with CheckpointStore(copy) as crashed:
            checkpoint = crashed.load()
            found.add(checkpoint.meta["number"])
            assert_is_state(checkpoint, checkpoint.meta["number"])
            assert not list(copy.glob(".tmp-*"))
            assert all(read_files(path) for path in crashed.list()), "older ones are whole, too"
            assert_is_state_after_next_save(crashed)
    assert found == {3, 4}
    assert len(copies) >= 8


def assert_is_state_after_next_save(store):
    save_states(store, 99)
    assert_is_state(store.load(), 99)


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
    path = store.save(*state(1))
    assert steps == [STATE, META, MANIFEST, f".tmp-{path.name}", f"rename to {path.name}", store.directory.name]


KILLED_WHILE_SAVING = """
import os, random, signal, sys, time
import numpy as np, torch
from streamer.checkpoint import CheckpointStore, pack_strings, unpack_strings

directory, rounds = sys.argv[1], int(sys.argv[2])
randomness = random.Random(3)

def state(number):
    strings = pack_strings([str(number)] * 2000, "ids")
    return {"w": torch.full((200, 50), float(number)), "a": np.full(3000, number), **strings}, {"number": number}

def check(checkpoint):
    number = checkpoint.meta["number"]
    assert (checkpoint.tensors["w"] == number).all() and (checkpoint.tensors["a"] == number).all()
    assert set(unpack_strings(checkpoint.tensors, "ids")) == {str(number)}
    return number

last = 0
for round_ in range(rounds):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        store, number = CheckpointStore(directory, keep=2), last
        while True:
            number += 1
            store.save(*state(number))
            os.write(writing, number.to_bytes(8, "big"))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read(8 * randomness.randrange(4))  # killed in its first save, its second, ...
        time.sleep(randomness.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        told += pipe.read()
    os.waitpid(child, 0)
    durable = int.from_bytes(told[-8:], "big") if told else last
    with CheckpointStore(directory, keep=2) as store:
        checkpoint = store.load()
        if checkpoint is not None:
            number = check(checkpoint)
            assert durable <= number <= durable + 1, (durable, number)
            last = number
        assert not [name for name in os.listdir(directory) if name.startswith(".tmp-")]
        assert len(store.list()) <= 3
assert last > rounds, last
"""


@pytest.mark.slow
def test_killed_at_random_moments_a_saver_leaves_a_whole_and_recent_state(tmp_path):
    command = [sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path / "checkpoints"), "30"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "skipped" not in result.stderr, "a kill must not even leave a corrupt checkpoint"


def test_leftovers_of_crashes_are_removed_at_the_next_start(tmp_path):
    for name in (".tmp-ckpt-00000000000000000003", ".tmp-removed-ckpt-00000000000000000001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / STATE).write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    with CheckpointStore(tmp_path) as store:
        assert store.load() is None
        assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", "notes.txt"]


def test_a_failed_save_leaves_the_older_checkpoints_and_no_litter(store, monkeypatch):
    save_states(store, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"No space left on device.*Check free space"):
            store.save(*state(2))
    assert sorted(entry.name for entry in store.directory.iterdir()) == [".lock", "ckpt-00000000000000000001"]
    assert_is_state(store.load(), 1)


def test_a_full_disk_is_freed_of_older_checkpoints_before_the_first_save(tmp_path):
    with CheckpointStore(tmp_path, keep=3) as before:
        paths = save_states(before, 1, 2, 3)
    with CheckpointStore(tmp_path, keep=1, readonly=True) as reader:
        reader.load()
        assert reader.list() == paths
    with CheckpointStore(tmp_path, keep=1) as store:
        assert_is_state(store.load(), 3)
        assert store.list() == paths[2:]


def test_a_corrupt_newest_checkpoint_does_not_push_out_the_sound_one_before_it(tmp_path):
    with CheckpointStore(tmp_path, keep=3) as before:
        paths = save_states(before, 1, 2, 3)
    (paths[2] / STATE).write_bytes(b"half")
    with CheckpointStore(tmp_path, keep=1) as store:
        assert_is_state(store.load(), 2)
        assert store.list() == paths[1:]


def test_a_checkpoint_counts_as_saved_even_if_an_old_one_cannot_be_removed(store, monkeypatch, caplog):
    paths = save_states(store, 1, 2, 3)
    rename = Path.rename

    def refuse_old(self, target):
        if self == paths[0]:
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse_old)
        paths += save_states(store, 4)
    assert store.list() == paths
    assert f"{paths[0]} cannot be removed" in caplog.text
    paths += save_states(store, 5)
    assert store.list() == paths[2:]


# --- what is kept, and who may write -------------------------------------------------------------------------


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    with CheckpointStore(tmp_path, keep=2) as store:
        paths = save_states(store, 1, 2, 3, 4)
        assert store.list() == paths[2:]


def test_numbers_go_on_after_a_new_start(tmp_path):
    with CheckpointStore(tmp_path) as store:
        save_states(store, 1, 2)
    with CheckpointStore(tmp_path) as store:
        assert store.save(*state(3)).name == "ckpt-00000000000000000003"


def test_corrupt_checkpoints_do_not_count_among_those_that_are_kept(tmp_path):
    with CheckpointStore(tmp_path, keep=2) as store:
        paths = save_states(store, 1, 2)
        damaged(paths[1], STATE, DAMAGES["zeroed"])
        assert_is_state(store.load(), 1)
        third = store.save(*state(3))
        assert store.list() == [*paths, third]
        fourth = store.save(*state(4))
        assert store.list() == [third, fourth]


@pytest.mark.parametrize("keep", [0, -1])
def test_at_least_one_checkpoint_must_be_kept(tmp_path, keep):
    with pytest.raises(ValueError, match="keep"):
        CheckpointStore(tmp_path, keep=keep)


def test_two_trainers_cannot_share_a_directory(tmp_path):
    with (
        CheckpointStore(tmp_path),
        pytest.raises(CheckpointError, match=rf"another process \(pid {os.getpid()}\) uses .*Stop it, or choose"),
    ):
        CheckpointStore(tmp_path)
    CheckpointStore(tmp_path).close()


def test_the_second_trainer_does_not_touch_what_the_first_is_writing(tmp_path):
    with CheckpointStore(tmp_path):
        (tmp_path / ".tmp-ckpt-00000000000000000001").mkdir()
        with pytest.raises(CheckpointError, match="another process"):
            CheckpointStore(tmp_path)
        assert (tmp_path / ".tmp-ckpt-00000000000000000001").exists()


def test_a_store_may_be_closed_twice(tmp_path):
    store = CheckpointStore(tmp_path)
    store.close()
    store.close()


def test_a_readonly_store_reads_beside_a_trainer_and_creates_nothing(tmp_path, store):
    save_states(store, 5)
    assert_is_state(CheckpointStore(store.directory, readonly=True).load(), 5)
    assert CheckpointStore(tmp_path / "absent", readonly=True).load() is None
    assert not (tmp_path / "absent").exists()


def test_a_readonly_store_goes_on_to_the_next_when_the_trainer_removes_one_meanwhile(store, monkeypatch, caplog):
    save_states(store, 1, 2)
    reader = CheckpointStore(store.directory, readonly=True)
    sequences = reader._sequences()
    monkeypatch.setattr(reader, "_sequences", lambda: [*sequences, 3])
    assert_is_state(reader.load(), 2)
    assert caplog.messages == []


def test_a_readonly_store_looks_again_when_the_trainer_removed_all_it_knew(store, monkeypatch):
    reader = CheckpointStore(store.directory, readonly=True)
    save_states(store, 1)
    known = [[7, 8], reader._sequences()]
    monkeypatch.setattr(reader, "_sequences", lambda: known.pop(0))
    assert_is_state(reader.load(), 1)


def test_a_directory_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot use"):
        CheckpointStore(tmp_path / "file" / "checkpoints")


# --- strings -------------------------------------------------------------------------------------------------

any_text = st.text(st.characters(codec=None, categories=None), max_size=6)


@given(st.lists(any_text | st.sampled_from(["", "\ud800", "\udc00", "\ud83d\ude00", "\x00", "ascii", "ü"])))
def test_any_strings_come_back(strings):
    packed = pack_strings(strings, "ids")
    assert {name: array.dtype for name, array in packed.items()} == {"ids.utf8": np.uint8, "ids.offsets": np.int64}
    assert unpack_strings(packed, "ids") == strings


def test_strings_survive_a_checkpoint_beside_others(store):
    users, items = ["u1", "", "ü", "\ud800"], [str(n) for n in range(100)]
    store.save({**pack_strings(users, "users"), **pack_strings(items, "items"), **pack_strings([], "none")}, {})
    tensors = store.load().tensors
    assert unpack_strings(tensors, "users") == users
    assert unpack_strings(tensors, "items") == items
    assert unpack_strings(tensors, "none") == []


def test_strings_are_unpacked_from_tensors_too():
    tensors = {name: torch.from_numpy(array.copy()) for name, array in pack_strings(["a", "bc"], "ids").items()}
    assert unpack_strings(tensors, "ids") == ["a", "bc"]


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"utf8": np.zeros(3, np.uint8)},
        {"utf8": np.zeros(3, np.uint8), "offsets": np.zeros(0, np.int64)},
        {"utf8": np.zeros(3, np.uint8), "offsets": np.array([0, 2])},
        {"utf8": np.zeros(3, np.uint8), "offsets": np.array([1, 3])},
        {"utf8": np.zeros(3, np.uint8), "offsets": np.array([0, 5, 3])},
        {"utf8": np.array([0xFF], np.uint8), "offsets": np.array([0, 1])},
    ],
)
def test_arrays_that_are_no_packed_strings_are_refused(tensors):
    with pytest.raises(CorruptCheckpoint):
        unpack_strings({f"ids.{name}": array for name, array in tensors.items()}, "ids")


def test_the_manifest_names_sizes_and_checksums(store):
    path = store.save(*state(1))
    manifest = json.loads((path / MANIFEST).read_text())
    assert manifest["format"] == 1
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == {
        name: (path / name).stat().st_size for name in (STATE, META)
    }
