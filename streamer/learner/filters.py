"""Which items may be recommended: those that match a filter, and that the catalogue
neither hides nor makes available at another time.

    filter = "ATTRIBUTE:TEXT" | "ATTRIBUTE<NUMBER", also <=, > and >=
           | [filter, ...] | {"and": [filter, ...]} | {"or": [filter, ...]}
           | {"not": filter}

A filter becomes a mask of all rows of items, which is kept until an item changes. An
item without an attribute matches nothing that is said of it.
"""

from __future__ import annotations

import operator
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamer.errors import FilterError
from streamer.learner.features import exact_number
from streamer.learner.state import LABELS, State
from streamer.model.batch import Bools, Rows
from streamer.model.settings import (
    AVAILABLE_FROM,
    AVAILABLE_UNTIL,
    HIDDEN,
    PINNED,
    RULE_TIMES,
)

Filter = str | Sequence[Any] | dict[str, Any]
MAX_TERMS = 100
"""Of a filter."""
MAX_KEPT = 64
"""Filters whose masks are kept."""
MAX_PINNED = 100
"""Pinned items that come before all others; the most popular ones."""
FEW_ITEMS = 8192
FEW_SHARE = 1 / 64
"""Matching items are scored alone if they are no more than one of these, the latter a
share of all items: an index would hardly meet them.
"""
FILTERED_NEAREST = 256
"""Matching items nearest by the towers that are candidates: lists that know nothing of
a filter have few.
"""
_TERM = re.compile(r"(.+?)(<=|>=|:|<|>)(.*)", re.DOTALL)
_COMPARED = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Matching(NamedTuple):
    """The items that may be recommended.

    Args:
        mask: [N] of each row.
        few: their rows, ascending; None if there are many.
        nearest: how many of them that are nearest by the towers are candidates at
            least.
        further: rows that are candidates in any case: pinned and popular ones.
        pinned: rows that come first.
    """

    mask: Bools
    few: Rows | None
    nearest: int
    further: Rows
    pinned: Rows


class Column(NamedTuple):
    """An attribute of all items.

    Args:
        labels: number of each row's label, 0 where it has none; None: they are numbers.
        numbers: NaN where a row has none; None: they are labels.
        label_of: the number of a label, None if it is not known.
    """

    labels: NDArray[Any] | None
    numbers: NDArray[Any] | None
    label_of: Callable[[str], int | None]

    def equal(self, text: str) -> Bools:
        """Of each row, whether it has this value."""
        column = self.labels
        value: float | None = self.label_of(text)
        if value is None:
            column = self.numbers
            value = exact_number(text)
        if column is None:
            return np.zeros(0, np.bool_)
        found: Bools = column == value
        return found

    def group_of(self, row: int) -> tuple[str, float] | None:
        """The value of a row; None if it has none."""
        if self.labels is not None and row < len(self.labels) and self.labels[row]:
            return "label", float(self.labels[row])
        if self.numbers is None or row >= len(self.numbers):
            return None
        number = float(self.numbers[row])
        return None if np.isnan(number) else ("number", number)


class GroupLimit:
    """Lets at most some items of each value of an attribute pass, of one list.

    Args:
        column: the attribute.
        most: items of each value.
    """

    def __init__(self, column: Column, most: int) -> None:
        self._column = column
        self._most = most
        self._taken: Counter[tuple[str, float]] = Counter()

    def take(self, rows: NDArray[Any], count: int) -> Rows:
        """The places of the first rows that pass, at most `count`."""
        passed: list[int] = []
        for place, row in enumerate(rows.tolist()):
            if len(passed) == count:
                break
            group = self._column.group_of(row)
            if group is None or self._taken[group] < self._most:
                passed.append(place)
                if group is not None:
                    self._taken[group] += 1
        return np.array(passed, np.int64)

    def full(self, size: int) -> Bools:
        """[size] of each row, whether no other item of its value passes."""
        full = [group for group, taken in self._taken.items() if taken == self._most]
        found = np.zeros(size, np.bool_)
        columns = {"label": self._column.labels, "number": self._column.numbers}
        for kind, column in columns.items():
            values = [value for of_kind, value in full if of_kind == kind]
            if column is not None and values:
                found |= sized(np.isin(column, values), size)
        return found


