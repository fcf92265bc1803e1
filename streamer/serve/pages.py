"""What the pages of lists have shown, so that the next page repeats nothing, whatever
was learned meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

MAX_SHOWN = 500_000
"""Items that are remembered; the lists that nobody has asked for longest give way."""


class Pages:
    """The items of lists as far as they were shown. Not for several threads at once.

    Examples:
        >>> pages = Pages()
        >>> pages.show(b"list of ann", 0, ["tea", "milk"])
        >>> pages.before(b"list of ann", 2), pages.before(b"list of ann", 4)
        (['tea', 'milk'], None)
    """

    def __init__(self) -> None:
        self._shown: OrderedDict[bytes, list[str]] = OrderedDict()
        self._count = 0

    def before(self, key: bytes, offset: int) -> list[str] | None:
        """The items of a list before an offset; None if they are not known."""
        shown = self._shown.get(key, [])
        return shown[:offset] if len(shown) >= offset else None

    def show(self, key: bytes, offset: int, items: Sequence[str]) -> None:
        """Note that a list has these items from an offset on, up to which it is known."""
        before = self._shown.pop(key, [])
        self._shown[key] = [*before[:offset], *items]
        self._count += len(self._shown[key]) - len(before)
        while self._count > MAX_SHOWN:
            _, given_up = self._shown.popitem(last=False)
            self._count -= len(given_up)
