"""What every store must do, over whatever server. A test class of a server inherits `StoreContract`.

class TestMyStore(StoreContract):
    @pytest.fixture
    def backend(self):
        return MyBackend()          # connect, wipe, copy, restore: see store_trainer.Backend

Exchanges are made by hand, so that each test says what happens when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contracts.store_machine import Unreliable
from contracts.store_trainer import Backend, Stored, Trainer, events_before, item_at, stored

from streamer.cache_store.codec import fingerprint
from streamer.cache_store.contribution import Contribution, Increments, OffsetSpan
from streamer.cache_store.errors import Fenced, StoreUnavailable
from streamer.cache_store.replica import LogPosition, StoreReplica
from streamer.cache_store.server import Claim, ClaimRequest, Cursor, Push, PushOutcome, PushResult, Seed, StoreServer
from streamer.cache_store.state import Received, StoreSettings
from streamer.cache_store.store import CacheStore

P, Q = "clicks-0", "clicks-1"
LARGEST_OFFSET = 2**53 - 1


class Scripted(Unreliable):
    """A network on which something happens before the next operations; nothing unless the test says so."""

    def __init__(self, server: StoreServer) -> None:
        super().__init__(server, lambda: None)


def settle(*trainers: Trainer) -> None:
    """Everybody exchanges and receives, until all have everything."""
    for _ in range(4):
        for trainer in trainers:
            trainer.store.exchange()
            trainer.receive()


def after_five_entries(writer: Trainer, idle: Trainer) -> Received:
    """What a reader gets that took nothing in for five entries of another."""
    idle.receive()
    writer.claim(P, timeout_s=0)
    for _ in range(5):
        writer.train({P: 1})
        writer.store.exchange(), idle.store.exchange()
    return idle.receive()


def only_events(partition: str, offsets: range, items: list[int], **more: Any) -> Contribution:
    """A contribution of these events; `items` are the trainer's rows."""
    return Contribution(
        spans=(OffsetSpan(partition, offsets.start, offsets.stop),),
        sources=np.zeros(len(offsets), np.int32),
        offsets=np.array(offsets, np.int64),
        items=np.array(items, np.int64),
        **more,
    )


