"""`streamer reset`: reading goes on elsewhere in the stream, with the model as it is.

Where a run goes on is said by its checkpoint, and in Kafka by what its group has
committed, too. Both are moved, and of two that differ the one that was moved last
counts: so is none forgotten that another trainer of the group still has.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from streamer.cli.loading import no_checkpoint
from streamer.cli.options import GroupedCommand, json_option, option, settings_options
from streamer.cli.output import render, say
from streamer.cli.store import confirm
from streamer.errors import SettingsError, SourceError
from streamer.settings import RunSettings
from streamer.sources.base import Partition, Position, is_of_other_log

if TYPE_CHECKING:
    from streamer.snapshot import Checkpoint, CheckpointStore
    from streamer.sources.kafka.offsets import Commit
    from streamer.sources.kafka.settings import KafkaSettings

KEPT = sys.maxsize
"""How many checkpoints are kept: a run removes what it does not keep."""
LINES = 10_000
"""Of a file that are read at a time."""


class Move(NamedTuple):
    """What happens to one partition."""

    partition: Partition
    before: int | None
    """Where a run would read on; None if it would begin."""
    to: Position

    def row(self) -> dict[str, Any]:
        """What a person reads of it."""
        topic, number = self.partition
        row = {"topic": topic, "partition": number, "from": self.before}
        return row | {"to": int(self.to), "events": self._events()}

    def _events(self) -> str:
        if self.before is None:
            return "a run begins there"
        if self.to == self.before:
            return "none"
        is_back = self.to < self.before
        what = "read again" if is_back else "skipped"
        return f"{abs(self.to - self.before):,} {what}"


@click.command(cls=GroupedCommand)
@option("Reset", "--to-beginning", is_flag=True, help="Read all that there is again.")
@option("Reset", "--to-offset", type=click.IntRange(0), help="Of every partition.")
@option(
    "Reset",
    "--to-timestamp",
    metavar="TIME",
    help="The first event at or after it, as --start-timestamp says it.",
)
@option("Reset", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@settings_options(RunSettings)
def reset(
    settings: RunSettings,
    to_beginning: bool,
    to_offset: int | None,
    to_timestamp: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Have the next `streamer run` read on elsewhere, with the model that is there.

    Give the options that you give to `streamer run`. The offsets in the checkpoint and
    those of the consumer group are moved together, of every partition of --topic; it
    shows what it would do, and asks. Events that are read again are learned again;
    counts that trainers share stay exact. Stop the trainers of the group first.
    """
    given = [to_beginning, to_offset is not None, to_timestamp is not None]
    if sum(given) != 1:
        raise click.UsageError(
            "give one of --to-beginning, --to-offset, --to-timestamp"
        )
    if settings.source == "-":
        raise click.UsageError("standard input has no other place to read on from")
    if settings.source and to_timestamp is not None:
        raise click.UsageError("a file has no times: give --to-offset, a line number")
    policy = replace(settings, catalogue_topic=None, start_timestamp=to_timestamp)
    if problems := policy.problems():
        raise SettingsError([f"--to-timestamp: {problem}" for problem in problems])

    where = destinations(policy, to_offset)
    with opened_trainer(settings) as trainer:
        moves = trainer.moves(where)
        rows = [move.row() for move in moves]
        if not as_json:
            click.echo(render({"moves": rows}).lstrip())
        confirm(f"move {trainer.described}", yes)
        trainer.move(moves)
    done = f"moved {trainer.described}: `streamer run` reads on there"
    say({"moves": rows}, done, as_json)


def destinations(
    settings: RunSettings, offset: int | None
) -> dict[Partition, Position]:
    """Where each partition is to be read on: at the offset, or where the settings have a
    new model begin.

    Raises:
        SourceError: there is no such topic, or no such offset in one of its partitions.
    """
    from streamer.cli.look import open_beside

    with contextlib.closing(open_beside(settings, {})) as source:
        begins = dict(source.positions())
        while settings.source and not source.at_end:
            source.poll(LINES, 1.0)
        logs = source.positions()
        ends = source.end_offsets()
    found = {}
    for partition, begin in sorted(begins.items()):
        to = begin if offset is None else offset
        if not begin <= to <= ends[partition]:
            raise SourceError(
                f"{partition} has offsets {begin:,} to {ends[partition]:,}, not {to:,}: nothing was moved"
            )
        log = logs[partition]
        assert isinstance(log, Position)
        found[partition] = log.at(to)
    return found


