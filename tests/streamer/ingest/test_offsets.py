"""The ledger: where reading resumes, and what may be committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.ingest.offsets import OffsetLedger
from streamer.sources.base import Partition, Position, Positions

P0, P1, P2 = (Partition("clicks", number) for number in range(3))


def everything(positions: Positions) -> Positions:
    """Other trainers that have acknowledged all."""
    return positions


def up_to(offset: int) -> Callable[[Positions], Positions]:
    """Other trainers that have acknowledged what is before an offset."""
    return lambda positions: {p: min(position, offset) for p, position in positions.items()}


def reading(positions: Positions) -> OffsetLedger:
    """A ledger of partitions that are assigned and read from these positions."""
    ledger = OffsetLedger()
    ledger.assign(positions)
    ledger.start(positions)
    return ledger


class TestResuming:
    def test_it_resumes_where_it_has_trained_in_the_log_that_it_has_read(self):
        ledger = OffsetLedger({P0: Position(10, "one", 3), P1: 20})
        assert ledger.assign([]) == {}
        first = ledger.assign([P0, P2])
        assert first == {P0: 10}
        assert (first[P0].topic_id, first[P0].leader_epoch) == ("one", 3)
        ledger.start({P0: Position(0, "two", 0)})
        again = ledger.snapshot().positions
        assert again == {P0: 0, P1: 20}, "what others have now is remembered too"
        assert (again[P0].topic_id, again[P0].leader_epoch) == ("two", 0)

    def test_a_partition_that_goes_before_it_was_read_leaves_no_trace(self):
        ledger = OffsetLedger({P1: 5})
        ledger.assign([P0, P1])
        ledger.revoke([P0, P1])
        assert ledger.snapshot() == ({P1: 5}, {}), "nothing was trained, so there is nothing to hand over"


class TestCommitting:
    def test_what_is_saved_is_committed_once_as_far_as_it_is_acknowledged(self):
        ledger = reading({P0: 0, P1: 0})
        ledger.train({P0: 10, P1: 4})
        assert ledger.take_commit(everything) == {}, "trained is not saved"
        ledger.save({P0: 10, P1: 4})
        assert ledger.take_commit(up_to(6)) == {P0: 6, P1: 4}
        assert ledger.take_commit(up_to(6)) == {}
        assert ledger.take_commit(everything) == {P0: 10}
        assert ledger.take_commit(everything) == {}

    def test_others_are_asked_only_while_something_waits(self):
        asked: list[Positions] = []
        ledger = reading({P0: 0, P1: 0})
        ledger.save({P0: 3, P1: 5})
        for _ in range(3):
            ledger.take_commit(lambda positions: asked.append(dict(positions)) or up_to(3)(positions))  # type: ignore
        assert asked == [{P0: 3, P1: 5}, {P1: 5}, {P1: 5}]

    def test_the_checkpoint_of_the_start_is_committed_where_reading_starts_there(self):
        ledger = OffsetLedger({P0: 5, P1: 5})
        assert ledger.take_commit(everything) == {}
        ledger.assign([P0, P1])
        ledger.start({P0: 5, P1: 9})
        assert ledger.take_commit(everything) == {P0: 5}, "the rest of the other one is others'"

    def test_what_was_trained_before_its_log_was_known_is_committed(self):
        ledger = reading({P0: 0})
        ledger.train({P0: 5})
        saved = ledger.snapshot().positions
        ledger.start({P0: Position(5, "one")})  # the source says of which log its positions are
        ledger.save(saved)
        assert ledger.take_commit(everything) == {P0: 5}

    @pytest.mark.parametrize("start", [Position(8, "one"), Position(0, "two")])
    def test_a_checkpoint_that_is_saved_late_commits_nothing_before_others_nor_of_another_log(self, start):
        ledger = reading({P0: Position(0, "one")})
        ledger.train({P0: 5})
        late = ledger.snapshot().positions
        ledger.revoke([P0])
        ledger.release([P0])  # it was waited for long enough
        ledger.assign([P0])
        ledger.start({P0: start})  # where others came, or of a topic that was recreated
        ledger.save(late)
        assert ledger.take_commit(everything) == {}

    def test_a_checkpoint_that_is_saved_late_releases_nothing_that_came_back(self):
        ledger = reading({P0: 5})
        ledger.revoke([P0])
        ledger.release([P0])  # it was waited for long enough
        ledger.assign([P0])
        ledger.start({P0: 8})
        ledger.save({P0: 8})
        ledger.release([P0])  # the checkpoint of the handover is saved now
        assert ledger.take_commit(everything) == {P0: 8}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["assign", "start", "train", "save", "commit", "revoke", "release"]),
        st.sets(st.sampled_from([P0, P1, P2]), min_size=1),
        st.integers(0, 20),
    ),
    max_size=40,
)


@given(STEPS, st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(0, 20)))
def test_under_any_steps_only_what_is_saved_and_ours_is_committed(steps, checkpoint):
    ledger = OffsetLedger(checkpoint)
    saved: dict[Partition, int] = dict(checkpoint)
    committed: dict[Partition, int] = {}
    for step, partitions, offset in steps:
        ours = ledger.assigned().keys() | ledger.releasing()
        positions = dict.fromkeys(partitions, offset)
        if step == "commit":
            for partition, new in ledger.take_commit(up_to(offset)).items():
                assert partition in ours
                assert new <= min(offset, saved[partition])
                assert new > committed.get(partition, -1)
                committed[partition] = new
        elif step == "save":
            ledger.save(positions)
            saved |= {p: max(offset, saved.get(p, 0)) for p in partitions if p in ours}
        else:
            getattr(ledger, step)(positions if step in ("start", "train") else partitions)
            if step == "release":
                committed = {p: at for p, at in committed.items() if p not in partitions or p in ledger.assigned()}
        snapshot = ledger.snapshot()
        assert snapshot.releasing.items() <= snapshot.positions.items()
        assert {p: at for p, at in ledger.assigned().items() if at is not None}.items() <= snapshot.positions.items()
        again = OffsetLedger(snapshot.positions)
        assert again.snapshot() == (snapshot.positions, {}), "a restart knows the same"
        assert again.assign([P0, P1, P2]) == snapshot.positions
