"""The trainer's side of a store beyond the contract: with a server in the same process, and on a thread."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from contracts.store_contract import P, Q
from contracts.store_trainer import Trainer, events_before, stored

from streamer.cache_store.errors import Fenced, StoreUnavailable
from streamer.cache_store.memory import MemoryServer
from streamer.cache_store.shared import SharedStore
from streamer.cache_store.view import SharedSettings

PATIENCE_S = 60.0


def alone(server: MemoryServer, name: str = "ada", **settings: Any) -> Trainer:
    store = SharedStore(server, SharedSettings(**settings), name)
    store.start()
    return Trainer(store, name)


def eventually(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


class TestInTheSameProcess:
    def test_a_contribution_is_in_the_store_when_contribute_returns(self):
        server = MemoryServer()
        ada = alone(server)
        assert ada.claim(P) is True
        ada.train({P: 5})
        found = stored(server)
        assert found is not None
        assert found.counts == events_before({P: 5})
        assert ada.store.flush(0) is True
        assert ada.store.status().backlog_contributions == 0

    def test_it_starts_no_thread(self):
        before = threading.active_count()
        alone(MemoryServer())
        assert threading.active_count() == before

    def test_a_claim_before_the_start_is_made_with_it(self):
        server = MemoryServer()
        store = SharedStore(server)
        assert store.claim({P: None}, PATIENCE_S) is False
        store.start()
        ada = Trainer(store, positions={P: 0})
        ada.train({P: 3})
        assert store.flush(0) is True

    def test_a_zombie_is_told_by_receive_and_by_nothing_else(self):
        server = MemoryServer()
        ada, ben = alone(server, "ada"), alone(server, "ben")
        ada.claim(P), ben.claim(P)
        ada.train({P: 5})
        assert ada.store.flush(PATIENCE_S) is False
        with pytest.raises(Fenced):
            ada.receive()
        assert "taken over" in (ada.store.status().trouble or "")
        assert ada.store.status().errors == {"fenced": 1 + 1}

    def test_a_full_log_makes_nobody_wait(self):
        ada = alone(MemoryServer(hard_log_length=2), soft_log_length=100)
        ada.claim(P)
        for _ in range(5):
            ada.train({P: 1})
        assert ada.store.flush(PATIENCE_S) is False
        assert ada.store.status().backlog_events == 3

    def test_it_is_always_live(self):
        ada = alone(MemoryServer())
        assert ada.receive().live
        assert ada.store.status().live

    def test_close_may_be_called_twice(self):
        ada = alone(MemoryServer())
        ada.store.close()
        ada.store.close()


class Moody(MemoryServer):
    """A server in memory that a thread has to talk to, and that fails as it is told."""

    inline = False
    error: Exception | None = None

    def pull(self, *arguments: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super().pull(*arguments)


class TestOnAThread:
    @pytest.fixture
    def server(self) -> Moody:
        return Moody()

    @pytest.fixture
    def ada(self, server):
        store = SharedStore(server, SharedSettings(every_s=0.005, live_s=0.1), "ada")
        store.start()
        yield Trainer(store)
        store.close()

    def test_everything_is_exchanged_soon(self, server, ada):
        eventually(lambda: ada.claim(P))
        ada.train({P: 5})
        eventually(lambda: ada.store.flush(PATIENCE_S))
        found = stored(server)
        assert found is not None
        assert found.counts == events_before({P: 5})

    @pytest.mark.parametrize(
        ("error", "reason"),
        [(StoreUnavailable("full", "no room"), "full"), (RuntimeError("a bug of ours"), "broken")],
    )
    def test_whatever_fails_is_told_and_tried_again(self, server, ada, error, reason):
        eventually(lambda: ada.claim(P))
        server.error = error
        ada.train({P: 5})
        eventually(lambda: str(error.args[-1]) in (ada.store.status().trouble or ""))
        assert ada.store.status().errors[reason] > 0
        eventually(lambda: not ada.receive().live)
        assert ada.store.claim({Q: None}, PATIENCE_S) is False
        server.error = None
        eventually(lambda: ada.store.status().trouble is None)
        eventually(lambda: ada.store.flush(PATIENCE_S))
        found = stored(server)
        assert found is not None
        assert found.counts == events_before({P: 5})
        eventually(lambda: ada.receive().live)

    def test_it_waits_longer_and_longer_but_not_for_ever(self, server, ada, monkeypatch):
        monkeypatch.setattr("streamer.cache_store.shared.LAST_PAUSE_S", 0.2)
        server.error = StoreUnavailable("slow", "no answer")
        eventually(lambda: ada.store._pause_s == 0.2)
        server.error = None
        eventually(lambda: ada.store._pause_s == 0.1)

    def test_the_thread_ends_with_the_store(self, ada):
        thread = ada.store._thread
        ada.store.close()
        assert not thread.is_alive()


class Elusive(MemoryServer):
    """A server that begins anew whenever somebody looks at its items."""

    def ids(self, *_: Any) -> None:
        return None


def test_a_server_that_is_never_where_it_was_is_given_up_for_now():
    server = Elusive()
    ada = alone(server)
    ada.claim(P)
    ada.train({P: 3})
    assert "again and again" in (ada.store.status().trouble or "")
    assert ada.view()[0] == events_before({P: 3})


def test_a_server_with_state_but_without_a_snapshot_is_broken():
    server = MemoryServer()
    alone(server)
    server._snapshot = None
    with pytest.raises(StoreUnavailable, match="store reset") as caught:
        alone(server, "ben")
    assert caught.value.reason == "broken"


def test_what_came_long_ago_is_not_sent_again():
    """Contributions are kept for a while only: memory is bounded, and a server that loses more has lost it."""
    clock = [0.0]
    server = MemoryServer(clock=lambda: clock[0])
    ada = SharedStore(server, SharedSettings(keep_s=30.0), "ada", clock=lambda: clock[0])
    ada.start()
    trainer = Trainer(ada)
    trainer.claim(P)
    for _ in range(3):
        trainer.train({P: 2})
        clock[0] += 20.0
    empty = alone(server, "ben")
    server.wipe()
    empty.store.view.replica = None
    empty.store.view.naming.begin_anew([])
    empty.store._exchange.is_in = False
    empty.store.exchange()
    clock[0] += 25.0
    trainer.train({P: 1})
    found = stored(server)
    assert found is not None
    assert sum(found.counts.values()) == 2 + 2 + 1


def test_status_tells_what_was_exchanged():
    server = MemoryServer()
    ada, ben = alone(server, "ada", soft_log_length=2), alone(server, "ben")
    ada.claim(P)
    for _ in range(3):
        ada.train({P: 4}, cache=["a"])
    ben.store.flush(0)
    status, other = ada.store.status(), ben.store.status()
    assert (status.kind, status.trouble, status.errors) == ("memory", None, {})
    assert (status.seeded, status.joined, status.snapshots) == (1, 1, 1)
    assert (other.seeded, other.joined, other.snapshots) == (0, 2, 0), "its entries were trimmed: it joined again"
    assert status.exchanges >= 4
    assert status.sent_bytes > 0
    assert other.received_bytes > 0
    assert other.log_length == 1
    assert status.backlog_events == 0


class Counting:
    """Counts what a server is asked."""

    inline, kind = False, "counting"

    def __init__(self, server: MemoryServer) -> None:
        self._server, self.asked = server, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self._server, name)


def test_an_exchange_of_known_items_is_one_round_trip_and_tells_of_others():
    server = MemoryServer()
    network = Counting(server)
    ada, ben = Trainer(SharedStore(network, SharedSettings(), "ada")), alone(server, "ben")
    ada.store.exchange()
    ada.claim(P, timeout_s=0), ben.claim("q")
    for signed in (True, False):
        ada.train({P: 20}, signed=signed), ben.train({"q": 20}, signed=signed)
        ada.store.exchange(), ada.receive(), ben.receive()
    network.asked.clear()
    ben.train({"q": 3}, signed=False)
    ada.train({P: 4}, cache=[ada.ids[0]], signed=False)
    ada.store.exchange()
    ada.receive(), ben.store.flush(0), ben.receive()
    assert network.asked == {"push": 1}
    found = stored(server)
    assert found is not None
    assert ada.view() == ben.view() == (found.counts, found.drawn)
    assert sum(found.counts.values()) == 2 * (20 + 20) + 4 + 3
    assert not ada.store.view.outbox.waiting
    assert ada.cache == [ada.ids[0]]
    network.asked.clear()
    ada.store.exchange()
    assert network.asked == {"pull": 1}, "there was nothing to push"
