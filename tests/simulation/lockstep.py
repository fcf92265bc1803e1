"""Histories of a group in lockstep: ranks are simulated processes; to their collectives, a dead one does not come.

Real are the line, the reader, the agreement on steps, checkpoints and the end, the seals of checkpoints and commits;
simulated are the learner, the disk and the network. If one ends badly, all are killed, as by the launcher, and start
again, perhaps as more or fewer. What must be true:

- an offset is committed only if everything before it is in the manifest on disk;
- a manifest holds of each partition every event before its position, once;
- ranks that are asked to end do so at the same step, and the last manifest holds every event.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from memory_source import MemoryDeadLetters, MemoryLog, MemorySource

from simulation.scheduler import Condition, Process, Scheduler, Task
from simulation.trainer import Counting, Quiet, simulated
from streamer.accounting import Accounting
from streamer.errors import GroupError
from streamer.event import EventDecoder, encode
from streamer.ingest.offsets import OffsetLedger
from streamer.ingest.reader import Reader, StopCondition
from streamer.lockstep.checkpoint import RankCheckpointer, part_name
from streamer.lockstep.group import Group
from streamer.lockstep.ingest import LockstepIngest
from streamer.lockstep.pipeline import LockstepPipeline, LockstepProgress
from streamer.lockstep.seals import CheckpointSeals
from streamer.lockstep.sources import AssignedSource
from streamer.settings import PipelineSettings
from streamer.sharing.sharing import Sharing
from streamer.snapshot.capture import CaptureAbandoned
from streamer.snapshot.chain import PARTS
from streamer.snapshot.checkpointer import Checkpointer, Restored
from streamer.snapshot.snapshot import Link
from streamer.sources.base import Partition, Positions

TOPIC = "clicks"
PARTS_OF_A_STEP = 4
TIMEOUT_S = 15.0
PATIENCE_S = 600.0
"""Of simulated time."""


class Meeting:
    """Where the ranks of one start exchange messages, one collective after the other."""

    def __init__(self, scheduler: Scheduler, size: int) -> None:
        self._scheduler, self._size = scheduler, size
        self._changed = Condition(scheduler)
        self._rounds: list[dict[int, Any]] = []
        self._next = [0] * size

    def gather(self, rank: int, message: Any, lengths: Any) -> list[Any]:
        number = self._next[rank]
        self._next[rank] += 1
        if number == len(self._rounds):
            self._rounds.append({})
        said = self._rounds[number]
        said[rank] = message.copy()
        self._scheduler.pause()
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(said) == self._size, TIMEOUT_S)
        if len(said) < self._size:
            raise GroupError("lost another trainer")
        found = [said[k].copy() for k in range(self._size)]
        assert [len(one) for one in found] == list(lengths), "ranks do not call the same collectives"
        return found


class Rank(Process):
    """One rank of a start of the group."""

    def __init__(self, history: LockstepHistory, rank: int, size: int, meeting: Meeting, until_end: bool) -> None:
        super().__init__(f"rank-{rank}")
        self.history = history
        self.learner = Counting(history.scheduler, lambda *_: None)
        self.learner.users = ()  # type: ignore[attr-defined]
        self._pipeline: RankLine | None = None
        gather = (lambda *given: meeting.gather(rank, *given)) if size > 1 else None
        self.group = RankGroup(rank, size, PARTS_OF_A_STEP, _gather=gather)
        self._until_end = until_end
        self.task: Task = history.scheduler.start(self._run, self.name, self)

    def _run(self) -> None:
        history = self.history
        settings = PipelineSettings(batch_size=history.batch_size, max_age_s=0.2, max_queued_events=64)
        ingest = LockstepIngest(self.group, settings, lambda: sorted(history.log.end_offsets(TOPIC)))
        checkpoints = RankOnDisk(self, ingest.seals)
        ingest.checkpoints = checkpoints
        progress = LockstepProgress(ingest, self.learner, Sharing(), MemoryDeadLetters(), checkpoints)  # type: ignore[arg-type]
        stop = StopCondition(self._until_end)

        def source() -> AssignedSource:
            return AssignedSource(
                lambda partition: CheckedSource(history, partition), lambda: ingest.own_partitions, ingest.queues.wants
            )

        reader = Reader(source, EventDecoder(), ingest, stop, settings.max_queued_events)
        self._pipeline = RankLine(reader, self.learner, Sharing(), progress)  # type: ignore[arg-type]
        self._pipeline.run()

    def leave(self) -> None:
        """As after SIGTERM."""
        if self._pipeline is not None:
            self._pipeline.stop()


class RankGroup(Group):
    def close(self) -> None:
        """There is no network to leave."""


class RankLine(Quiet, LockstepPipeline):
    """The line of a rank, without figures for a person."""


class CheckedSource(MemorySource):
    """A partition whose commits are looked at."""

    def __init__(self, history: LockstepHistory, partition: Partition) -> None:
        super().__init__(history.log, TOPIC, [partition.number])
        self._history = history

    def commit(self, positions: Positions) -> None:
        for partition, offset in positions.items():
            self._history.check_commit(partition, offset)
        super().commit(positions)


class Disk(Checkpointer):
    """Writes parts and manifests to a dictionary; when, and on which thread, is the product's."""

    rank: Rank

    def save(self, learner: Any, sharing: Any, accounting: Any, offsets: Any, done: Any) -> None:
        history, group = self.rank.history, self.rank.group
        saved = {"events": Counter(learner.events), "positions": dict(offsets.positions)}
        saved["accounting"] = accounting.to_json()
        events, taken_at = accounting.consumed, self._clock()
        meta: dict[str, Any] = {}
        rows = self._with_seal(iter(()), meta)

        def write() -> None:
            history.scheduler.sleep(history.random.choice([0.0, 0.0, 0.01, 0.5]))
            try:
                list(rows)
                if history.random.random() < 0.05:
                    raise OSError("the disk is full")
            except CaptureAbandoned:
                return
            except Exception as error:
                self._note_failure(error)
                done(False)
                return
            history.number += 1
            saved["parts"] = [history.files[tuple(part[:2])] for part in meta.get(PARTS, [])]
            history.files[part_name(group.rank), history.number] = saved
            if group.rank == 0:
                history.seal(saved)
            self._store.links.append(SimpleNamespace(link=Link(history.number, 0)))  # type: ignore[arg-type]
            history.scheduler.pause()
            self._note_safe(Path("manifest"), events, taken_at)
            done(True)

        self._tried_at, self._tried_events, self.begun = taken_at, events, True
        self._writer.submit(write)


