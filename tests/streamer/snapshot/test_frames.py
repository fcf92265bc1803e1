"""Frames: any arrays come back bit for bit, and no bit can change unnoticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamer.errors import CheckpointError, CorruptCheckpoint
from streamer.snapshot.frames import HEADER, NO_ROWS, pack_chunk, unpack_chunk

dtypes = st.sampled_from(["float32", "float64", "float16", "int64", "int32", "uint8", "bool", ">f4", ">i8", "uint32"])
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=hnp.from_dtype(np.dtype(dtype)),
    )
)


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=8).filter(lambda name: name != "rows"), arrays, max_size=5), st.booleans())
def test_arrays_of_any_shape_come_back_bit_for_bit(named, compress):
    rows = np.array([3, 5, 2**40])
    chunk = unpack_chunk(bytearray(pack_chunk("items", rows, named, compress=compress)))
    assert (chunk.kind, chunk.rows.tolist(), chunk.values) == ("items", rows.tolist(), {})
    assert chunk.arrays.keys() == named.keys()
    for name, array in named.items():
        expected = array.astype(array.dtype.newbyteorder("="))
        found = chunk.arrays[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
        assert found.flags.writeable


def test_views_are_packed_as_what_they_show():
    base = np.arange(12).reshape(3, 4)
    shown = {"columns": base[:, 1:3], "turned": base.T, "readonly": np.broadcast_to(np.int64(7), (2, 2))}
    found = unpack_chunk(pack_chunk("users", NO_ROWS, shown)).arrays
    assert all(np.array_equal(found[name], array) for name, array in shown.items())


def test_values_come_back_as_json():
    values = {"none": None, "text": "ü \ud800 \x00", "list": [1, 2.5, True], "deep": {"a": {}}, "large": 2**60}
    assert unpack_chunk(pack_chunk("end", NO_ROWS, {}, values)).values == values


def test_what_cannot_be_stored_is_refused_by_name():
    with pytest.raises(CheckpointError, match="'ids' of dtype object"):
        pack_chunk("users", NO_ROWS, {"ids": np.array(["a", None], dtype=object)})
    with pytest.raises(CheckpointError, match="must be JSON"):
        pack_chunk("end", NO_ROWS, {}, {"bad": object()})


@pytest.mark.parametrize("compress", [False, True])
def test_a_single_flipped_bit_anywhere_is_noticed(compress):
    lines = {"lines": np.ones((2, 3), np.float32)}
    frame = pack_chunk("items", np.array([1, 2]), lines, {"a": 1}, compress=compress)
    for position in range(len(frame)):
        flipped = bytearray(frame)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptCheckpoint):
            unpack_chunk(flipped)
    assert unpack_chunk(frame).values == {"a": 1}


def test_a_compressed_frame_takes_less():
    rows = np.arange(100_000, 101_000)  # few of their bytes differ
    assert len(pack_chunk("items", rows, {}, compress=True)) < len(pack_chunk("items", rows, {})) / 4


@pytest.mark.parametrize("cut", [0, 1, HEADER.size - 1, HEADER.size, 40, -1])
def test_a_frame_that_was_cut_is_noticed(cut):
    frame = pack_chunk("items", np.array([1, 2]), {"lines": np.ones((2, 3), np.float32)})
    with pytest.raises(CorruptCheckpoint):
        unpack_chunk(frame[:cut])
    with pytest.raises(CorruptCheckpoint):
        unpack_chunk(frame + b"\0")
