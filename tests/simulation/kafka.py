"""A broker with one topic and one consumer group, and the client of each process: what a source calls of kafka-python.

The group is that of Kafka's classic protocol with an eager assignor and static members. A rebalance waits until all
members have given up what they had; who is not heard of for a session is removed; commits of members that the group
does not know are refused. Of a client, the thread for its network is simulated, too: heartbeats and commits leave on
it, in their order, some time after the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from kafka import OffsetAndMetadata, TopicPartition, errors
from kafka.structs import MemberState

from simulation.scheduler import Condition, Process, Scheduler

TOPIC = "clicks"
SESSION_S = 6.0
HEARTBEAT_S = 2.0

Offsets = dict[TopicPartition, OffsetAndMetadata]


class Member:
    """What the group knows of a member."""

    def __init__(self, client: Client, now: float) -> None:
        self.client = client
        self.heard_at = now
        self.has_joined = False
        self.assigned: list[TopicPartition] = []


class Broker:
    """Logs, committed offsets and the group's coordinator."""

    def __init__(self, scheduler: Scheduler, partitions: int) -> None:
        self.scheduler = scheduler
        self.changed = Condition(scheduler)
        self.partitions = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self.logs: dict[TopicPartition, list[bytes]] = {tp: [] for tp in self.partitions}
        self.committed: Offsets = {}
        self.members: dict[str, Member] = {}
        self.generation = 0
        self.is_rebalancing = False
        self.on_commit: Callable[[TopicPartition, int], None] = lambda tp, offset: None
        self.on_assigned: Callable[[str, list[TopicPartition]], None] = lambda name, partitions: None
        scheduler.start(self._run, "coordinator", Process("broker"))

    def append(self, tp: TopicPartition, value: bytes) -> None:
        self.logs[tp].append(value)
        self.changed.notify_all()

    # the group --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Remove members that are not heard of."""
        while True:
            now = self.scheduler.now
            for name, member in list(self.members.items()):
                if member.heard_at + SESSION_S <= now:
                    self.remove(name)
            heard = [member.heard_at for member in self.members.values()]
            self.scheduler.wait_until(min(heard, default=now) + SESSION_S)

    def join(self, client: Client) -> None:
        """A member comes, comes back, or agrees to a rebalance."""
        known = self.members.get(client.name)
        if known is None:
            known = self.members[client.name] = Member(client, self.scheduler.now)
            self.is_rebalancing = True
        elif known.client is not client:  # started again within its session: it gets what it had
            known.client = client
            known.heard_at = self.scheduler.now
            if not self.is_rebalancing:
                client.generation = self.generation
                client.offered = list(known.assigned)
                return
        known.heard_at = self.scheduler.now
        known.has_joined = True
        self._complete()

    def remove(self, name: str) -> None:
        """A member leaves, or is given up."""
        if self.members.pop(name, None) is not None:
            self.is_rebalancing = True
            self._complete()

    def _complete(self) -> None:
        """Assign partitions, once everybody waits for that."""
        members = self.members
        if not self.is_rebalancing or not all(member.has_joined for member in members.values()):
            self.changed.notify_all()
            return
        self.generation += 1
        self.is_rebalancing = False
        left = list(self.partitions)
        self.scheduler.random.shuffle(left)
        share = math.ceil(len(left) / max(1, len(members)))
        for member in members.values():
            kept = [tp for tp in member.assigned if tp in left][:share]
            left = [tp for tp in left if tp not in kept]
            member.assigned = kept
        for member in members.values():
            more = share - len(member.assigned)
            member.assigned += left[:more]
            left = left[more:]
            member.has_joined = False
            member.client.generation = self.generation
            member.client.offered = list(member.assigned)
        self.changed.notify_all()

    def knows(self, client: Client) -> bool:
        member = self.members.get(client.name)
        return member is not None and member.client is client

    def commit(self, client: Client, generation: int, offsets: Offsets) -> Exception | None:
        """Take a commit, or say why not."""
        if not self.knows(client) or generation != self.generation:
            return errors.CommitFailedError()
        for tp, offset in offsets.items():
            self.on_commit(tp, offset.offset)
            self.committed[tp] = offset
        return None


