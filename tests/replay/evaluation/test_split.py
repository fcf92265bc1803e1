from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer.replay.evaluation.split import ItemsByUser, split_by_user

USERS, ITEMS = 6, 12
PAIRS = st.lists(st.tuples(st.integers(0, USERS - 1), st.integers(0, ITEMS - 1)), max_size=60)
Pairs = list[tuple[int, int]]


def columns(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def split(pairs: Pairs, share: float = 0.2, seed: int = 0):
    return split_by_user(*columns(pairs), USERS, share, np.random.default_rng(seed))


def listed(held: ItemsByUser) -> Pairs:
    return list(zip(held.users.tolist(), held.items.tolist(), strict=True))


@given(PAIRS, st.sampled_from([0.1, 0.2, 0.5, 0.9]))
def test_every_distinct_pair_is_either_trained_or_tested(pairs, share):
    found = split(pairs, share)
    assert sorted(listed(found.train) + listed(found.test)) == sorted(set(pairs))


@given(PAIRS, st.sampled_from([0.1, 0.2, 0.5, 0.9]))
def test_a_user_trains_the_rounded_share_and_at_least_one_item(pairs, share):
    trained = split(pairs, share).train.counts
    for user in range(USERS):
        items = {i for u, i in pairs if u == user}
        assert trained[user] == (max(1, round((1 - share) * len(items))) if items else 0)


def test_the_seed_determines_the_split_and_the_order_of_the_log_does_not():
    pairs = [(u, i) for u in range(USERS) for i in range(ITEMS)]
    assert listed(split(pairs).test) == listed(split(pairs[::-1]).test)
    assert listed(split(pairs).test) != listed(split(pairs, seed=1).test)


def test_every_item_of_a_user_is_tested_equally_often():
    pairs = [(u, i) for u in range(USERS) for i in range(5)]
    tested = np.bincount(np.concatenate([split(pairs, seed=s).test.items for s in range(500)]), minlength=5)
    assert tested.sum() == 500 * USERS
    assert np.abs(tested - 100 * USERS).max() < 5 * np.sqrt(100 * USERS)  # five deviations


@given(PAIRS)
def test_lists_are_the_distinct_items_of_each_user(pairs):
    found = [items.tolist() for items in ItemsByUser.of(*columns(pairs), USERS).lists()]
    assert found == [sorted({i for u, i in pairs if u == user}) for user in range(USERS)]
