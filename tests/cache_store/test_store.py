"""What trainers share cannot be wrong: random histories on a server in memory, and the law behind them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from contracts.store_machine import StoreMachine, unhurried
from contracts.store_trainer import Backend, Trainer, counts_before, dump, load, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from streamer.cache_store.errors import StoreUnavailable
from streamer.cache_store.names import Names, hash_ids
from streamer.cache_store.server import MemoryServer
from streamer.cache_store.store import CacheStore

P, Q = "counts:clicks[0]", "counts:clicks[1]"


class MemoryBackend:
    """A server in memory, and what it loses."""

    def __init__(self) -> None:
        self.server = MemoryServer()

    def connect(self) -> MemoryServer:
        return self.server

    def wipe(self) -> None:
        self.server.clear()

    def copy(self) -> Any:
        return dump(self.server)

    def restore(self, copied: Any) -> None:
        load(self.server, copied)


def test_random_interleavings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.cache_store.table.LEAST_ROWS", 0)
    monkeypatch.setattr("streamer.cache_store.table.CHANGES_PER_ROW", 0.01)

    class MemoryMachine(StoreMachine):
        def backend(self) -> Backend:
            return MemoryBackend()

    run_state_machine_as_test(MemoryMachine, settings=settings(unhurried, max_examples=150, stateful_step_count=50))


# the law ------------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["train", "exchange", "receive", "lost", "again"]), st.integers(0, 1), st.integers(0, 9)),
    max_size=40,
)


class Lossy(MemoryServer):
    """Loses answers, and repeats old requests."""

    lose = False
    requests: list[Any]

    def exchange(self, request: Any) -> Any:
        if not hasattr(self, "requests"):
            self.requests = []
        self.requests.append(request)
        answer = super().exchange(request)
        if self.lose:
            raise StoreUnavailable("slow", "the answer was lost")
        return answer


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_any_order_repetition_and_loss_ends_as_one_exchange_at_the_end(steps: list[tuple[str, int, int]]) -> None:
    def run(server: Lossy, follow: bool) -> list[Any]:
        trainers = [Trainer(CacheStore(server, name)) for name in ("ada", "ben")]
        for trainer, entry in zip(trainers, (P, Q), strict=True):
            trainer.claim(entry, 0)
        for what, who, count in steps:
            trainer = trainers[who]
            if what == "train":
                trainer.train({(P, Q)[who]: count})
            elif not follow:
                continue
            elif what == "exchange":
                trainer.store.try_exchange()
            elif what == "receive":
                trainer.receive(1 + count)
            elif what == "lost":
                server.lose = True
                trainer.store.try_exchange()
                server.lose = False
            elif server.requests:
                server.exchange(server.requests[count % len(server.requests)])
        for _ in range(3):
            for trainer in trainers:
                trainer.store.exchange()
                while trainer.shared.waiting_rows:
                    trainer.receive()
        found = [(trainer.view(), sorted(trainer.table.save())) for trainer in trainers]
        return [*found, [stored(server, name) for name in sorted(server.tops)]]

    assert run(Lossy(), follow=True) == run(Lossy(), follow=False)


# the server, and names ----------------------------------------------------------------------------------------------


def test_a_reader_that_has_missed_changes_reads_all_of_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.cache_store.table.LEAST_ROWS", 0)
    monkeypatch.setattr("streamer.cache_store.table.CHANGES_PER_ROW", 0.02)
    server = MemoryServer()
    ada, ben, cleo = (Trainer(CacheStore(server, name)) for name in ("ada", "ben", "cleo"))
    ada.claim(P, 0), ben.claim(Q, 0)
    first = []
    for k in range(60):
        ada.train({P: 3})
        ada.store.exchange(), ben.store.exchange()
        first.append(server.changes[P][0].to)
        received = ben.shared.received_bytes
        ben.receive()
        assert ben.view()[0] == counts_before(P, 3 * k + 3)
    assert len(set(first)) > 3, "all of it comes when the changes since outweigh it"
    assert len(server.changes[P]) < 60, "older changes are trimmed"
    cleo.store.exchange()
    while cleo.shared.waiting_rows:
        cleo.receive()
    assert cleo.view()[0] == counts_before(P, 180)
    assert received < 60 * cleo.shared.received_bytes / 4, "one that keeps up reads changes only"


def test_a_change_waits_until_the_server_has_the_names_of_its_items() -> None:
    server = MemoryServer()
    ada, ben = (Trainer(CacheStore(server, name)) for name in ("ada", "ben"))
    ada.claim(P, 0), ben.claim(Q, 0)
    ada.train({P: 5})
    ada.store.exchange()
    kept = dict(server._ids)
    server._ids.clear()
    ben.store.exchange()
    ben.receive()
    assert (ben.view()[0], ben.shared.is_caught_up) == (Counter(), False)
    server._ids.update(kept)
    ben.store.exchange()
    ben.receive()
    assert ben.view()[0] == counts_before(P, 5)


def test_a_partition_that_moves_is_applied_before_more_of_it_is_counted() -> None:
    server = MemoryServer()
    ada, ben = (Trainer(CacheStore(server, name)) for name in ("ada", "ben"))
    ada.claim(P, 0), ada.claim(Q, 0)
    ada.train({P: 20, Q: 20})
    ada.store.exchange()
    assert ben.claim(Q, 20) == 20
    ben.train({Q: 3})  # receives a few rows, those of the other partition come first
    assert ben.entry(Q) == counts_before(Q, 23)


def test_draws_may_come_later_than_counts() -> None:
    server = MemoryServer()
    ada = Trainer(CacheStore(server, "ada"))
    ada.claim(P, 0)
    ada.train({P: 5}, draws=2)
    ada.store.exchange(with_draws=False)
    assert server.tops == {P: (5, 0)}
    assert ada.store.status().backlog_events == 0
    ada.store.exchange()
    assert stored(server, "drawn:ada") == Counter({next(iter(ada.rows)): 2})


def test_names_find_their_rows_through_any_history() -> None:
    rng = np.random.default_rng(0)
    names, rows = Names(), {}
    for step in range(300):
        new = rng.choice(5000, 20, replace=False)
        hashes = rng.integers(1, 400, 20).astype(np.uint64) << np.uint64(10 * (step % 2))
        free = np.array([row not in rows.values() for row in new.tolist()])
        names.add(new[free], hashes[free])
        for row, h in zip(new[free].tolist(), hashes[free].tolist(), strict=True):
            assert names.of_row[row] == (h if rows.setdefault(h, row) == row else 0)
        gone = rng.choice(list(rows), 10, replace=False)
        names.remove(np.array([rows.pop(int(h)) for h in gone]))
        wanted = np.array([*rows, 12345], np.uint64)
        assert names.rows_of(wanted).tolist() == [*rows.values(), -1]
        assert names.verified(rng.integers(-1, 20, len(wanted)), wanted).tolist() == [*rows.values(), -1]


def test_hashes_of_ids_are_the_same_everywhere_and_all_different() -> None:
    ids = [f"{kind}{k}".encode() for kind in ("", "item-", "a-very-long-prefix-of-an-id/") for k in range(20_000)]
    hashes = hash_ids(np.frombuffer(b"".join(ids), np.uint8), np.array([len(raw) for raw in ids], np.int32))
    assert len(set(hashes.tolist())) == len(ids)
    tea = hash_ids(np.frombuffer(b"tea", np.uint8), np.array([3], np.int32))
    assert tea.tolist() == [11054792241501865229]
