"""The live page in a real browser, during a real run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from layout import assert_nothing_is_clipped, assert_rows_are_full
from live_run import BAD_RECORD, IMAGE, PATIENCE_S, SCRIPT
from prometheus_client import CollectorRegistry

from streamer.metrics.monitor import Monitor
from streamer.web.live import monitor_server

pytestmark = [pytest.mark.slow, pytest.mark.servers]

CHARTS = {"flow": 2, "hits": 5, "bands": 3, "curve": 2, "loss": 1}
"""Charts and how many series each has."""
WIDE, PHONE = (1400, 900), (390, 844)
ARROW_RIGHT = "\ue014"


def until(done: Callable[[], Any], what: str) -> Any:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := done()):
        assert time.monotonic() < deadline, f"it did not happen: {what}"
        time.sleep(0.1)
    return found


@pytest.fixture
def page(browser, live):
    """The page as on a wide light screen, opened anew, with everything drawn."""
    browser.size(*WIDE)
    browser.scheme("light")
    browser.driver.get(live.url)
    until(lambda: drawn_all(browser), "all charts are drawn")
    return browser


def drawn_all(browser) -> bool:
    """Whether every chart has all of its lines."""
    return all(len(lines(browser, chart)) == series for chart, series in CHARTS.items())


def lines(browser, chart: str) -> list[str]:
    """The path of each drawn line of a chart that has a length."""
    paths = "[...document.querySelectorAll(arguments[0])].map(path => path.getAttribute('d') || '')"
    return [path for path in browser.ask(paths, f"#{chart} .scatterlayer .trace .js-line") if "L" in path]


def tile(browser, name: str) -> str:
    """The text of a tile."""
    texts = browser.ask("[...document.querySelectorAll('#tiles div')].map(tile => tile.textContent)")
    (found,) = [text for text in texts if text.startswith(name)]
    return found


def cells(browser, table: str) -> list[list[str]]:
    """The texts of a table's rows."""
    rows = "[...document.querySelectorAll(arguments[0])].map(row => [...row.cells].map(cell => cell.textContent))"
    return browser.ask(rows, f"#{table} tbody tr")


def test_values_change_while_the_run_goes_on(page):
    before = {name: tile(page, name) for name in ("Events a second", "Loss", "Checkpoint", "Running")}
    paths = {chart: lines(page, chart) for chart in CHARTS}
    for name, text in before.items():
        until(lambda name=name, text=text: tile(page, name) != text, f"{name} changes")
    for chart in ("flow", "loss", "bands"):
        until(lambda chart=chart: lines(page, chart) != paths[chart], f"{chart} goes on")
    assert "Healthy" in page.text("#health")


def test_the_drawn_series_are_those_of_the_data(page):
    drawn = page.ask("document.getElementById('bands').data.map(trace => [trace.name, trace.stackgroup, trace.y])")
    assert [(name, group) for name, group, _ in drawn] == [(band, "cache") for band in ("head", "torso", "tail")]
    sums = [sum(shares) for shares in zip(*(y for *_, y in drawn), strict=True) if None not in shares]
    assert sums
    assert sums == pytest.approx([1] * len(sums), abs=1e-6)
    names = page.ask("document.getElementById('hits').data.map(trace => trace.name)")
    assert names == ["model", "model without towers", "most popular", "last items", "counting"]
    asked, drawn = page.ask("[column('hit_rate model'), document.getElementById('hits').data[0].y]")
    assert asked == drawn
    assert max(rate for rate in drawn if rate is not None) > 0
    fills = page.ask(
        "[...document.querySelectorAll('#bands .scatterlayer .js-fill')].map(path => getComputedStyle(path).fill)"
    )
    assert len(set(fills)) == 3
    assert "none" not in fills
    for axis in ("xaxis", "yaxis"):
        assert page.ask("document.getElementById('curve').layout[arguments[0]].type", axis) == "log"
    ranks = page.ask("document.getElementById('curve').data[1].x")
    assert len(ranks) > 5
    assert ranks == sorted(ranks)


def test_ids_from_events_are_shown_as_text_and_never_run(page):
    items = until(lambda: [row[0] for row in cells(page, "top")], "the cache has items")
    assert SCRIPT in items
    assert IMAGE in items
    assert page.ask("document.querySelectorAll('main script, main img, main [onload]').length") == 0
    assert page.ask("window.hacked === undefined")