class Client:
    """`KafkaConsumer`, its cluster and an admin client, of one process."""

    def __init__(self, broker: Broker, name: str, process: Process) -> None:
        self.broker, self.name, self.process = broker, name, process
        self.config = {"group_instance_id": name, "session_timeout_ms": SESSION_S * 1000, "fetch_max_wait_ms": 0}
        self.member_id = f"{name}-{id(self)}"
        self.generation = -1
        self.offered: list[TopicPartition] | None = None
        self._owned: list[TopicPartition] = []
        self._is_stable = False
        self._is_lost = False
        self._listener: Any = None
        self._answered: Callable[[float], None] = lambda sent_s: None
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._outgoing: list[tuple[int, Offsets, Callable[..., None]]] = []
        self._is_closed = False
        broker.scheduler.start(self._network, f"{name} network", process)

    # the thread for the network ---------------------------------------------------------------------------------------

    def _network(self) -> None:
        scheduler = self.broker.scheduler
        beat_at = scheduler.now
        while not self._is_closed:
            while self._outgoing:
                self._send_commit()
            if self._listener is not None and scheduler.now >= beat_at:
                self._beat()
                beat_at = scheduler.now + HEARTBEAT_S
            with self.broker.changed:
                self.broker.changed.wait_for(lambda: self._outgoing or self._is_closed, beat_at - scheduler.now)

    def _send_commit(self) -> None:
        scheduler = self.broker.scheduler
        generation, offsets, callback = self._outgoing[0]
        scheduler.pause()
        error = self.broker.commit(self, generation, offsets)
        scheduler.pause()
        self._outgoing.pop(0)
        callback(offsets, error)
        self.broker.changed.notify_all()

    def _beat(self) -> None:
        scheduler = self.broker.scheduler
        sent_s = scheduler.now
        scheduler.pause()
        if self.broker.knows(self):
            self.broker.members[self.name].heard_at = scheduler.now
            scheduler.pause()
            self._answered(sent_s)
        elif self._is_stable:
            self._is_lost = True
            self.broker.changed.notify_all()

    def on_heartbeat(self, answered: Callable[[float], None]) -> None:
        self._answered = answered

    # polling ----------------------------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self._listener = listener

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        broker = self.broker
        deadline = broker.scheduler.now + timeout_ms / 1000
        while True:
            broker.scheduler.pause()
            self._serve()
            found = self._fetch(max_records)
            if found or broker.scheduler.now >= deadline:
                return found
            with broker.changed:
                broker.changed.wait_for(self._has_news, deadline - broker.scheduler.now)

    def _has_news(self) -> bool:
        return self._is_lost or self.offered is not None or self._must_join() or self._has_records()

    def _has_records(self) -> bool:
        log = self.broker.logs
        return any(self._positions.get(tp, 0) < len(log[tp]) for tp in self._owned if tp not in self._paused)

    def _must_join(self) -> bool:
        """The group rebalances and waits for us, as far as heartbeats have told; or we are in no group."""
        member = self.broker.members.get(self.name)
        if self._is_lost or not self._is_stable:
            return not self._waits_for_assignment()
        return self.broker.knows(self) and self.broker.is_rebalancing and member is not None and not member.has_joined

    def _waits_for_assignment(self) -> bool:
        return self.offered is not None or (self.broker.knows(self) and self.broker.members[self.name].has_joined)

    def _serve(self) -> None:
        """Take part in rebalances."""
        owned = self._owned
        if self._is_lost:
            self._is_lost = self._is_stable = False
            self._owned = []
            self.offered = None
            _drive(self._listener.on_partitions_lost(owned))
        if self._must_join():
            if self._is_stable:
                self._is_stable = False
                _drive(self._listener.on_partitions_revoked(owned))
                self._owned = []
                self._flush()
            self.broker.scheduler.pause()
            self.broker.join(self)
        if self.offered is not None:
            self._owned, self.offered = self.offered, None
            self._is_stable = True
            self._paused.clear()
            self.broker.on_assigned(self.name, self._owned)
            _drive(self._listener.on_partitions_assigned(self._owned))

    def _flush(self) -> None:
        """Commits go ahead of what follows on the same connection."""
        while self._outgoing:
            with self.broker.changed:
                self.broker.changed.wait_for(lambda: not self._outgoing)

    def _fetch(self, max_records: int) -> dict[TopicPartition, list[Any]]:
        for tp in self._owned:
            at = self._positions.get(tp, 0)
            values = self.broker.logs[tp][at : at + max_records]
            if values and tp not in self._paused:
                self._positions[tp] = at + len(values)
                return {tp: [_record(at + k, value) for k, value in enumerate(values)]}
        return {}

    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        self._positions[tp] = offset

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused.difference_update(partitions)

    def position(self, tp: TopicPartition, timeout_ms: int) -> int:
        return self._positions.get(tp, 0)

    def request_rejoin(self) -> None:
        """All partitions are known here from the beginning."""

    def group_metadata(self) -> Any:
        state = MemberState.STABLE if self._is_stable and not self._must_join() else MemberState.UNJOINED
        return SimpleNamespace(state=state, member_id=self.member_id)

    # commits and lookups ----------------------------------------------------------------------------------------------

    def commit_async(self, offsets: Offsets, callback: Callable[..., None]) -> None:
        self._outgoing.append((self.generation, offsets, callback))
        self.broker.changed.notify_all()

    def commit(self, offsets: Offsets, timeout_ms: int) -> None:
        answers: list[Any] = []
        self.commit_async(offsets, lambda _, error: answers.append(error))
        with self.broker.changed:
            self.broker.changed.wait_for(lambda: answers)
        if answers[0] is not None:
            raise answers[0]

    def committed(self, tp: TopicPartition, metadata: bool, timeout_ms: int) -> OffsetAndMetadata | None:
        self.broker.scheduler.pause()
        return self.broker.committed.get(tp)

    def beginning_offsets(self, partitions: Iterable[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        self.broker.scheduler.pause()
        return {tp: len(self.broker.logs[tp]) for tp in partitions}

    def topics(self) -> set[str]:
        return {TOPIC}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {tp.partition for tp in self.broker.partitions}

    def topic_id(self, topic: str) -> str:
        return "id"

    def describe_groups(self, names: list[str]) -> dict[str, Any]:
        members = [{"group_instance_id": name} for name in self.broker.members]
        return {name: {"error": None, "members": members} for name in names}

    def remove_group_members(self, group: str, members: list[Any]) -> None:
        self.broker.scheduler.pause()
        known = self.broker.members.get(self.name)
        if known is not None and known.client.member_id == members[0].member_id:
            self.broker.remove(self.name)

    def close(self, **_: Any) -> None:
        self._flush()
        self._is_closed = True
        self.broker.changed.notify_all()


def _record(offset: int, value: bytes) -> Any:
    return SimpleNamespace(offset=offset, value=value, key=None, timestamp=0, leader_epoch=0)


def _drive(coroutine: Coroutine[Any, None, None]) -> None:
    """Run what the client would run on its thread for the network; here nothing of it waits for others."""
    with suppress(StopIteration):
        coroutine.send(None)
