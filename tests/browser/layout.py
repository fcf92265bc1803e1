"""What a person would see at a glance: what is cut off, and what stands alone."""

from __future__ import annotations

from typing import Any

CLIPPED = """
[...document.querySelectorAll('.scroll, table, .card, figure, .tiles > div, form')]
  .filter(node => node.offsetParent && node.scrollWidth > node.clientWidth + 1)
  .map(node => [node.tagName, node.id || node.className, node.scrollWidth, node.clientWidth])
"""
ROWS = """
[...document.querySelectorAll('.tiles, .charts, .details')].flatMap(grid => {
  const cards = [...grid.children].filter(card => !card.matches('.unseen') && card.offsetParent);
  const tops = [...new Set(cards.map(card => card.getBoundingClientRect().top))];
  const right = grid.getBoundingClientRect().right;
  return tops.map(top => {
    const row = cards.filter(card => card.getBoundingClientRect().top === top);
    const gap = right - Math.max(...row.map(card => card.getBoundingClientRect().right));
    return [grid.className, row.length, gap];
  });
})
"""
"""Of each row of cards: where it is, how many there are, and how much is empty beside them."""


def assert_nothing_is_clipped(browser: Any) -> None:
    assert browser.ask(CLIPPED) == []
    assert browser.ask("document.documentElement.scrollWidth <= window.innerWidth")


def assert_rows_are_full(browser: Any) -> None:
    rows = browser.ask(ROWS)
    assert rows
    assert [row for row in rows if row[2] > 2] == []