def test_dead_letters_are_listed_with_their_reason_and_as_text(page):
    rows = until(lambda: [row for row in cells(page, "letters") if len(row) == 5], "dead letters are listed")
    assert {(row[2], row[4]) for row in rows} == {("not json", BAD_RECORD.decode())}
    assert page.text("#reasons").startswith("not json: ")
    assert page.ask("window.hacked === undefined")


def test_what_decides_the_ranking_is_listed_by_the_length_of_users_histories(page):
    rows = until(lambda: [row for row in cells(page, "influence") if len(row) == 5], "something was ranked")
    histories = [row[0] for row in rows]
    assert histories == [name for name in ("0", "1", "2-3", "4-7", "8-15", "16+") if name in histories]
    for _, *shares in rows:
        assert sum(float(share.rstrip("%")) for share in shares) == pytest.approx(100, abs=2)
    assert page.text("#towers").startswith(("The towers ", "What the towers add "))


def test_partitions_are_listed_with_offsets_that_grow(page):
    def offsets() -> list[int]:
        return [int(row[1].replace(",", "")) for row in cells(page, "partitions")]

    assert [row[0] for row in cells(page, "partitions")] == ["interactions [0]", "interactions [1]"]
    before = offsets()
    until(lambda: all(new > old for new, old in zip(offsets(), before, strict=True)), "both partitions go on")


def test_a_page_opened_late_shows_the_past(page):
    assert page.ask("data.timeline.rows[0][0] < performance.timeOrigin / 1000 - 0.5")


def test_nothing_is_asked_of_anybody_else_and_nothing_is_complained_about(page, live):
    """But for a style sheet for maps that plotly would add: the policy refuses it, and no map is drawn."""
    origins = page.ask("[...new Set(performance.getEntriesByType('resource').map(one => new URL(one.name).origin))]")
    assert origins == [live.url.rstrip("/")]
    assert [text for text in page.complaints() if not ("/plotly.js " in text and "inline style" in text)] == []


