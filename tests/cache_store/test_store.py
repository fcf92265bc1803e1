"""The trainer's side of a store beyond the contract: its thread, its status, its round trips."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contracts.store_contract import P, Q
from contracts.store_trainer import Trainer, events_before, stored

from streamer.cache_store.errors import Fenced, StoreUnavailable
from streamer.cache_store.memory import MemoryServer
from streamer.cache_store.state import StoreSettings
from streamer.cache_store.store import CacheStore

PATIENCE_S = 60.0


def joined(server: MemoryServer, name: str = "ada", **settings: Any) -> Trainer:
    """A trainer that has joined, and exchanges when the test says so."""
    store = CacheStore(server, StoreSettings(**settings), name)
    store.exchange()
    return Trainer(store, name)


def eventually(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


class Moody(MemoryServer):
    """A server in memory that fails when the test says so."""

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
        store = CacheStore(server, StoreSettings(every_s=0.005, live_s=0.1), "ada")
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
    def test_whatever_fails_is_in_the_status_and_tried_again(self, server, ada, error, reason):
        eventually(lambda: ada.claim(P))
        server.error = error
        ada.train({P: 5})
        eventually(lambda: str(error.args[-1]) in (ada.store.status().problem or ""))
        assert ada.store.status().errors[reason] > 0
        eventually(lambda: not ada.receive().live)
        assert ada.store.claim({Q: None}, PATIENCE_S) is False
        server.error = None
        eventually(lambda: ada.store.status().problem is None)
        eventually(lambda: ada.store.flush(PATIENCE_S))
        found = stored(server)
        assert found is not None
        assert found.counts == events_before({P: 5})
        eventually(lambda: ada.receive().live)

    def test_it_waits_longer_and_longer_but_not_for_ever(self, server, ada, monkeypatch):
        monkeypatch.setattr("streamer.cache_store.store.LAST_PAUSE_S", 0.2)
        server.error = StoreUnavailable("slow", "no answer")
        eventually(lambda: ada.store._pause_s == 0.2)
        server.error = None
        eventually(lambda: ada.store._pause_s == 0.1)

    def test_the_thread_ends_with_the_store(self, ada):
        thread = ada.store._thread
        ada.store.close()
        assert not thread.is_alive()
        ada.store.close()

    def test_a_claim_before_the_start_is_made_with_it(self, server):
        store = CacheStore(server, StoreSettings(every_s=0.005), "ben")
        assert store.claim({P: None}, PATIENCE_S) is False
        store.start()
        Trainer(store, positions={P: 0}).train({P: 3})
        eventually(lambda: store.flush(PATIENCE_S))
        store.close()

    def test_a_zombie_hears_of_it_by_receive_and_by_nothing_else(self, server, ada):
        eventually(lambda: ada.claim(P))
        ben = joined(server, "ben")
        ben.claim(P, timeout_s=0)
        ben.store.exchange()
        ada.train({P: 5})
        assert ada.store.flush(PATIENCE_S) is False
        with pytest.raises(Fenced):
            ada.receive()
        eventually(lambda: "has claimed" in (ada.store.status().problem or ""))
        assert ada.store.status().errors == {"fenced": 1}


def test_a_full_log_makes_nobody_wait():
    ada = joined(MemoryServer(hard_log_length=2), soft_log_length=100)
    ada.claim(P, timeout_s=0)
    for _ in range(5):
        ada.train({P: 1})
        ada.store.exchange()
    assert ada.store.status().backlog_events == 3


class Elusive(MemoryServer):
    """A server that starts a new generation whenever somebody reads its items."""

    def ids(self, *_: Any) -> None:
        return None


def test_a_server_that_changes_all_the_time_is_given_up_for_now():
    ada = joined(Elusive())
    ada.claim(P, timeout_s=0)
    ada.train({P: 3})
    with pytest.raises(StoreUnavailable, match="has changed 8 times during one exchange"):
        ada.store.exchange()
    assert ada.view()[0] == events_before({P: 3})


def test_a_server_with_state_but_without_a_snapshot_is_broken():
    server = MemoryServer()
    joined(server)
    server._snapshot = None
    with pytest.raises(StoreUnavailable, match="store reset") as caught:
        joined(server, "ben")
    assert caught.value.reason == "broken"


def test_what_came_long_ago_is_not_sent_again():
    """Contributions are kept for a while only: memory is bounded, and a server that loses more has lost it."""
    clock = [0.0]
    server = MemoryServer(clock=lambda: clock[0])
    ada = CacheStore(server, StoreSettings(keep_s=30.0), "ada", clock=lambda: clock[0])
    ada.exchange()
    trainer = Trainer(ada)
    trainer.claim(P, timeout_s=0)
    for _ in range(3):
        trainer.train({P: 2})
        ada.exchange()
        clock[0] += 20.0
    server.wipe()
    joined(server, "ben")  # knows nothing, and seeds it
    clock[0] += 25.0
    trainer.train({P: 1})
    ada.exchange()
    found = stored(server)
    assert found is not None
    assert sum(found.counts.values()) == 2 + 2 + 1


def test_the_counts_of_a_trainer_that_shared_nothing_seed_an_empty_server():
    server, ids = MemoryServer(), ["tea", "cup", "pot", "jar"]
    store = CacheStore(server, StoreSettings(), "ada")
    store.begin_with(np.array([3, 1, 0, 0]), np.array([0, 2, 5, 0]), {P: 4}, ids)
    store.exchange()
    found = stored(server)
    assert found is not None
    assert (found.counts, found.drawn) == (Counter({ids[0]: 3, ids[1]: 1}), Counter({ids[1]: 2, ids[2]: 5}))
    assert (found.ids, found.following) == (ids, {P: 4})
    store.claim({P: None}, 0)
    store.exchange()
    assert store.counted_until(P) == 4


def test_the_counts_of_a_trainer_that_shared_nothing_do_not_replace_those_of_a_server():
    server = MemoryServer(clock=lambda: 1e6)
    ada = joined(server)
    ada.claim(P, timeout_s=0)
    ada.train({P: 5})
    ada.store.exchange()
    server._origin = (None, 0, 0.0)  # seeded long ago
    ben = Trainer(CacheStore(server, StoreSettings(), "ben"))
    ben.store.begin_with(np.array([30]), np.array([7]), {Q: 30}, ["other"])
    ben.store.exchange()
    ben.receive()
    assert ben.view() == ada.view() == (events_before({P: 5}), ada.view()[1])


def test_status_says_what_was_exchanged():
    server = MemoryServer()
    ada, ben = joined(server, "ada", soft_log_length=2), joined(server, "ben")
    ada.claim(P, timeout_s=0)
    for _ in range(3):
        ada.train({P: 4}, cache=["a"])
        ada.store.exchange()
    ben.store.exchange()
    status, other = ada.store.status(), ben.store.status()
    assert (status.kind, status.problem, status.errors) == ("memory", None, {})
    assert (status.seeds, status.joins, status.snapshots) == (1, 1, 1)
    assert (other.seeds, other.joins, other.snapshots) == (0, 2, 0), "its entries were trimmed: it joined again"
    assert status.exchanges == 4
    assert status.sent_bytes > 0
    assert other.received_bytes > 0
    assert other.log_length == 1
    assert status.backlog_events == 0


class Counting:
    """Counts the operations on a server."""

    kind = "counting"

    def __init__(self, server: MemoryServer) -> None:
        self._server, self.asked = server, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self._server, name)


def test_an_exchange_of_known_items_is_one_round_trip_and_brings_what_others_added():
    server = MemoryServer()
    network = Counting(server)
    ada, ben = Trainer(CacheStore(network, StoreSettings(), "ada")), joined(server, "ben")
    ada.store.exchange()
    ada.claim(P, timeout_s=0), ben.claim("q", timeout_s=0)
    for signed in (True, False):
        ada.train({P: 20}, signed=signed), ben.train({"q": 20}, signed=signed)
        ben.store.exchange(), ada.store.exchange(), ada.receive()
        ben.store.exchange(), ben.receive()
    network.asked.clear()
    ben.train({"q": 3}, signed=False)
    ben.store.exchange()
    ada.train({P: 4}, cache=[ada.ids[0]], signed=False)
    ada.store.exchange()
    ada.receive(), ben.store.exchange(), ben.receive()
    assert network.asked == {"push": 1}
    found = stored(server)
    assert found is not None
    assert ada.view() == ben.view() == (found.counts, found.drawn)
    assert sum(found.counts.values()) == 2 * (20 + 20) + 4 + 3
    assert not ada.store.state.outbox.waiting
    assert ada.cache == [ada.ids[0]]
    network.asked.clear()
    ada.store.exchange()
    assert network.asked == {"pull": 1}, "there was nothing to push"
