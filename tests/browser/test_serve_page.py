"""The page of a server in a real browser: ask, click, and watch the list change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from layout import assert_nothing_is_clipped, assert_rows_are_full
from line_harness import TOPIC, events
from live_run import IMAGE, SCRIPT
from serve_harness import Client, Trainer, catalogue_events, wait_until

import streamer
from streamer.event import NO_USER, TITLE
from streamer.ingest.batcher import MicroBatch
from streamer.sources.base import Partition
from streamer.sources.embedded.log import EmbeddedLog

pytestmark = [pytest.mark.slow, pytest.mark.servers]

STREAM = [*events(400, users=20, items=120), (SCRIPT, IMAGE), (SCRIPT, "i1"), (SCRIPT, "i2"), ("titled", "i119")]
SHOWN = {"i119": "Kind of <b>Blue</b> (i119)"}
"""What the page shows for an item that has a title."""


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("served")
    for topic in (TOPIC, "items"):
        EmbeddedLog(directory).create_topic(topic, 1)
    trainer = Trainer(directory / "points")
    title = MicroBatch([NO_USER], ["i119"], [1e9], item_features=[{TITLE: "Kind of <b>Blue</b>"}])
    assert not list(trainer.learner.split_catalogue_events(title))
    trainer.learn(STREAM[:-1])
    streamer.Learner(trainer.learner).learn(STREAM[-1:])
    trainer.positions = {Partition(TOPIC, 0): 0}
    trainer.publish()
    client = Client(directory, clicks=True, catalogue_topic="items").ready()
    client.trainer = trainer
    yield client
    client.close()
    trainer.close()


@pytest.fixture
def page(browser, client):
    """The page, opened anew."""
    browser.size(1400, 900)
    browser.driver.get(client.server.url)
    wait_until(lambda: browser.text("#health-text") == "ready", "readiness")
    browser.complaints()
    return browser


def listed(browser) -> list[str]:
    return browser.ask("[...document.querySelectorAll('#found tbody tr')].map(row => row.cells[0].textContent)")


def type_into(browser, field: str, text: str) -> None:
    browser.ask("void (document.querySelector(arguments[0]).value = arguments[1])", field, text)
    browser.ask("void document.querySelector(arguments[0]).form.requestSubmit()", field)
    wait_until(lambda: listed(browser), "an answer")


def test_an_item_has_its_title_beside_its_id(page, client):
    assert page.ask("getComputedStyle(document.querySelector('#token-form')).display") == "none"
    type_into(page, "#user", "titled")
    assert page.text("#recent") == f"Had last: {SHOWN['i119']}"


def test_a_click_is_an_event_and_the_list_changes(page, client):
    type_into(page, "#user", "u3")
    before = listed(page)
    assert before == [SHOWN.get(item, item) for item in client.items("u3")]
    assert "co-occurrence" in page.text("#found tbody") or "popularity" in page.text("#found tbody")
    assert "old" in page.text("#about")
    page.ask("void document.querySelector('#found tbody button').click()")
    wait_until(lambda: before[0] not in listed(page) and listed(page), "the list changes")
    assert page.text("#recent").startswith(f"Had last: {before[0]},")
    assert client.get("/status")["events_not_learned"] == 1
    assert page.complaints() == []


def test_a_session_is_asked_for_and_a_hidden_item_vanishes(page, client):
    type_into(page, "#items", "i1\ni2\nunheard of\n")
    assert "unheard of" in page.text("#about")
    first = listed(page)[0]
    page.ask("void document.querySelector('#found tbody button.plain').click()")
    wait_until(lambda: len(catalogue_events(client.settings.data_dir)), "writing")
    client.trainer.learner.features.learn_catalogue(catalogue_events(client.settings.data_dir))
    client.trainer.publish()
    wait_until(lambda: listed(page) and first not in listed(page), "hiding")
    assert client.get("/hidden")["hidden"] == [first]


def test_ids_are_shown_as_text(page):
    type_into(page, "#user", SCRIPT)
    assert SCRIPT in page.text("#about")
    assert IMAGE in page.text("#recent")
    assert page.ask("document.querySelectorAll('main img, main script').length") == 0
    assert page.complaints() == []


def test_what_can_be_asked_is_described(page):
    wait_until(lambda: "/users/{user}/recommendations" in page.text("#api tbody"), "the description")


def test_an_example_user_is_a_click_away(page):
    users = "[...document.querySelectorAll('#examples button')].map(button => button.textContent)"
    wait_until(lambda: page.ask(users), "examples")
    assert len(page.ask(users)) == 5
    page.ask("void document.querySelector('#examples button').click()")
    wait_until(lambda: listed(page), "an answer")
    assert page.text("#about").startswith(f"For user {page.ask(users)[0]},")
    assert page.text("#recent").startswith("Had last: ")


@pytest.mark.parametrize("width", [1400, 1000, 400])
def test_no_table_is_clipped_and_no_tile_stands_alone(page, width):
    type_into(page, "#user", SCRIPT)
    wait_until(lambda: "/users/{user}/recommendations" in page.text("#api tbody"), "the description")
    page.size(width, 900)
    assert_nothing_is_clipped(page)
    assert_rows_are_full(page)


def test_what_keeps_a_server_from_being_ready_is_shown_in_full(page):
    page.ask("void (status = {...status, ready: false, reason: 'there is no topic clicks'}, showStatus())")
    assert (page.text("#health-text"), page.text("#reason")) == ("not ready", "there is no topic clicks")


@pytest.mark.parametrize("width", [1400, 400])
def test_docs_show_the_openapi_page_with_nothing_from_elsewhere(page, client, width):
    page.size(width, 900)
    page.scheme("dark")
    page.driver.get(f"{client.server.url}docs")
    paths = (
        "[...document.querySelectorAll('.opblock-summary-path')].map(path => path.textContent.replaceAll('\u200b', ''))"
    )
    wait_until(lambda: "/users/{user}/recommendations" in page.ask(paths), "the description")
    dark = page.ask("getComputedStyle(document.body).backgroundColor")
    page.scheme("light")
    wait_until(lambda: page.ask("getComputedStyle(document.body).backgroundColor") != dark, "the other scheme")
    origins = page.ask("[...new Set(performance.getEntriesByType('resource').map(one => new URL(one.name).origin))]")
    assert origins == [client.server.url.rstrip("/")]
    assert page.ask("document.documentElement.scrollWidth <= window.innerWidth")
    page.ask("void document.querySelector('.opblock-summary-control').click()")
    wait_until(lambda: "exclude_seen" in page.text(".opblock-body"), "the parameters")
    assert page.complaints() == []