class StoreContract:
    """The tests."""

    @pytest.fixture
    def server(self, backend: Backend) -> StoreServer:
        return backend.connect()

    @pytest.fixture
    def trainer(self, backend: Backend) -> Callable[..., Trainer]:
        """Makes a trainer that has joined."""

        def make(name: str = "ada", hard_log_length: int = 4096, saved: Any = None, **settings: Any) -> Trainer:
            """`hard_log_length` is the server's, if it is in memory: name the smallest last."""
            network = Scripted(backend.connect(hard_log_length))
            store = CacheStore(network, StoreSettings(**({"keep_s": 1e9} | settings)), name)
            made = Trainer.resumed(store, name, saved) if saved else Trainer(store, name)
            store.exchange()
            network.store = made
            return made

        return make

    @pytest.fixture
    def now(self, server: StoreServer) -> Callable[[], Stored]:
        """What the server holds."""

        def read() -> Stored:
            found = stored(server)
            assert found is not None
            return found

        return read

    # what is shared ---------------------------------------------------------------------------------------------------

    def test_an_id_has_the_same_row_for_everybody(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ben.rows(["item-6", "item-0", "elsewhere"])  # another order of its own
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        ada.train({P: 5}), ben.train({Q: 6})
        settle(ada, ben)
        names = now().ids
        assert len(set(names)) == len(names)
        for trainer_ in (ada, ben):
            assert [trainer_.ids[row] for row in trainer_.own] == names

    def test_everybody_sees_what_anybody_contributes(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        for _ in range(3):
            ada.train({P: 5}), ben.train({Q: 2})
            ada.store.exchange()
        settle(ada, ben)
        assert now().following == {P: 15, Q: 6}
        assert ada.view() == ben.view() == (events_before({P: 15, Q: 6}), now().drawn)
        assert sum(now().drawn.values()) == 6 * 3

    def test_own_contributions_are_seen_at_once_and_do_not_come_back(self, trainer):
        ada = trainer()
        ada.claim(P, timeout_s=0)
        ada.train({P: 5})
        assert ada.view()[0] == events_before({P: 5})
        ada.store.exchange()
        assert ada.receive().deltas == []
        assert ada.view()[0] == events_before({P: 5})

    def test_a_delta_is_what_one_exchange_of_another_trainer_added(self, trainer):
        ada, ben = trainer("ada"), trainer("ben")
        ben.receive()
        ada.claim(P, timeout_s=0)
        ada.train({P: 3}), ada.train({P: 4})
        ada.store.exchange(), ben.store.exchange()
        (delta,) = ben.receive().deltas
        assert delta.items.counts.sum() == 7
        assert len(np.unique(delta.items.rows)) == len(delta.items.rows)

    def test_a_batch_of_several_partitions_counts_for_each(self, trainer, now):
        ada = trainer()
        ada.claim(P, timeout_s=0), ada.claim(Q, timeout_s=0)
        ada.train({P: 3, Q: 2})
        settle(ada)
        assert now().following == {P: 3, Q: 2}
        assert now().counts == events_before({P: 3, Q: 2})

    def test_ids_may_be_any_text_and_many(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        odd = ["", " ", "a b", "{x}", "ü\n", "\x00", "-1", "1e5", "item"]
        ada.rows([*odd, *(f"many-{k}" for k in range(3000))])
        ada.store.contribute(only_events(P, range(len(ada.ids)), list(range(len(ada.ids)))), ada.ids)
        settle(ada, ben)
        assert sorted(now().ids) == sorted(ada.ids)
        assert ben.view()[0] == Counter(ada.ids)

    def test_counts_and_offsets_may_be_large(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        many = Increments(np.array([0]), np.array([2**40]))
        ada.rows(["x"])
        ada.store.contribute(only_events(P, range(2**53 - 11, 2**53 - 6), [0] * 5, drawn=many), ada.ids)
        settle(ada)
        ada.store.contribute(only_events(P, range(2**53 - 8, LARGEST_OFFSET), [0] * 7), ada.ids)
        settle(ada, ben)
        assert now().following == {P: LARGEST_OFFSET}
        assert ben.view() == (Counter(x=10), Counter(x=2**40))

    # retired ----------------------------------------------------------------------------------------------------------

    def test_an_item_that_one_retires_is_gone_for_all_and_new_when_it_comes_back(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 9}, signed=False)
        settle(ada, ben)
        gone = item_at(P, 1)
        ben.retire(gone)
        settle(ben, ada)
        left = Counter({raw: count for raw, count in events_before({P: 9}).items() if raw != gone})
        assert now().counts == ada.view()[0] == ben.view()[0] == left
        assert gone in now().ids
        assert gone not in now().live
        ada.train({P: 7}, signed=False)
        settle(ada, ben)
        again = events_before({P: 16}) - events_before({P: 9})
        assert now().counts[gone] == again[gone] > 0
        assert now().counts == ada.view()[0] == ben.view()[0] == left + again
        assert now().live.count(gone) == 1
        assert now().ids.count(gone) == 2, "with another row"

    @pytest.mark.parametrize("on_the_way", [False, True])
    def test_what_comes_too_late_for_a_retired_item_is_dropped_and_counted(self, trainer, now, on_the_way):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        ada.train({P: 7}, signed=False), ben.train({Q: 7}, signed=False)
        settle(ada, ben)
        item = item_at(Q, 7)
        assert item in ada.ids
        ben.train({Q: 7}, signed=False)
        late = (events_before({Q: 14}) - events_before({Q: 7}))[item]
        ada.retire(item, force=True)
        if on_the_way:
            ben.store._server.script.append(ada.store.exchange)
        else:
            ada.store.exchange()
        settle(ben, ada)
        expected = events_before({P: 7, Q: 14})
        del expected[item]
        assert now().counts == ada.view()[0] == ben.view()[0] == expected
        assert now().following == {P: 7, Q: 14}
        assert (ada.store.status().retired_events, ben.store.status().retired_events) == (0, late)
        ben.train({Q: 7}, signed=False)
        settle(ben, ada)
        again = events_before({Q: 21}) - events_before({Q: 14})
        assert now().counts == ada.view()[0] == ben.view()[0] == expected + again, "what comes now is of a new item"
        assert ben.store.status().retired_events == late

    @pytest.mark.parametrize("force", [False, True])
    def test_an_old_item_that_others_have_had_since_stays_and_a_deleted_one_does_not(self, trainer, now, force):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 7}, signed=False)
        settle(ada, ben)
        ada.train({P: 7}, signed=False)
        ada.store.exchange()
        item = item_at(P, 7)
        ben.retire(item, force=force)
        assert ben.view()[0][item] == 0
        settle(ben, ada)
        expected = events_before({P: 14})
        if force:
            del expected[item]
        assert now().counts == ada.view()[0] == ben.view()[0] == expected

    def test_an_item_that_its_trainer_has_again_before_anybody_knew_stays(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 7}, signed=False)
        settle(ada, ben)
        ada.retire(item_at(P, 7), force=True)
        ada.train({P: 7}, signed=False)
        settle(ada, ben)
        assert now().counts == ada.view()[0] == ben.view()[0] == events_before({P: 14})

    def test_an_item_that_was_never_sent_is_retired_with_what_was_counted_of_it(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 7}, signed=False)
        ada.retire(item_at(P, 0))
        settle(ada, ben)
        expected = events_before({P: 7})
        del expected[item_at(P, 0)]
        assert now().counts == ada.view()[0] == ben.view()[0] == expected
        assert now().following == {P: 7}

    def test_retired_rows_are_removed_when_they_are_most_and_nothing_else_is_lost(self, trainer, now):
        ada, ben = (trainer(name, retired_rows=2) for name in ("ada", "ben"))
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        ada.train({P: 9}, signed=False)
        settle(ada, ben)
        generation, epochs = now().position.generation, ada.store.state.partitions.epochs[P]
        for k in range(8):
            ada.rows([f"once-{k}"])
            ada.store.contribute(only_events(P, range(9 + k, 10 + k), ada.rows([f"once-{k}"]).tolist()), ada.ids)
            ada.counts[f"once-{k}"] += 1
            settle(ada)
            ada.retire(f"once-{k}")
            ben.train({Q: 1}, signed=False)
            settle(ada, ben)
        assert now().position.generation != generation
        assert len(now().retired) <= 5
        assert now().counts == ada.view()[0] == ben.view()[0] == events_before({P: 9, Q: 8})
        assert now().following == {P: 17, Q: 8}
        assert now().drawn == ada.view()[1] == ben.view()[1]
        assert sum(now().drawn.values()) == 2 * 9
        assert ada.store.state.partitions.epochs[P] > epochs, "an epoch never goes back"
        assert ben.store.status().retired_events == 0

    def test_one_that_missed_a_retirement_follows_when_it_is_back(self, trainer, now):
        """The log was trimmed meanwhile, or the retired rows were removed."""
        ada, ben = (trainer(name, retired_rows=2, soft_log_length=2) for name in ("ada", "ben"))
        ada.claim(P, timeout_s=0)
        ada.train({P: 9}, signed=False)
        settle(ada, ben)
        gone = sorted({item_at(P, offset) for offset in range(9)})[:-1]
        for k, raw in enumerate(gone):
            ada.retire(raw)
            settle(ada)
            saved = ben.checkpoint()
            back = trainer("ben", saved=saved)
            settle(back)
            assert back.view() == ada.view() == (now().counts, now().drawn), k
            assert raw not in back.view()[0]
        settle(ben)
        assert ben.view() == ada.view()

    def test_retirements_survive_a_crash(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 9}, signed=False)
        settle(ada, ben)
        ada.retire(item_at(P, 0), force=True)
        again = trainer("ada", saved=ada.checkpoint())
        settle(again, ben)
        again.receive()
        saved = again.checkpoint()
        ben.claim(P, 9, timeout_s=0)
        ben.train({P: 3}, signed=False)
        settle(ben)
        once_more = trainer("ada", saved=saved)
        settle(once_more)
        expected = events_before({P: 12}) - Counter({item_at(P, 0): events_before({P: 9})[item_at(P, 0)]})
        assert now().counts == once_more.view()[0] == ben.view()[0] == expected

    def test_ids_are_retired_only_by_one_who_has_everything(self, server):
        """Somebody else may have counted them meanwhile."""
        assert seed(server, "g", ["tea", "cup"])
        before = at_head(server)
        assert push(server, chain="c1").outcome is PushOutcome.ADDED
        assert push(server, chain="c2", cursor=before, retired=["tea"]).outcome is PushOutcome.DIVERGED
        assert server.assign("g", ["tea"]) == [0]
        assert push(server, chain="c3", retired=["tea"]).outcome is PushOutcome.ADDED
        assert server.assign("g", ["cup", "tea", "tea"]) == [1, 2, 2]

    def test_a_paused_log_takes_nothing_until_a_generation_begins(self, server):
        assert seed(server, "g", ["tea", "cup"])
        assert server.pause("ada")
        assert server.pause("ada")
        assert not server.pause("ben")
        assert push(server).outcome is PushOutcome.LOG_FULL
        assert not seed(server, "g2", ["cup"], replaces="g", head="another")
        assert seed(server, "g2", ["cup"], replaces="g", head="g")
        assert push(server, generation="g2").outcome is PushOutcome.ADDED
        assert server.pause("ben")

    def test_removing_retired_rows_loses_no_entry_that_came_meanwhile(self, server):
        assert seed(server, "g", ["tea"])
        assert push(server, chain="c1").outcome is PushOutcome.ADDED
        assert not seed(server, "g2", replaces="g", head="g", origin=LogPosition("g", 0, "", ""), events=7)
        assert seed(server, "g2", replaces="g", head="c1", origin=LogPosition("g", 1, "", ""), events=7)

    # once -------------------------------------------------------------------------------------------------------------

    def test_a_trainer_that_claims_a_partition_knows_how_far_it_is_counted(self, trainer):
        ada = trainer("ada")
        ada.claim(P, timeout_s=0)
        ada.train({P: 10})
        settle(ada)
        ben = trainer("ben")
        ben.claim(P, timeout_s=0)
        ben.store.exchange()
        assert ben.store.counted_until(P) == 10
        assert ben.store.counted_until(Q) == 0

    def test_a_replay_adds_only_what_is_new(self, trainer, now):
        ada = trainer("ada")
        ada.claim(P, timeout_s=0)
        ada.train({P: 10})
        settle(ada)
        ben = trainer("ben")
        ben.claim(P, position=4, timeout_s=0)
        ben.store.exchange()
        ben.train({P: 3}), ben.train({P: 6})
        settle(ben)
        assert now().counts == events_before({P: 13})
        assert ben.view() == (now().counts, now().drawn)

    def test_a_contribution_whose_answer_was_lost_counts_once(self, trainer, now):
        ada = trainer()
        ada.claim(P, timeout_s=0)
        ada.store.exchange()
        ada.train({P: 3}), ada.train({P: 4})
        ada.store._server.script.extend(["fine", "fine", "lost answer"])  # pull, assign, push
        with pytest.raises(StoreUnavailable):
            ada.store.exchange()
        assert now().counts == events_before({P: 7})
        ada.train({P: 2})
        settle(ada)
        assert now().counts == events_before({P: 9})
        assert ada.view() == (now().counts, now().drawn)
        assert ada.resets == 0, "nothing was left out, so its view was right all the time"

    def test_an_overlap_adds_only_the_rows_of_events_that_are_new(self, trainer, now):
        """The store has all before 10; then somebody who does not know it sends 6 to 14, in one batch."""
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 10})
        ben.positions[P] = 6  # nobody has told it where to begin: its claim will be made with the exchange
        ben.train({P: 8})
        settle(ada)
        ben.store.claim({P: None}, 0)
        settle(ben)
        assert now().counts == events_before({P: 14})
        assert ben.view() == (now().counts, now().drawn)
        assert not now().drawn[f"{ben.store.state.trainer}:1"], "what a batch that is new in part resampled is left out"

    def test_a_batch_that_another_has_contributed_before_is_left_out(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ben.positions[P] = 0
        ben.train({P: 4})
        ada.claim(P, timeout_s=0)
        ada.train({P: 10})
        settle(ada)
        ben.store.claim({P: None}, 0)
        settle(ben)
        assert now().counts == events_before({P: 10})
        assert ben.view() == (now().counts, now().drawn)
        assert now().drawn == Counter({f"{ada.store.state.trainer}:1": 1, item_at(P, 0): 2})

    def test_a_span_may_begin_before_its_first_event(self, trainer, now):
        """Records without events belong to no row, and must not keep a contribution from being cut."""
        ada, ben = trainer("ada"), trainer("ben")
        ada.rows(["x"]), ben.rows(["x"])
        ada.store.contribute(only_events(P, range(7), [0] * 7), ada.ids)
        settle(ada)
        late = Contribution((OffsetSpan(P, 5, 10),), np.zeros(2, np.int32), np.array([8, 9]), np.array([0, 0]))
        ben.store.contribute(late, ben.ids)
        settle(ben)
        assert now().counts == Counter(x=9)
        assert now().following == {P: 10}

    def test_what_waits_counts_when_its_partition_is_claimed_again(self, trainer, now):
        ada = trainer()
        ada.claim(P, timeout_s=0)
        ada.train({P: 6})
        ada.release(P)
        ada.claim(P, position=0, timeout_s=0)
        ada.train({P: 9})
        settle(ada)
        assert now().counts == events_before({P: 9})

    # whose ------------------------------------------------------------------------------------------------------------

    def test_a_zombie_is_refused_and_fenced(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 5})
        settle(ada)
        ben.claim(P, position=5, timeout_s=0)
        settle(ben)
        ada.train({P: 5})  # it does not know
        ben.train({P: 3})
        settle(ben)
        ada.train({P: 5})
        with pytest.raises(Fenced, match=P):
            ada.store.exchange()
        with pytest.raises(Fenced, match="start it again"):
            ada.receive()
        settle(ben)
        assert now().counts == events_before({P: 8}) == ben.view()[0]

    def test_a_zombie_is_refused_before_the_new_owner_has_sent_anything(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.store.exchange()
        ben.claim(P, timeout_s=0)
        ben.store.exchange()
        ada.train({P: 5})
        with pytest.raises(Fenced):
            ada.store.exchange()
        assert now().counts == Counter()

    def test_contribute_and_claim_of_a_zombie_do_not_raise(self, trainer):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.store.exchange()
        ben.claim(P, timeout_s=0)
        ben.store.exchange()
        ada.train({P: 5})
        with pytest.raises(Fenced):
            ada.store.exchange()
        ada.train({P: 5})
        assert ada.store.claim({Q: None}, 0) is False
        assert ada.store.flush(0) is False

    @pytest.mark.parametrize("loss", ["trimmed", "wiped"])
    def test_a_zombie_that_wakes_up_late_does_not_take_its_partition_back(self, backend, trainer, now, loss):
        """It has nothing to send, but has to join again: it is refused even so."""
        ada, ben = trainer("ada"), trainer("ben", soft_log_length=2)
        ada.claim(P, timeout_s=0)
        settle(ada)
        ben.claim(P, timeout_s=0)
        settle(ben)
        if loss == "wiped":
            backend.wipe()
        for _ in range(4):
            ben.train({P: 2})
            settle(ben)
        with pytest.raises(Fenced):
            ada.store.exchange()
        ben.train({P: 2})
        settle(ben)
        assert now().counts == events_before({P: 10})

    def test_a_zombie_that_comes_first_to_an_empty_server_is_refused_later(self, backend, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        settle(ada)
        ben.claim(P, timeout_s=0)
        settle(ben)
        backend.wipe()
        ada.store.exchange()
        ada.train({P: 2})
        ben.train({P: 4})
        settle(ben)
        with pytest.raises(Fenced):
            ada.store.exchange()
        settle(ben)
        assert now().counts == events_before({P: 4})

    def test_a_claim_whose_answer_was_lost_is_made_again(self, trainer, now):
        ada = trainer()
        ada.claim(P, timeout_s=0)
        for script in (["lost answer"], ["lost request"]):
            ada.store._server.script.extend(script)
            with pytest.raises(StoreUnavailable):
                ada.store.exchange()
        ada.train({P: 2})
        settle(ada)
        assert now().following == {P: 2}

    def test_a_claim_is_made_again_after_joining_though_an_answer_was_lost(self, backend, trainer, now):
        ada = trainer()
        ada.claim(P, timeout_s=0)
        ada.train({P: 2})
        settle(ada)
        backend.wipe()
        ada.store._server.script.extend(["fine"] * 3 + ["lost answer"])  # pull, seed, pull, claim
        for _ in range(3):
            try:
                ada.store.exchange()
            except StoreUnavailable:
                continue
        ada.train({P: 2})
        settle(ada)
        assert now().following == {P: 4}

    def test_released_partitions_go_on_with_another_trainer(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 5})
        settle(ada)
        ada.release(P)
        ben.claim(P, position=3, timeout_s=0)
        ben.store.exchange()
        ben.train({P: 5})
        settle(ada, ben)
        assert now().counts == events_before({P: 8}) == ada.view()[0] == ben.view()[0]

    def test_what_was_not_sent_before_another_claimed_is_dropped_and_counted(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0), ada.claim(Q, timeout_s=0)
        ada.store.exchange()
        ada.train({P: 5, Q: 4})
        ada.release(P)
        ben.claim(P, timeout_s=0)
        ben.store.exchange()
        settle(ada)
        assert now().counts == events_before({Q: 4}) == ada.view()[0]
        assert ada.store.status().refused_events == 5
        ben.train({P: 6})
        settle(ben)
        assert now().counts == events_before({P: 6, Q: 4})

    def test_a_recreated_partition_is_counted_from_its_beginning(self, trainer, now):
        ada = trainer("ada")
        ada.claim(P, timeout_s=0)
        ada.train({P: 10})
        settle(ada)
        ben = trainer("ben")
        ben.claim(P, end=4, timeout_s=0)
        ben.store.exchange()
        assert ben.store.counted_until(P) == 0
        ben.train({P: 4})
        settle(ben)
        assert now().counts == events_before({P: 10}) + events_before({P: 4})
        assert now().following == {P: 4}

    def test_a_partition_that_was_not_recreated_is_not_forgotten(self, trainer, now):
        ada = trainer("ada")
        ada.claim(P, timeout_s=0)
        ada.train({P: 10})
        settle(ada)
        ben = trainer("ben")
        ben.claim(P, end=10, timeout_s=0)
        ben.store.exchange()
        assert ben.store.counted_until(P) == 10

    @pytest.mark.parametrize("loss", ["wiped", "trimmed"])
    def test_an_end_that_is_long_passed_does_not_make_a_partition_a_recreated_one(self, backend, trainer, now, loss):
        """Ends are as of the claim: when it is repeated after joining again, we have contributed beyond."""
        ada, ben = trainer("ada"), trainer("ben", soft_log_length=1)
        ada.claim(P, end=3, timeout_s=0)
        ben.claim(Q, timeout_s=0)
        ada.train({P: 10})
        settle(ada)
        if loss == "wiped":
            backend.wipe()
        for _ in range(3):
            ben.train({Q: 2})
            ben.store.exchange()
        settle(ada, ben)
        cleo = trainer("cleo")
        cleo.claim(P, position=5, timeout_s=0)
        cleo.store.exchange()
        cleo.train({P: 5})
        settle(cleo)
        assert now().counts == events_before({P: 10, Q: 6})

    def test_a_recreated_partition_stays_so_when_its_owner_joins_again_at_once(self, backend, trainer, now):
        """Nothing of its new life is in the log yet; the replica and the snapshot know its former life only."""
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 10})
        settle(ada, ben)
        ada.release(P)
        ben.claim(P, end=4, timeout_s=0)
        ben.store.exchange()
        ben.train({P: 3})
        backend.wipe()
        settle(ada, ben)
        ben.train({P: 1})
        settle(ben)
        assert now().following == {P: 4}
        assert now().counts == events_before({P: 10}) + events_before({P: 4}) == ben.view()[0]

    def test_a_former_life_of_a_partition_is_not_sent_again(self, backend, trainer, now):
        ada = trainer()
        ada.claim(P, timeout_s=0)
        ada.train({P: 10})
        ada.store.exchange()
        ada.train({P: 10})  # waits
        ada.claim(P, end=4, timeout_s=0)
        ada.train({P: 3})
        settle(ada)
        backend.wipe()
        settle(ada)
        assert now().following == {P: 3}
        assert now().counts == events_before({P: 10}) + events_before({P: 3}) == ada.view()[0]

    # late, slow and long ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("soft_log_length", [1, 100])
    def test_a_late_joiner_gets_everything_with_its_first_receive(self, trainer, soft_log_length):
        ada = trainer("ada", soft_log_length=soft_log_length)
        ada.claim(P, timeout_s=0)
        for _ in range(4):
            ada.train({P: 3}, cache=[item_at(P, 0), item_at(P, 2)])
            settle(ada)
        ben = trainer("ben")
        received = ben.receive()
        assert received.reset is not None
        assert len(received.reset.counts) == len(received.reset.drawn) == len(received.ids)
        assert ben.view() == ada.view()
        assert ben.cache == [item_at(P, 0), item_at(P, 2)]

    def test_a_slow_reader_whose_entries_were_trimmed_gets_totals(self, trainer, now):
        ada, ben = trainer("ada", soft_log_length=2), trainer("ben")
        ben.receive()
        ben.claim(Q, timeout_s=0)
        ben.store.exchange()
        ben.train({Q: 3})
        ada.claim(P, timeout_s=0)
        for _ in range(5):
            ada.train({P: 3})
            ada.store.exchange()
        ben.store.exchange()
        received = ben.receive()
        assert received.reset is not None
        assert ben.view()[0] == events_before({P: 15, Q: 3}) == now().counts

    def test_a_reader_that_receives_nothing_for_long_gets_totals(self, trainer, monkeypatch):
        monkeypatch.setattr("streamer.cache_store.state.MAX_INBOX_ROWS", 6)
        monkeypatch.setattr("streamer.cache_store.state.MAX_INBOX_ROWS_PER_ITEM", 0)
        ada, ben = trainer("ada"), trainer("ben")
        received = after_five_entries(ada, ben)
        assert received.reset is not None
        assert received.deltas == []
        assert ben.view() == ada.view()

    def test_a_few_rows_that_wait_are_no_reason_for_totals(self, trainer):
        ada, ben = trainer("ada"), trainer("ben")
        received = after_five_entries(ada, ben)
        assert received.reset is None
        assert len(received.deltas) == 5
        assert ben.view() == ada.view()

    def test_thousands_of_new_items_get_rows_in_one_exchange(self, trainer, now):
        """Also by one who knows none of those that another has named meanwhile."""
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        settle(ada, ben)
        ids = [f"new-{k}" for k in range(3_000)]
        rows = ada.rows(ids).tolist()
        ada.store.contribute(only_events(P, range(3_000), rows), ada.ids)
        ada.store.exchange()
        assert now().counts == Counter(ids)
        ben.train({Q: 5})
        ben.store.exchange()
        assert now().counts == Counter(ids) + events_before({Q: 5})

    def test_a_cache_that_cannot_be_read_is_left_out(self, trainer, now):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        settle(ada, ben)
        real, ada.store._server.push = ada.store._server.push, lambda push: real(replace(push, cache=b"garbage"))
        ada.train({P: 5}, cache=[item_at(P, 0)])
        settle(ada, ben)
        assert ben.cache is None
        assert ben.view()[0] == events_before({P: 5}) == now().counts
        ben.train({Q: 5}, cache=[item_at(Q, 0)])
        settle(ben, ada)
        assert ada.cache == [item_at(Q, 0)]

    def test_a_snapshot_trims_the_log_and_changes_nothing(self, trainer, now):
        ada, ben = trainer("ada", soft_log_length=3), trainer("ben")
        ada.claim(P, timeout_s=0)
        for _ in range(8):
            ada.train({P: 1})
            ada.store.exchange()
            assert len(now().log) < 3
            assert now().counts == events_before(now().following)
        ben.store.exchange()
        ben.receive()
        assert ben.view() == ada.view()
        assert ada.store.status().snapshots == 2

    def test_the_log_is_never_longer_than_its_bound_and_what_did_not_fit_comes_later(self, trainer, now):
        ada = trainer("ada", hard_log_length=4, soft_log_length=1000)
        ada.claim(P, timeout_s=0)
        for _ in range(7):
            ada.train({P: 2})
            ada.store.exchange()
            assert len(now().log) <= 4
        assert now().counts == events_before({P: 8})
        assert ada.store.status().backlog_events == 6
        ben = trainer("ben", hard_log_length=4, soft_log_length=2)
        settle(ben, ada)
        assert now().counts == events_before({P: 14}) == ada.view()[0]

    def test_a_backlog_is_bounded_and_loses_nothing(self, trainer, now):
        ada = trainer("ada", max_waiting=4)
        ada.claim(P, timeout_s=0), ada.claim(Q, timeout_s=0)
        drawn = {ada.train({P: 2, Q: k % 2}) for k in range(40)}
        assert ada.store.status().backlog_contributions <= 5
        assert ada.store.status().backlog_events == 100
        settle(ada)
        assert now().counts == events_before({P: 80, Q: 20}) == ada.view()[0]
        assert all(now().drawn[raw] == 1 for raw in drawn)

    def test_a_bounded_backlog_without_a_partition_that_others_took_keeps_the_rest(self, trainer, now):
        ada, ben = trainer("ada", max_waiting=4), trainer("ben")
        ada.claim(P, timeout_s=0), ada.claim(Q, timeout_s=0)
        ada.store.exchange()
        for _ in range(20):
            ada.train({P: 2, Q: 1})
        ada.release(P)
        ben.claim(P, timeout_s=0)
        ben.store.exchange()
        settle(ada)
        assert now().counts == events_before({Q: 20}) == ada.view()[0]

    # the cache --------------------------------------------------------------------------------------------------------

    def test_the_cache_is_that_of_the_last_exchange(self, trainer):
        ada, ben, cleo = trainer("ada"), trainer("ben"), trainer("cleo")
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        ada.train({P: 1}, cache=["a", "b"])
        ben.train({Q: 1}, cache=["b", "c", "b"])
        settle(ben), settle(ada)
        settle(cleo, ben, ada)
        assert ada.cache == ben.cache == cleo.cache == ["a", "b"]
        ben.train({Q: 1}, cache=["x"])
        ben.train({Q: 1}, cache=["y", "y"])
        settle(ben, ada, cleo)
        assert ada.cache == ben.cache == cleo.cache == ["y", "y"]

    def test_a_contribution_without_a_cache_leaves_the_one_there_is(self, trainer):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 1}, cache=["a", "b"])
        settle(ada)
        ada.train({P: 1})
        settle(ada, ben)
        assert ben.cache == ["a", "b"]

    def test_a_cache_comes_only_when_it_is_a_newer_one(self, trainer):
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 1}, cache=["a"])
        settle(ada)
        ben.store.exchange()
        assert ben.receive().cache is not None
        ada.train({P: 1})
        settle(ada)
        ben.store.exchange()
        assert ben.receive().cache is None

    # crashes ----------------------------------------------------------------------------------------------------------

    def test_a_restart_goes_on_where_its_checkpoint_was(self, trainer, now):
        ada = trainer("ada")
        ada.claim(P, timeout_s=0)
        ada.train({P: 5})
        settle(ada)
        saved = ada.checkpoint()
        ada.train({P: 5})
        settle(ada)
        again = trainer("ada", saved=saved)
        again.claim(P, position=saved.positions[P], timeout_s=0)
        settle(again)
        again.train({P: 2}), again.train({P: 4})  # other batches: 5..7, 7..11
        settle(again)
        assert again.resets == 0, "the log has what it lacks"
        assert now().counts == events_before({P: 11}) == again.view()[0]
        assert again.view()[1] == now().drawn

    @pytest.mark.parametrize("max_waiting", [3, 100])
    @pytest.mark.parametrize("sent", [False, True])
    def test_what_waits_at_a_checkpoint_is_sent_after_a_restart(self, trainer, now, sent, max_waiting):
        """Sent before the crash or not, one by one or added up."""
        ada = trainer("ada", max_waiting=max_waiting)
        ada.claim(P, timeout_s=0), ada.claim(Q, timeout_s=0)
        for _ in range(6):
            ada.train({P: 3, Q: 1})
        saved = ada.checkpoint()
        if sent:
            ada.store.exchange()
        again = trainer("ada", saved=saved)
        again.claim(P, position=18, timeout_s=0), again.claim(Q, position=6, timeout_s=0)
        again.train({P: 2, Q: 2})
        settle(again)
        assert now().counts == events_before({P: 20, Q: 8}) == again.view()[0]
        assert again.view()[1] == now().drawn

    def test_what_is_received_comes_with_the_state(self, trainer):
        ada, ben = trainer("ada"), trainer("ben")
        ben.receive()
        ada.claim(P, timeout_s=0)
        ada.train({P: 5})
        ada.store.exchange(), ben.store.exchange()
        saved = ben.checkpoint()
        assert ben.view() == ada.view()
        assert ben.receive().deltas == []
        assert trainer("ben", saved=saved).view() == ada.view()

    def test_a_checkpoint_is_not_changed_by_what_comes_after_it(self, trainer):
        ada = trainer()
        ada.claim(P, timeout_s=0)
        ada.train({P: 5})
        ada.store.exchange()
        arrays, values, _ = ada.store.save()
        before = {name: array.copy() for name, array in arrays.items()}, repr(values)
        ada.train({P: 5})
        ada.store.exchange()
        assert repr(values) == before[1]
        assert all((arrays[name] == array).all() for name, array in before[0].items())

    # a server that loses something ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("first", ["ada", "ben", "cleo"])
    def test_a_server_that_lost_everything_has_it_again_whoever_comes_first(self, backend, trainer, now, first):
        trainers = {name: trainer(name) for name in ("ada", "ben", "cleo")}
        ada, ben, cleo = trainers.values()
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        ada.train({P: 5})
        settle(ada, ben, cleo)
        ada.train({P: 5}), ben.train({Q: 5})
        ada.store.exchange()  # cleo and ben do not know that yet
        ada.train({P: 3})
        backend.wipe()
        settle(trainers.pop(first))
        settle(*trainers.values())
        settle(ada, ben, cleo)
        assert now().counts == events_before({P: 13, Q: 5})
        assert ada.view() == ben.view() == cleo.view() == (now().counts, now().drawn)

    def test_a_server_that_knew_nobody_takes_what_a_restarted_trainer_has(self, backend, trainer, now):
        ada = trainer("ada")
        ada.claim(P, timeout_s=0)
        ada.train({P: 8})
        settle(ada)
        saved = ada.checkpoint()
        backend.wipe()
        newcomer = trainer("ben")
        newcomer.claim(Q, timeout_s=0)
        newcomer.train({Q: 3})
        settle(newcomer)
        again = trainer("ada", saved=saved)
        again.claim(P, position=8, timeout_s=0)
        settle(again, newcomer)
        assert now().counts == events_before({P: 8, Q: 3}) == again.view()[0] == newcomer.view()[0]

    @pytest.mark.parametrize("first", ["ada", "ben"])
    @pytest.mark.parametrize("entries", [1, 5])
    def test_a_server_that_lost_the_end_has_it_again(self, backend, trainer, now, first, entries):
        """Before anybody notices, others have added as many entries as were lost, or more."""
        trainers = {name: trainer(name) for name in ("ada", "ben")}
        ada, ben = trainers.values()
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        ada.train({P: 5})
        settle(ada, ben)
        copied = backend.copy()
        for _ in range(3):
            ada.train({P: 2})
            ada.store.exchange()
        ada.receive()
        backend.restore(copied)
        for _ in range(entries):
            ben.train({Q: 1})
            ben.store.exchange()
        settle(trainers.pop(first))
        settle(*trainers.values())
        settle(ada, ben)
        assert now().counts == events_before({P: 11, Q: entries})
        assert ada.view() == ben.view() == (now().counts, now().drawn)

    @pytest.mark.parametrize("entries", [1, 2, 5])
    def test_lost_entries_are_noticed_though_as_many_came_in_their_place(self, backend, trainer, now, entries):
        """By nothing else than that they name each other: all are of known items, and their numbers go on."""
        ada, ben = trainer("ada"), trainer("ben")
        ada.rows(["x"]), ben.rows(["x"])
        ada.store.contribute(only_events(P, range(1), [0]), ada.ids)
        settle(ada, ben)
        copied = backend.copy()
        ada.store.contribute(only_events(P, range(1, 2), [0]), ada.ids)
        settle(ada)
        backend.restore(copied)
        for k in range(entries):
            ben.store.contribute(only_events(Q, range(k, k + 1), [0]), ben.ids)
            ben.store.exchange()
        settle(ada, ben)
        assert now().counts == Counter(x=2 + entries)
        assert now().following == {P: 2, Q: entries}

    def test_rows_that_a_server_gave_and_lost_are_not_used(self, backend, trainer, now):
        """It named items for one trainer, lost them before they were used, and gave their rows to other items."""
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        settle(ada, ben)
        copied = backend.copy()
        ada.train({P: 3})
        ada.store._server.script.extend(["fine", "fine", "lost request"])  # pull, assign, push
        with pytest.raises(StoreUnavailable):
            ada.store.exchange()
        backend.restore(copied)
        ben.train({Q: 4})
        settle(ben, ada)
        settle(ben, ada)
        assert now().counts == events_before({P: 3, Q: 4}) == ada.view()[0] == ben.view()[0]

    def test_rows_that_a_server_gave_after_it_lost_others_are_not_used(self, backend, trainer, now):
        """In the midst of an exchange: the row that it gives is that of another item in what it is seeded with."""
        ada = trainer()
        ada.rows(["x", "y", "z"])
        ada.store.contribute(only_events(P, range(1), [0]), ada.ids)
        settle(ada)
        copied = backend.copy()
        ada.store.contribute(only_events(P, range(1, 2), [1]), ada.ids)
        settle(ada)
        ada.store.contribute(only_events(P, range(2, 3), [2]), ada.ids)
        ada.store._server.script.extend(["fine", lambda: backend.restore(copied)])  # pull, assign
        settle(ada)
        assert now().counts == Counter(x=1, y=1, z=1)

    def test_what_a_server_lost_before_it_came_back_is_sent_again(self, backend, trainer, now):
        ada = trainer()
        ada.claim(P, timeout_s=0)
        settle(ada)
        ada.train({P: 5})
        ada.store._server.script.extend(["fine", "fine", "fine", backend.wipe])  # pull, assign, push, ids
        settle(ada)
        assert now().counts == events_before({P: 5}) == ada.view()[0]

    def test_rows_that_everybody_knew_and_the_server_lost_are_not_used(self, backend, trainer, now):
        ben, ada = trainer("ben", soft_log_length=99), trainer("ada", hard_log_length=1, soft_log_length=99)
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        ben.train({Q: 1})
        settle(ben, ada)
        copied = backend.copy()
        ada.train({P: 3})
        settle(ada)  # the log is full: it knows its items' rows, and could add nothing
        assert now().following == {Q: 1}
        backend.restore(copied)
        ben.store._server._server._hard = 99
        ben.train({Q: 6})
        settle(ben)
        ada.store._server._server._hard = 99
        settle(ada, ben)
        assert now().counts == events_before({P: 3, Q: 7}) == ada.view()[0] == ben.view()[0]

    def test_what_may_have_arrived_is_not_added_up_with_what_has_not(self, trainer, now):
        ada = trainer(max_waiting=4)
        ada.claim(P, timeout_s=0)
        settle(ada)
        ada.train({P: 2})
        for script in (["fine", "fine", "lost answer"], ["lost request"]):  # pull, assign, push; pull
            ada.store._server.script.extend(script)
            with pytest.raises(StoreUnavailable):
                ada.store.exchange()
            assert not ada.store._server.script
        for _ in range(6):
            ada.train({P: 1})
        settle(ada)
        assert now().counts == events_before({P: 8}) == ada.view()[0]

    def test_what_a_server_took_and_lost_before_it_came_back_is_sent_again(self, backend, trainer, now):
        """It was added, and lost before we had it in our replica: to us the log looks as it did before."""
        ada = trainer()
        ada.claim(P, timeout_s=0)
        settle(ada)
        copied = backend.copy()
        ada.train({P: 3})
        ada.store._server.script.extend(["fine", "fine", "fine", "lost request"])  # pull, assign, push, ids
        with pytest.raises(StoreUnavailable):
            ada.store.exchange()
        assert now().following == {P: 3}
        backend.restore(copied)
        settle(ada)
        assert now().counts == events_before({P: 3}) == ada.view()[0]

    def test_a_receive_while_joining_does_not_spoil_the_counts(self, backend, trainer, now):
        """What was contributed long ago is sent again; the training thread asks in between."""
        ada, ben = trainer("ada"), trainer("ben")
        ada.claim(P, timeout_s=0)
        ada.train({P: 2})
        settle(ada, ben)
        ada.train({P: 4})
        settle(ada)
        backend.wipe()
        settle(ben)  # knows nothing of the last batch
        backend.age()
        ada.store._server.script.extend(["receive"] * 12)
        ada.store.exchange()
        settle(ada, ben)
        assert now().counts == events_before({P: 6}) == ada.view()[0] == ben.view()[0]

    # who is there -----------------------------------------------------------------------------------------------------

    def test_a_trainer_that_closes_leaves(self, backend, trainer):
        ada, ben = trainer("ada"), trainer("ben")
        assert backend.trainers() == {ada.store.state.trainer, ben.store.state.trainer}
        ada.store.close()
        assert backend.trainers() == {ben.store.state.trainer}

    def test_a_trainer_that_was_taken_over_closes_without_a_word(self, backend, trainer):
        ada, ben = trainer("ada"), trainer("ben")
        for one in (ada, ben):
            one.claim(P, timeout_s=0)
            one.store.exchange()
        ada.train({P: 5})
        with pytest.raises(Fenced):
            ada.store.exchange()
        ada.store.close()
        assert ada.store.state.trainer in backend.trainers()

    @pytest.mark.parametrize("happens", ["lost request", "lost answer"])
    def test_a_trainer_that_cannot_say_that_it_leaves_closes_all_the_same(self, trainer, happens):
        ada = trainer("ada")
        ada.store._server.script.append(happens)
        ada.store.close()
        assert not ada.store._server.script, "it has tried to"

    # the server's own promises ----------------------------------------------------------------------------------------

    def test_only_the_trainer_that_leaves_is_gone(self, backend: Backend, server: StoreServer):
        server.heartbeat("ada", P), server.heartbeat("ben", Q)
        server.leave("ada"), server.leave("nobody")
        assert backend.trainers() == {"ben"}

    def test_what_becomes_of_a_push(self, server: StoreServer):
        assert push(server).outcome is PushOutcome.EMPTY
        seed(server, "g")
        assert push(server, generation="h").outcome is PushOutcome.WRONG_GENERATION
        assert push(server, items=1).outcome is PushOutcome.WRONG_GENERATION
        assert push(server, (OffsetSpan(P, 0, 5), 0)).outcome is PushOutcome.ADDED
        assert push(server, (OffsetSpan(P, 0, 5), 0)).outcome is PushOutcome.DUPLICATE
        overlap = push(server, (OffsetSpan(P, 3, 7), 0), (OffsetSpan(Q, 0, 1), 0))
        assert (overlap.outcome, overlap.next) == (PushOutcome.OVERLAP, {P: 5, Q: 0})
        claims = server.claim("g", "ada", {P: ClaimRequest(0, None, True)})
        assert claims is not None
        fenced = push(server, (OffsetSpan(P, 5, 7), 0))
        assert (fenced.outcome, fenced.partition) == (PushOutcome.FENCED, P)
        assert push(server, (OffsetSpan(P, 5, 7), claims[P].epoch)).outcome is PushOutcome.ADDED

    def test_a_full_log_takes_no_push(self, backend: Backend):
        server = backend.connect(hard_log_length=1)
        seed(server, "g")
        assert push(server).outcome is PushOutcome.ADDED
        full = push(server)
        assert (full.outcome, full.length) == (PushOutcome.LOG_FULL, 1)

    def test_a_refused_push_changes_nothing(self, server: StoreServer):
        seed(server, "g")
        push(server, (OffsetSpan(P, 0, 5), 0), cache=b"first")
        server.claim("g", "ada", {Q: ClaimRequest(0, None, True)})
        before = server.pull(LogPosition.beginning("g"), 100, "")
        refused = [
            push(server, generation="h", cache=b"x"),
            push(server, (OffsetSpan(P, 5, 9), 0), (OffsetSpan(Q, 0, 9), 0), cache=b"x"),
            push(server, (OffsetSpan(P, 3, 9), 0), cache=b"x"),
            push(server, (OffsetSpan(P, 0, 5), 0), cache=b"x"),
        ]
        assert all(result.outcome is not PushOutcome.ADDED for result in refused)
        assert server.pull(LogPosition.beginning("g"), 100, "") == before

    def test_a_push_returns_what_has_come_since_and_itself(self, server: StoreServer):
        seed(server, "g", ids=["a"])
        push(server, (OffsetSpan(P, 0, 1), 0), chain="c1", cache=b"theirs")
        push(server, (OffsetSpan(P, 1, 2), 0), chain="c2")
        server.assign("g", ["b"])
        pulled = push(
            server, (OffsetSpan(Q, 0, 1), 0), chain="c3", cursor=cursor(LogPosition.beginning("g"), ["a"])
        ).pulled
        wanted = server.pull(LogPosition.beginning("g"), 9, "")
        assert pulled is not None
        assert pulled.head == wanted.head
        assert (pulled.cache, pulled.cache_chain) == (b"theirs", "c1")
        assert [e[:2] for e in pulled.entries] == [e[:2] for e in wanted.entries]
        assert [e.packed for e in pulled.entries[:2]] == [b"packed"] * 2
        assert pulled.entries[2].packed in (b"", b"packed")

    def test_a_push_with_a_cache_returns_that_one(self, server: StoreServer):
        seed(server, "g")
        push(server, chain="c1", cache=b"theirs")
        pulled = push(server, chain="c2", cache=b"ours", cursor=cursor(LogPosition.beginning("g"), [])).pulled
        assert pulled is not None
        assert (pulled.cache, pulled.cache_chain) == (b"ours", "c2")
        where = cursor(pulled.entries[-1].position, [], cache_chain="c2")
        again = push(server, chain="c3", cursor=where).pulled
        assert again is not None
        assert again.cache is None

    def test_a_push_returns_no_more_entries_than_the_trainer_takes(self, server: StoreServer):
        seed(server, "g")
        for k in range(3):
            push(server, (OffsetSpan(P, k, k + 1), 0), chain=f"c{k}")
        where = cursor(LogPosition.beginning("g"), [], max_entries=3)
        pulled = push(server, chain="ours", cursor=where).pulled
        assert pulled is not None
        assert [e.position.chain for e in pulled.entries] == ["c0", "c1", "c2"]
        assert pulled.head is not None
        assert (pulled.head.chain, pulled.head.number) == ("ours", 4)
        following = server.pull(pulled.entries[-1].position, 3, "").entries
        assert [(e.position.chain, e.previous_chain, e.packed) for e in following] == [("ours", "c2", b"packed")]

    def test_a_push_from_where_the_log_does_not_continue_has_diverged(self, server: StoreServer):
        seed(server, "g", ids=["a", "b"])
        push(server, chain="c1")
        push(server, chain="c2")
        first, second = (entry.position for entry in server.pull(LogPosition.beginning("g"), 9, "").entries)
        beginning, both = LogPosition.beginning("g"), ["a", "b"]
        diverged = [
            cursor(second._replace(chain="lost"), both),
            cursor(first._replace(chain="lost"), both),
            cursor(second._replace(number=9, chain="later", stream_id="99999999999999-0"), both),
            cursor(beginning._replace(chain="lost"), both),
            cursor(second, ["a", "other"]),
            cursor(second, ["other"]),
            cursor(second, ["a", "b", "c"]),
        ]
        for where in diverged:
            assert push(server, chain="diverged", cursor=where).outcome is PushOutcome.DIVERGED, where
        assert server.save_snapshot("ada", first, b"x")
        assert push(server, chain="too slow", cursor=cursor(beginning, both)).outcome is PushOutcome.DIVERGED
        assert [e.position.chain for e in server.pull(first, 9, "").entries] == ["c2"]
        for k, where in enumerate([cursor(first, both), cursor(first, ["a"]), cursor(first, [])]):
            assert push(server, chain=f"well {k}", cursor=where).outcome is PushOutcome.ADDED

    def test_another_generation_is_not_served(self, server: StoreServer):
        seed(server, "g", ids=["a", "b"])
        assert server.assign("h", ["c"]) is None
        assert server.ids("h", 0, 10) is None
        assert server.claim("h", "ada", {P: ClaimRequest(0, None, True)}) is None
        assert server.pull(LogPosition.beginning("h"), 10, "").entries == []
        assert server.save_snapshot("ada", LogPosition("h", 1, "c", "1-0"), b"x") is False
        assert server.ids("g", 0, 10) == ["a", "b"]
        assert server.assign("g", ["b", "c", "a", "c"]) == [1, 2, 0, 2]

    def test_a_snapshot_is_taken_only_at_an_entry_of_the_log(self, server: StoreServer):
        seed(server, "g")
        push(server, (OffsetSpan(P, 0, 1), 0), chain="c1")
        push(server, (OffsetSpan(P, 1, 2), 0), chain="c2")
        first, second = (entry.position for entry in server.pull(LogPosition.beginning("g"), 9, "").entries)
        assert server.save_snapshot("ada", first._replace(chain="other"), b"x") is False
        assert server.save_snapshot("ada", second, b"second") is True
        assert server.snapshot() == b"second"
        assert server.pull(second, 9, "").entries == []
        assert server.save_snapshot("ada", first, b"first") is False
        assert server.snapshot() == b"second"

    def test_claims_raise_epochs_beyond_all_that_anybody_knew(self, server: StoreServer):
        seed(server, "g")

        def claimed(trainer: str, epoch: int, assigned: bool) -> Claim:
            claims = server.claim("g", trainer, {P: ClaimRequest(epoch, None, assigned)})
            assert claims is not None
            return claims[P]

        first, ours = claimed("ada", 0, assigned=True).epoch, 2**52
        second = claimed("ben", ours, assigned=True).epoch
        assert (first < ours, second) == (True, ours + 1)
        assert claimed("ada", first, assigned=False) == (second, None, False)
        assert claimed("ben", ours, assigned=False) == (second + 1, None, True)
        assert claimed("ada", second + 1, assigned=False) == (second + 2, None, True)

    def test_a_new_claim_is_beyond_those_that_the_server_has_lost(self, backend: Backend, server: StoreServer):
        """Whoever seeds it need not know in which epochs others had claimed a partition."""
        seed(server, "g")
        before = server.claim("g", "ben", {P: ClaimRequest(0, None, True)})
        backend.wipe()
        seed(server, "h")
        after = server.claim("h", "ada", {P: ClaimRequest(0, None, True)})
        assert before is not None
        assert after is not None
        assert after[P].epoch >= before[P].epoch

    def test_a_trainer_is_not_fenced_by_one_that_had_its_partition_before(self, backend, trainer, now):
        """The server is emptied twice, and is seeded by the former owner the second time."""
        ben, ada = trainer("ben"), trainer("ada")
        ben.claim(P, timeout_s=0)
        ben.train({P: 2})
        settle(ben, ada)
        ben.release(P)
        ada.claim(P, position=2, timeout_s=0)
        backend.wipe()
        settle(ada, ben)
        backend.wipe()
        settle(ben, ada)
        ada.train({P: 3})
        settle(ada, ben)
        assert now().counts == events_before({P: 5})

    def test_a_state_is_replaced_only_by_one_that_knew_more_of_the_same(self, server: StoreServer):
        def at(generation: str, number: int) -> LogPosition:
            return LogPosition(generation, number, "c", f"{number}-0")

        assert seed(server, "g1", origin=at("old", 5)) is True
        assert seed(server, "g2", origin=at("old", 5)) is False
        assert seed(server, "g2", origin=None) is False
        assert seed(server, "g2", origin=at("other", 9)) is False
        assert seed(server, "g2", origin=at("old", 6)) is True
        assert seed(server, "g3", origin=at("old", 5), replaces="g1") is False
        assert seed(server, "g3", origin=at("old", 5), replaces="g2") is True
        assert seed(server, "g4", origin=at("other", 9), events=7) is True, "of another origin, but it knows more"
        assert seed(server, "g5", origin=at("old", 99), events=7) is False
        assert seed(server, "g5", origin=at("other", 9), events=7) is False
        assert seed(server, "g5", origin=at("g3", 1), events=9) is False, (
            "g3 was replaced: what grew out of it is sent again"
        )
        assert seed(server, "g5", origin=at("g0", 1), events=9) is True
        head = server.pull(LogPosition.beginning("g5"), 1, "").head
        assert head is not None
        assert head.generation == "g5"

    def test_an_old_checkpoint_does_not_replace_what_the_living_know(self, backend, trainer, now):
        """A trainer restarts from long ago just when the server is emptied, and seeds it first."""
        ada, ben = trainer("ada"), trainer("ben")
        long_ago = ben.checkpoint()
        backend.wipe()
        settle(ada)
        ada.claim(P, timeout_s=0), ben.claim(Q, timeout_s=0)
        settle(ada, ben)
        ada.train({P: 3}), ben.train({Q: 4})
        settle(ada, ben)
        backend.wipe()
        trainer("ben", saved=long_ago)
        settle(ada)
        assert now().counts == events_before({P: 3, Q: 4})


