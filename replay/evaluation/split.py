"""Which items of each user are for training and which for the test: drawn, or given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamer.errors import SourceError
from streamer.model.batch import Rows
from streamer.replay.datasets import Interactions


@dataclass(frozen=True, slots=True)
class ItemsByUser:
    """Distinct items of each user, ascending: user u has `items[first[u] : first[u +
    1]]`.
    """

    first: Rows  # [U + 1] where each user's items begin
    items: Rows  # [n] item codes

    @classmethod
    def of(cls, users: Rows, items: Rows, user_count: int) -> ItemsByUser:
        """From pairs in any order; a pair that occurs twice counts once."""
        order = np.lexsort((items, users))
        users = users[order]
        items = items[order]
        fresh = np.ones(len(users), bool)
        fresh[1:] = (users[1:] != users[:-1]) | (items[1:] != items[:-1])
        first = np.concatenate(
            [[0], np.cumsum(np.bincount(users[fresh], minlength=user_count))]
        )
        return cls(first.astype(np.int64), items[fresh])

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.items)

    @property
    def counts(self) -> Rows:
        """[U] the number of items of each user."""
        return np.diff(self.first)

    @property
    def users(self) -> Rows:
        """[n] the user of each pair."""
        return np.repeat(np.arange(len(self.first) - 1), self.counts)

    def pairs(self, users: Rows) -> tuple[Rows, Rows]:
        """All pairs of some users: the place of each one's user in `users`, and its
        item.
        """
        counts = self.counts[users]
        begins = self.first[users] - (np.cumsum(counts) - counts)
        at = np.arange(counts.sum()) + np.repeat(begins, counts)
        return np.repeat(np.arange(len(users)), counts), self.items[at]


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
    counts = distinct.counts
    owner = distinct.users
    kept = np.maximum(np.rint((1 - test_share) * counts), 1)
    order = np.lexsort((rng.random(len(owner)), owner))  # each user's pairs, shuffled
    place = np.arange(len(owner)) - distinct.first[owner]
    is_trained = place < kept[owner]

    def pairs(at: Rows) -> ItemsByUser:
        return ItemsByUser.of(owner[at], distinct.items[at], user_count)

    return Split(pairs(order[is_trained]), pairs(order[~is_trained]))


def given_split(train: Interactions, test: Interactions) -> Split:
    """The pairs of two logs; those of the test whose user or item is not trained are
    left out.

    Raises:
        SourceError: no pair is left to test.
    """
    users = _codes(train.user_ids, test.user_ids)[test.users]
    items = _codes(train.item_ids, test.item_ids)[test.items]
    known = (users >= 0) & (items >= 0)
    if not known.any():
        raise SourceError("the test has no user and item of the log: name another one")
    count = len(train.user_ids)
    return Split(
        ItemsByUser.of(train.users, train.items, count),
        ItemsByUser.of(users[known], items[known], count),
    )


def _codes(known: list[str], ids: list[str]) -> Rows:
    """The code of each id among the known ones; -1 for others."""
    codes = {id_: code for code, id_ in enumerate(known)}
    return np.array([codes.get(id_, -1) for id_ in ids], np.int64)