class RankOnDisk(RankCheckpointer, Disk):
    """The part of one rank in the checkpoints of the group."""

    def __init__(self, rank: Rank, seals: CheckpointSeals) -> None:
        self.rank = rank
        store = SimpleNamespace(links=[], beat=lambda: None, close=lambda: None)
        every = rank.history.every_events
        super().__init__(rank.group, seals, store, Path("disk"), 1.5, every)  # type: ignore[arg-type]
        self._clock = rank.history.scheduler.monotonic
        self._tried_at = self._safe_at = self._clock()

    def restore(self, learner: Any, sharing: Any) -> Restored:
        """Take of the manifest that all agree on the events of our partitions, whichever rank had them."""
        self._group.gather_equal(np.array([self.rank.history.number]))
        manifest = self.rank.history.manifest
        if manifest is None:
            return Restored(Accounting(), OffsetLedger())
        whole = events_of(manifest)
        learner.events = {at: n for at, n in whole.items() if self._group.reads(at[0])}
        accounting = Accounting.from_json(manifest["accounting"])
        self.begun, self.path = True, Path("manifest")
        self._tried_events = self._safe_events = accounting.consumed
        return Restored(accounting, OffsetLedger(manifest["positions"]))

    def beat(self) -> None:
        """Nobody else starts the group."""


def events_of(manifest: dict[str, Any]) -> Counter[tuple[int, int]]:
    """How often each event is in a checkpoint of all ranks."""
    return sum((part["events"] for part in manifest["parts"]), Counter(manifest["events"]))