class _AllItems(NamedTuple):
    """What is the same for all filters."""

    reachable: Bools
    described: Bools
    available: Bools
    pinned: Rows
    until_s: float
    """When another item becomes available, or stops being so."""


class Filters:
    """Finds the items that may be recommended.

    Args:
        state: what is learned.
        clock: seconds since the epoch.
    """

    def __init__(self, state: State, clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self.clock = clock
        self._written = -1
        self._kept: dict[str, Matching] = {}
        self._all: _AllItems

    def matching(self, wanted: Filter | None = None) -> Matching | None:
        """The items that match a filter; None if there is none, and no rule for any
        item.

        Raises:
            FilterError: it cannot be read, or names an unknown attribute.
        """
        if wanted is None and not self._state.attributes.size:
            return None
        self._refresh()
        known = self._all
        if wanted is None and known.available.all() and not len(known.pinned):
            return None
        key = repr(wanted)
        if key not in self._kept:
            may = known.reachable
            if wanted is not None:
                terms = Counter[str]()
                may = (may | known.described) & self._mask(wanted, terms)
            if len(self._kept) == MAX_KEPT:
                self._kept.clear()
            self._kept[key] = self._found(may & known.available, wanted is not None)
        return self._kept[key]

    def everything(self) -> Matching:
        """All items that may be recommended without a filter."""
        found = self.matching()
        if found is None:
            self._refresh()
            found = self._found(self._all.reachable, False)
        return found

    def without(self, matching: Matching, left_out: Bools) -> Matching:
        """Those of some items that are not left out."""
        return self._found(matching.mask & ~left_out, True)

    def limit(self, wanted: str | None) -> GroupLimit | None:
        """What lets at most N items of each value of an attribute pass, from
        "ATTRIBUTE:N"; None if nothing is limited.

        Raises:
            FilterError: it cannot be read, or names an unknown attribute.
        """
        if wanted is None:
            return None
        name, _, most = wanted.rpartition(":")
        if not name or not most.isdecimal() or not int(most[:9]) > 0:
            raise FilterError(
                f"max_per is {_shown(wanted)}: write an attribute, a colon and a number "
                "from 1 on, e.g. category:2"
            )
        return GroupLimit(self._column(name), int(most[:9]))

    def hidden(self) -> list[str]:
        """The ids of all hidden items, in alphabetical order."""
        items = self._state.items
        rows = np.flatnonzero(self._state.attributes.numbers(HIDDEN) == 1)
        return sorted(items.ids_of(rows[items.is_used(rows)].tolist()))

    def _refresh(self) -> None:
        """Forget what is kept if an item has changed since, or its availability."""
        state = self._state
        written = state.changes.written["items"]
        now_s = self.clock()
        if written == self._written and now_s < self._all.until_s:
            return
        self._kept.clear()
        size = state.items.size
        rows = np.arange(size)
        numbers = state.attributes.numbers
        closed = numbers(HIDDEN) == 1
        closed |= numbers(AVAILABLE_FROM) > now_s
        closed |= numbers(AVAILABLE_UNTIL) <= now_s
        changes_s = [np.array([np.inf])]
        for name in RULE_TIMES:
            times_s = numbers(name)
            changes_s.append(times_s[times_s > now_s])
        self._all = _AllItems(
            state.are_reachable(rows),
            sized(state.attributes.described, size),
            ~sized(closed, size),
            np.flatnonzero(sized(numbers(PINNED) == 1, size)),
            float(np.concatenate(changes_s).min()),
        )
        self._written = written

    def _found(self, mask: Bools, filtered: bool) -> Matching:
        few = None
        if np.count_nonzero(mask) <= max(FEW_ITEMS, FEW_SHARE * len(mask)):
            few = np.flatnonzero(mask)
        pinned = self._all.pinned
        pinned = self._most_popular(pinned[mask[pinned]], MAX_PINNED)
        further = pinned
        nearest = 0
        if filtered and few is not None:
            popular = self._most_popular(few, FILTERED_NEAREST)
            further = np.union1d(pinned, popular)
            nearest = FILTERED_NEAREST
        return Matching(mask, few, nearest, further, pinned)

    def _most_popular(self, rows: Rows, count: int) -> Rows:
        if len(rows) <= count:
            return rows
        counts = self._state.item_counts.counts(rows)
        return rows[np.argpartition(-counts, count)[:count]]

    def _mask(self, wanted: Any, terms: Counter[str]) -> Bools:
        """Of each row, whether it matches."""
        terms["all"] += 1
        if terms["all"] > MAX_TERMS:
            raise FilterError(f"the filter has more than {MAX_TERMS} terms")
        size = len(self._all.reachable)
        match wanted:
            case str():
                return sized(self._term(wanted), size)
            case {"not": inner} if len(wanted) == 1:
                return np.logical_not(self._mask(inner, terms))
            case {"or": [_, *_] as several} if len(wanted) == 1:
                either = np.zeros(size, np.bool_)
                for inner in several:
                    either |= self._mask(inner, terms)
                return either
            case {"and": [_, *_] as several} if len(wanted) == 1:
                return self._mask(several, terms)
            case [_, *_] as several:
                all_of_them = np.ones(size, np.bool_)
                for inner in several:
                    all_of_them &= self._mask(inner, terms)
                return all_of_them
        raise FilterError(
            f"the filter has {_shown(wanted)}, which cannot be read: write a text like category:tea or "
            'price<20, {"and": [...]}, {"or": [...]} or {"not": ...}'
        )

    def _term(self, text: str) -> Bools:
        parts = _TERM.fullmatch(text)
        if parts is None:
            raise FilterError(
                f"the filter has {_shown(text)}, which cannot be read: write an attribute, one of "
                ": < <= > >=, and a value, e.g. category:tea or price<20"
            )
        name, sign, value = parts.groups()
        column = self._column(name)
        if sign == ":":
            return column.equal(value)
        number = exact_number(value)
        if column.numbers is None or np.isnan(number):
            what = "the value is no number" if np.isnan(number) else f"{name} is text"
            raise FilterError(f"the filter {_shown(text)} compares numbers, but {what}")
        found: Bools = _COMPARED[sign](column.numbers, number)
        return found

    def _column(self, name: str) -> Column:
        state = self._state
        item = state.trainer.model.item
        features = item.features.columns
        if name in item.settings.categorical:
            at = item.settings.categorical.index(name)
            label_of = state.vocabulary(f"item.{name}").row_of
            return Column(features["codes"][:, at], None, label_of)
        if name in item.settings.numeric:
            at = item.settings.numeric.index(name)
            return Column(None, features["numbers"][:, at], lambda text: None)
        attributes = state.attributes
        if name not in attributes.names:
            known = ", ".join(state.settings.filterable)
            raise FilterError(
                f"items have no attribute {_shown(name)}: known are {known}"
                if known
                else f"items have no attribute {_shown(name)}, nor any other: start the "
                "trainer with --item-attribute"
            )
        labels = state.vocabulary(LABELS)
        return Column(
            attributes.labels(name),
            attributes.numbers(name),
            lambda text: labels.row_of(f"{name}:{text}"),
        )


def sized(mask: Bools, size: int) -> Bools:
    """[size] a mask without what is beyond; rows that it does not have are False."""
    found = np.zeros(size, np.bool_)
    common = min(size, len(mask))
    found[:common] = mask[:common]
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