def push(
    server: StoreServer,
    *spans: tuple[OffsetSpan, int],
    generation: str = "g",
    chain: str = "c",
    cache: bytes | None = None,
    items: int = 0,
    cursor: Cursor | None = None,
    retired: Sequence[str] = (),
) -> PushResult:
    """Push as a trainer that has everything, or that has what the cursor says."""
    return server.push(Push(generation, cursor or at_head(server), chain, b"packed", spans, cache, items, retired))


def at_head(server: StoreServer) -> Cursor:
    """What a trainer has that has everything since the server was seeded."""
    head = server.pull(LogPosition.beginning(""), 0, "").head
    beginning = LogPosition.beginning(head.generation if head is not None else "")
    positions = [beginning, *(entry.position for entry in server.pull(beginning, 1000, "").entries)]
    ids = server.ids(beginning.generation, 0, head.items) if head is not None else None
    return cursor(positions[-1], ids or [])


def cursor(position: LogPosition, ids: list[str], cache_chain: str = "", max_entries: int = 9) -> Cursor:
    return Cursor(position, len(ids), fingerprint(ids), cache_chain, max_entries)


def seed(
    server: StoreServer,
    generation: str,
    ids: list[str] | None = None,
    origin: LogPosition | None = None,
    replaces: str = "",
    events: int = 0,
    head: str = "",
) -> bool:
    snapshot = StoreReplica(LogPosition.beginning(generation)).pack()
    return server.seed(Seed(generation, snapshot, ids or [], {}, {}, origin, replaces, events, head))