class LockstepHistory:
    """Starts of one group, and what was done to them."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.log = MemoryLog()
        self.log.create_topic(TOPIC, self.random.randint(1, 5))
        self.batch_size = self.random.choice([2, 8])
        self.every_events = self.random.choice([3, 10, 30])
        self.files: dict[tuple[str, int], Any] = {}
        self.number = 0
        self.manifest: dict[str, Any] | None = None
        self.ranks: list[Rank] = []
        self.problems: list[str] = []
        self.said: list[str] = []

    def run(self) -> None:
        """Everything from the first event to the last check."""
        with simulated(self.scheduler):
            try:
                self._produce()
                for _ in range(self.random.randint(2, 6)):
                    self._start(until_end=False)
                    for _ in range(self.random.randint(1, 4)):
                        self._produce()
                        self._wait()
                        self._stop_one()
                    self.random.choice([self._kill, self._kill, self._leave])()
                self._finish()
            finally:
                self.scheduler.close()

    def _note(self, what: str) -> None:
        self.said.append(f"{self.scheduler.now - 1000:8.2f} s  {what}")

    def _wait(self) -> None:
        for _ in range(self.random.choice([1, 20, 100])):
            self.scheduler.pause()
        self.scheduler.sleep(self.random.choice([0.0, 0.1, 2.0]))

    def _produce(self) -> None:
        for _ in range(self.random.randint(1, 30)):
            number = self.random.randrange(self.log.topics()[TOPIC])
            self.log.append(TOPIC, [(None, encode("u", "i", 1.0), 0)], number)

    def _start(self, until_end: bool) -> None:
        size = self.random.randint(1, 3)
        self._note(f"{size} ranks start")
        meeting = Meeting(self.scheduler, size)
        self.ranks = [Rank(self, rank, size, meeting, until_end) for rank in range(size)]

    def _stop_one(self) -> None:
        """A rank is stopped for less than the others wait for it."""
        if self.random.random() < 0.3:
            rank = self.random.choice(self.ranks)
            self._note(f"{rank.name} sleeps")
            rank.is_stopped = True
            self.scheduler.sleep(TIMEOUT_S / 2)
            rank.is_stopped = False

    def _kill(self) -> None:
        """One rank dies, the others go on as far as they can, and then the launcher ends them."""
        victim = self.random.choice(self.ranks)
        self._note(f"{victim.name} is killed")
        self.scheduler.kill(victim)
        self.scheduler.sleep(self.random.choice([0.0, 0.1, TIMEOUT_S + 1]))
        for rank in self.ranks:
            self.scheduler.kill(rank)

    def _leave(self) -> None:
        """One rank is asked to end: all do."""
        rank = self.random.choice(self.ranks)
        self._note(f"{rank.name} is asked to end")
        self._until_all_end(rank.leave)

    def _until_all_end(self, ask: Any) -> None:
        deadline = self.scheduler.now + PATIENCE_S
        while not all(rank.task.has_ended for rank in self.ranks):
            ask()
            assert self.scheduler.now < deadline, "a rank does not end"
            self.scheduler.sleep(0.5)
        errors = [rank.task.error for rank in self.ranks if rank.task.error is not None]
        failed = [e for e in errors if not any(words in str(e) for words in ("disk is full", "could not save its"))]
        if failed:
            raise failed[0]

    def _finish(self) -> None:
        """Undisturbed, the group reads everything and ends; again, if the last checkpoint could not be written."""
        ends = {partition: end for partition, end in self.log.end_offsets(TOPIC).items() if end}
        for _ in range(9):
            self._start(until_end=True)
            self._until_all_end(lambda: None)
            if self.manifest is not None and ends.items() <= self.manifest["positions"].items():
                break
        assert not self.problems, self.problems
        assert self.manifest is not None
        every = Counter((partition.number, k) for partition, end in ends.items() for k in range(end))
        assert events_of(self.manifest) == every

    # what must be true ------------------------------------------------------------------------------------------------

    def seal(self, manifest: dict[str, Any]) -> None:
        """A manifest is renamed: it counts from now on."""
        found, positions = events_of(manifest), manifest["positions"]
        expected = Counter((partition.number, k) for partition, end in positions.items() for k in range(end))
        if found != expected:
            self.problems.append(f"a manifest at {positions} lacks {expected - found} and has {found - expected}")
        self.manifest = manifest

    def check_commit(self, partition: Partition, offset: int) -> None:
        saved = self.manifest["positions"].get(partition, 0) if self.manifest is not None else 0
        if offset > saved:
            self.problems.append(f"{partition} is committed up to {offset}, and saved up to {saved}")
