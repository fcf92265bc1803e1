"""What ranks publish together is what their checkpoint holds, and a server cannot tell them from one trainer."""

from __future__ import annotations

import pytest
import torch
from memory_place import MemoryPlace
from serve_harness import Server, said, served, wait_until

from streamer.learner import OnlineLearner
from streamer.lockstep.learner import LockstepLearner
from streamer.lockstep.publishing import GroupPublisher
from streamer.model.settings import LearnerSettings
from streamer.snapshot.publisher import Due
from streamer.sources.base import Partition
from tests.streamer.lockstep.ranks import run_ranks
from tests.streamer.lockstep.test_lockstep_learner import PARTS, own_batch, steps

SETTINGS = {"dim": 16, "cache_size": 32, "ranker_events": 16, "hash_slots": 64}


def publish(size: int, place: MemoryPlace, **settings) -> list[OnlineLearner]:
    """Train, and publish a snapshot after each step: bases now and then, deltas otherwise."""

    def work(group):
        torch.set_num_threads(1)
        learner = LockstepLearner(LearnerSettings(**SETTINGS | settings), group)
        publisher = GroupPublisher(group, learner.state, place, 0.0)
        positions = lambda: {Partition("t", 0): learner.state.trainer.steps}  # noqa: E731
        for number, step in enumerate(steps()):
            learner.learn_batch(own_batch(step, group))
            if number % 4 == 0:
                publisher._begin_base()
            publisher.flush()
            publisher.step(positions, Due(group.gather_values(publisher.due())[0]))
        publisher.close(positions)
        return learner

    return run_ranks(size, PARTS, work)


@pytest.mark.parametrize("settings", [{}, {"user_ids": True}, {"max_users": 10}], ids=str)
def test_a_group_publishes_what_one_trainer_publishes(settings):
    for size in (2, 3):
        place = MemoryPlace()
        ranks = publish(size, place, **settings)
        bases = [ident.is_base for ident, _ in place.snapshots]
        assert bases.count(True) > 1
        assert bases.count(False) > 4
        server = Server(place)
        wait_until(lambda server=server, ranks=ranks: server.step == (1, ranks[0].state.trainer.steps), "following")
        served_users = server.service.replica.learner.state.users
        assert sorted(served_users.ids) == sorted(user for rank in ranks for user in rank.state.users.ids)
        for rank in ranks:
            for user in rank.state.users.ids:
                assert served(server.service, user) == said(rank, user), user
        server.close()