@contextlib.contextmanager
def opened_trainer(settings: RunSettings) -> Iterator[StoppedTrainer]:
    """The trainer whose checkpoints these are, which cannot start meanwhile.

    Raises:
        CheckpointError: it runs, or has no checkpoint.
        SourceError: its group has members.
    """
    from streamer.snapshot import CheckpointStore, SnapshotDirectory

    if not SnapshotDirectory(settings.checkpoints).paths():
        raise no_checkpoint(settings.checkpoints)
    with CheckpointStore(settings.checkpoints, KEPT) as store:
        found = store.load()
        assert found is not None
        yield StoppedTrainer(settings, store, found)


class StoppedTrainer:
    """A trainer that does not run: its newest checkpoint, and what its group has
    committed.
    """

    def __init__(
        self, settings: RunSettings, store: CheckpointStore, found: Checkpoint
    ) -> None:
        from streamer.build import kafka_settings
        from streamer.snapshot.snapshot import positions_from_json

        self._settings = settings
        self._store = store
        self._found = found
        self._kafka = None if settings.source else kafka_settings(settings)
        self._trained = positions_from_json(found.meta["positions"])
        self._commits: Mapping[Partition, Commit] = {}
        if self._kafka is not None:
            from streamer.sources.kafka import group

            group.check_no_member(self._kafka)

    @property
    def described(self) -> str:
        """What is moved, for a person."""
        checkpoints = f"the checkpoint in {self._store.directory}"
        if self._settings.source:
            return checkpoints
        return f"group {self._settings.group_id!r} and {checkpoints}"

    def moves(self, where: Mapping[Partition, Position]) -> list[Move]:
        """What happens to each partition."""
        if self._kafka is not None:
            from streamer.sources.kafka import group

            self._commits = group.committed(self._kafka, where)
        return [Move(p, self._before(p, to.topic_id), to) for p, to in where.items()]

    def _before(self, partition: Partition, topic_id: str) -> int | None:
        """Where a run would read on, of this log."""
        known = []
        ours = self._trained.get(partition)
        if ours is not None and not is_of_other_log(ours, topic_id):
            known.append(int(ours))
        commit = self._commits.get(partition)
        if commit is not None and commit.topic_id in ("", topic_id):
            known.append(commit.offset)
        return max(known, default=None)

    def move(self, moves: Sequence[Move]) -> None:
        """Move everything. If it breaks off, what was moved already rules when a run
        begins, and the same command moves the rest.

        1. what the group has committed;
        2. the offsets in the checkpoint.
        """
        known = [at.resets for at in self._trained.values()]
        known += [commit.resets for commit in self._commits.values()]
        resets = 1 + max(known, default=0)
        # 1.
        if self._kafka is not None:
            self._commit(self._kafka, moves, resets)
        elif not self._settings.source:
            self._commit_embedded(moves)
        # 2.
        from streamer.snapshot.snapshot import positions_to_json

        positions = dict(self._trained)
        for partition, _, to in moves:
            positions[partition] = Position(to, to.topic_id, resets=resets)
        amended = {"positions": positions_to_json(positions)}
        self._store.amend(self._found, amended)

    def _commit(self, kafka: KafkaSettings, moves: Sequence[Move], resets: int) -> None:
        from streamer.sources.kafka import group
        from streamer.sources.kafka.offsets import Commit

        topics = [move.partition.topic for move in moves]
        commits = {}
        for partition, _, to in moves:
            count = topics.count(partition.topic)
            commits[partition] = Commit(
                to, self._store.trainer, to.topic_id, to, count, resets=resets
            )
        group.commit(kafka, commits)

    def _commit_embedded(self, moves: Sequence[Move]) -> None:
        from streamer.build import consumer_group
        from streamer.sources.embedded.database import BUSY_TIMEOUT_S, LOG_FILE
        from streamer.sources.embedded.groups import GroupCommits

        path = self._settings.data_dir / LOG_FILE
        commits = GroupCommits(path, consumer_group(self._settings))
        commits.add({move.partition: move.to for move in moves})
        commits.flush(BUSY_TIMEOUT_S)