def test_the_whole_run_can_be_chosen_by_keyboard(page):
    page.ask("document.querySelector('input[name=span]').focus()")
    page.driver.switch_to.active_element.send_keys(ARROW_RIGHT)
    until(lambda: page.ask("data.timeline.span") == "run", "the whole run is asked for")
    assert len(lines(page, "flow")) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_on_a_phone(page, scheme):
    page.size(*PHONE)
    page.scheme(scheme)
    right = "[...document.querySelectorAll('.plot .main-svg')].map(svg => svg.getBoundingClientRect().right)"
    until(lambda: max(page.ask(right)) <= PHONE[0], "charts are as narrow as the page")
    until(lambda: drawn_all(page), "all charts are drawn again")
    assert page.ask("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("width", [1400, 1000, 700, 400])
def test_no_table_is_clipped_and_no_card_stands_alone(page, width):
    until(lambda: len(cells(page, "recommended")) > 5, "lists are looked at")
    until(lambda: len(cells(page, "influence")) > 2, "something was ranked")
    page.size(width, 900)
    right = "[...document.querySelectorAll('.plot .main-svg')].map(svg => svg.getBoundingClientRect().right)"
    until(lambda: max(page.ask(right)) <= width, "charts are as narrow as the page")
    assert_nothing_is_clipped(page)
    assert_rows_are_full(page)


def test_what_interests_the_shop_is_shown(page):
    rows = until(lambda: [row for row in cells(page, "parts") if len(row) == 4], "something was ranked")
    assert [row[0].split(":")[0] for row in rows] == ["Head", "Torso", "Tail"]
    assert sum(int(row[3].replace(",", "")) for row in rows) > 0
    assert float(rows[0][1]) > float(rows[2][1])  # popular items are hit more often
    top = until(lambda: [row for row in cells(page, "recommended") if len(row) == 3], "lists are looked at")
    shares = [float(row[1].rstrip("%")) for row in top]
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[0] <= 100
    assert "Coverage: items in any list" in page.text("#shop")
    assert 0 < page.ask("data.shop.coverage") <= 1
    assert 0 <= page.ask("data.shop.new_share") <= 1


def test_words_that_are_not_everybodys_are_explained_where_they_stand(page):
    near = "document.querySelector(arguments[0]).closest('figure, .card').textContent"
    for place in ("#parts", "#bands"):
        text = page.ask(near, place).lower()
        for word in ("head: the most popular items", "torso: ", "tail: "):
            assert word in text
    assert "Baselines are simple recommenders" in page.ask(near, "#hits")
    assert "HR@10: share of events" in page.ask(near, "#hits")
    assert "Towers: the two networks" in page.ask(near, "#influence")


def test_a_hit_rate_stands_with_its_error_and_the_events_behind_it(page):
    f = page.ask("data.figures")
    said = f"± {f['hit_rate_standard_error']:.3f} of {f['hit_rate_events']:,} events"
    assert page.ask("[...document.querySelectorAll('#tiles div')].map(tile => tile.textContent)[2]").count(said) == 1
    words = {"above": "above the baselines", "below": "below a baseline", "equal": "like the best baseline"}
    page.ask("void (data.figures.against_baseline = 'equal', showTiles(), drawHits())")
    assert words["equal"] in tile(page, "HR@10")
    assert page.text("#hits-text").endswith("no difference beyond the noise.")


def test_warnings_are_shown_above_the_figures(page):
    page.ask("void (data.figures.warnings = ['half of the records are dead letters'], showWarnings())")
    assert page.text("#warnings") == "half of the records are dead letters"
    assert page.ask("document.getElementById('warnings').offsetParent !== null")


def test_a_chart_without_a_value_has_no_axis(browser):
    """As before the first step: the page of a line that has not begun."""
    with monitor_server(Monitor(CollectorRegistry())) as server:
        browser.size(*WIDE)
        browser.driver.get(server.url)
        until(lambda: browser.ask("Boolean(document.body.dataset.shown)"), "the page is drawn")
        ticks = "[...document.querySelectorAll('.plot .xtick, .plot .ytick')].map(tick => tick.textContent)"
        assert browser.ask(ticks) == []
        for chart in CHARTS:
            assert browser.text(f"#{chart}").strip() == "nothing yet"
        assert_nothing_is_clipped(browser)


def test_charts_follow_the_dark_scheme(page):
    light = page.ask("getComputedStyle(document.body).backgroundColor")
    line = page.ask("document.getElementById('loss').data[0].line.color")
    page.scheme("dark")
    until(lambda: page.ask("document.getElementById('loss').data[0].line.color") != line, "charts are drawn anew")
    assert page.ask("getComputedStyle(document.body).backgroundColor") != light


CONTRAST = """
(() => {
  const linear = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = rgb => {
    const [r, g, b] = rgb.match(/[0-9.]+/g).map(Number).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const clear = colour => colour === 'transparent' || colour.endsWith(', 0)');
  const behind = node => {
    while (clear(getComputedStyle(node).backgroundColor)) node = node.parentElement;
    return getComputedStyle(node).backgroundColor;
  };
  const found = [];
  for (const node of document.querySelectorAll('h1, h3, p, dt, dd, th, td, a, label span, footer, .pill')) {
    if (!node.textContent.trim() || !node.offsetParent || node.closest('.skip, .unseen')) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    found.push([node.tagName, node.textContent.slice(0, 30), (a + 0.05) / (b + 0.05)]);
  }
  return found;
})()
"""
"""How much lighter or darker each text is than what is behind it, as WCAG 2 measures it."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(page, scheme):
    page.scheme(scheme)
    found = page.ask(CONTRAST)
    assert len(found) > 40
    assert [text for text in found if text[2] < 4.5] == []


def test_it_has_landmarks_headings_in_order_captions_and_described_charts(page):
    assert page.ask("document.documentElement.lang") == "en"
    for landmark in ("header", "main", "footer"):
        assert page.ask("document.querySelectorAll(arguments[0]).length", f"body > {landmark}") == 1
    levels = page.ask("[...document.querySelectorAll('h1, h2, h3, h4')].map(heading => Number(heading.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.ask("[...document.querySelectorAll('table')].every(table => table.caption.textContent)")
    named = page.ask("[...document.querySelectorAll('.plot')].map(plot => plot.getAttribute('aria-labelledby'))")
    assert len(named) == len(CHARTS)
    assert all(page.text(f"#{name}").strip() for name in named)
    assert page.ask("document.getElementById('health').getAttribute('role')") == "status"


def test_after_the_end_the_page_says_so_and_keeps_the_last_values(page, live):
    live.stop()
    until(lambda: page.ask("!document.getElementById('lost').hidden"), "the end is told")
    assert "The trainer has not responded since" in page.text("#lost")
    assert "No answer" in page.text("#health")
    assert drawn_all(page)
    assert SCRIPT in [row[0] for row in cells(page, "top")]
