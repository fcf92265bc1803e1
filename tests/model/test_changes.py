"""Changed rows: each reader gets what was marked since it last looked, in order, once."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.model.rows.changes import MAX_READERS, RowChanges


def test_each_reader_gets_what_was_marked_since_it_last_looked():
    changes, rng = RowChanges(), np.random.default_rng(0)
    readers = [changes.reader() for _ in range(3)]
    expected = [set() for _ in readers]
    for round_ in range(60):
        rows = rng.integers(0, 1 + 40 * round_, rng.integers(0, 30))
        changes.mark("items", rows)
        for seen in expected:
            seen.update(rows.tolist())
        reader = round_ % 3
        assert readers[reader].take("items").tolist() == sorted(expected[reader])
        expected[reader] = set()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1023, 1030])
def test_the_last_rows_are_found_whatever_the_size(size):
    changes = RowChanges()
    reader = changes.reader()
    changes._flags["items"] = np.full(size, 0xFF, np.uint8)
    assert reader.take("items").tolist() == list(range(size))
    assert reader.take("items").tolist() == []


def test_rows_that_are_put_back_come_again_to_that_reader_only():
    changes = RowChanges()
    ours, other = changes.reader(), changes.reader()
    changes.mark("users", np.array([4, 2]))
    ours.put_back("users", ours.take("users"))
    other.take("users")
    changes.mark("users", np.array([9]))
    assert ours.take("users").tolist() == [2, 4, 9]
    assert other.take("users").tolist() == [9]


def test_there_are_only_so_many_readers():
    changes = RowChanges()
    for _ in range(MAX_READERS):
        changes.reader()
    with pytest.raises(ValueError, match="readers of changes already"):
        changes.reader()
