"""Which items of each user are for training and which for the test: drawn, or given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamer.errors import SourceError
from streamer.model.batch import Rows
from streamer.replay.datasets import Interactions


@dataclass(frozen=True, slots=True)
class ItemsByUser:
    """Distinct pairs of a user and an item, ascending."""

    users: Rows  # [n] user codes
    items: Rows  # [n] item codes
    user_count: int

    @classmethod
    def of(cls, users: Rows, items: Rows, user_count: int) -> ItemsByUser:
        """From pairs in any order; a pair that occurs twice counts once."""
        stride = int(items.max(initial=0)) + 1
        distinct = np.unique(users * stride + items)
        return cls(*np.divmod(distinct, stride), user_count)

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.items)

    @property
    def counts(self) -> Rows:
        """[U] the number of items of each user."""
        return np.bincount(self.users, minlength=self.user_count)

    @property
    def first(self) -> Rows:
        """[U] the place of each user's first item."""
        return np.cumsum(self.counts) - self.counts

    def lists(self) -> list[Rows]:
        """The items of each user."""
        return np.split(self.items, self.first[1:])


@dataclass(frozen=True, slots=True)
class Split:
    """Every distinct pair is either trained or tested."""

    train: ItemsByUser
    test: ItemsByUser


def split_by_user(
    users: Rows,
    items: Rows,
    user_count: int,
    test_share: float,
    rng: np.random.Generator,
) -> Split:
    """Draw each user's test items at random.

    Of n distinct items a user trains round((1 - test_share) n), at least one, and the
    rest is the test: with a share of
    0.2, users of one or two items have no test item, users of three to seven have one.
    `users` and `items` are codes, [n] each; a pair that occurs twice counts once.
    """
    distinct = ItemsByUser.of(users, items, user_count)
    owner = distinct.users
    kept = np.maximum(np.rint((1 - test_share) * distinct.counts), 1)
    order = np.lexsort((rng.random(len(owner)), owner))  # each user's pairs, shuffled
    place = np.arange(len(owner)) - distinct.first[owner]
    is_trained = place < kept[owner]

    def pairs(at: Rows) -> ItemsByUser:
        return ItemsByUser.of(owner[at], distinct.items[at], user_count)

    return Split(pairs(order[is_trained]), pairs(order[~is_trained]))


def given_split(train: Interactions, test: Interactions) -> Split:
    """The pairs of two logs; those of the test that are trained, or whose user or item
    is not, are left out.

    Raises:
        SourceError: no pair is left to test.
    """
    users = _codes(train.user_ids, test.user_ids)[test.users]
    items = _codes(train.item_ids, test.item_ids)[test.items]
    known = (users >= 0) & (items >= 0)
    stride = len(train.item_ids)
    tested = np.setdiff1d(
        users[known] * stride + items[known], train.users * stride + train.items
    )
    if not len(tested):
        raise SourceError("the test has no user and item of the log: name another one")
    count = len(train.user_ids)
    return Split(
        ItemsByUser.of(train.users, train.items, count),
        ItemsByUser.of(*np.divmod(tested, stride), count),
    )


def _codes(known: list[str], ids: list[str]) -> Rows:
    """The code of each id among the known ones; -1 for others."""
    codes = {id_: code for code, id_ in enumerate(known)}
    return np.array([codes.get(id_, -1) for id_ in ids], np.int64)
