"""Whether others read what we do not: what is asked of a broker, and what is made of its answers."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from clock import Clock

from streamer.errors import SourceError, SourceUnavailable
from streamer.sources.base import Partition
from streamer.sources.kafka.members import AGAIN_S, EXPIRY_S, GroupMembers
from streamer.sources.kafka.settings import KafkaSettings

SESSION_S = 10.0
A, B, C = Partition("t", 0), Partition("t", 1), Partition("u", 0)


def member(name: str, **topics: list[int]) -> dict[str, Any]:
    given = [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()]
    return {"member_id": name, "member_assignment": {"assigned_partitions": given}}


class Described(GroupMembers):
    """A group whose broker says what it is told to."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.clock, self.asked, self._answers = Clock(), 0, list(answers)
        super().__init__(KafkaSettings("nowhere:9092", "t"), SESSION_S, self.clock)
        self.changed()

    def _described(self) -> dict[str, Any]:
        self.asked += 1
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def stable(*members: dict[str, Any]) -> dict[str, Any]:
    return {"group_state": "Stable", "members": list(members)}


def test_the_broker_is_asked_once_a_dead_member_must_have_been_noticed():
    group = Described(stable(member("us", t=[0]), member("them", t=[1], u=[0])), stable())
    group.clock.now += SESSION_S + EXPIRY_S - 0.1
    group.changed()
    group.clock.now += SESSION_S + EXPIRY_S - 0.1
    assert not group.read_by_others({B, C}, "us")
    assert group.asked == 0
    group.clock.now += 0.2
    assert group.read_by_others({B, C}, "us")
    group.clock.now += 10 * AGAIN_S
    assert group.read_by_others({B}, "us")
    assert group.asked == 1, "an answer holds until something changes"
    group.changed()
    assert not group.read_by_others({B}, "us")
    group.clock.now += SESSION_S + EXPIRY_S
    assert not group.read_by_others({B}, "us")
    assert group.asked == 2


def test_it_is_not_asked_all_the_time():
    group = Described(stable(), stable(member("them", t=[1])))
    group.clock.now += SESSION_S + EXPIRY_S
    assert not group.read_by_others({B}, "us")
    group.clock.now += AGAIN_S - 0.1
    assert not group.read_by_others({B}, "us")
    group.clock.now += 0.2
    assert group.read_by_others({B}, "us")


@pytest.mark.parametrize(
    "answer",
    [
        stable(member("us", t=[0, 1])),
        stable(member("us", t=[0]), member("them", u=[0, 1])),
        stable(member("us", t=[0]), {"member_id": "new", "member_assignment": b""}),
        {"group_state": "PreparingRebalance", "members": [member("them", t=[1])]},
        {"group_state": "Dead", "members": []},
        SourceUnavailable("nobody answers"),
    ],
    ids=["ours", "others' but not this", "not given out", "rebalance", "no group", "no answer"],
)
def test_what_is_not_known_to_be_read_may_still_come(answer):
    group = Described(answer)
    group.clock.now += SESSION_S + EXPIRY_S
    assert not group.read_by_others({B}, "us")
    assert group.asked == 1


def test_a_broker_that_does_not_say_is_believed_to_have_readers(caplog):
    group = Described(SourceError("the group is none of your business"))
    group.clock.now += SESSION_S + EXPIRY_S
    with caplog.at_level(logging.WARNING):
        assert group.read_by_others({A, B}, "us")
    assert "none of your business; assuming that other trainers read t[0], t[1]" in caplog.text
