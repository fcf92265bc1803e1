"""The processes of a group, and what they have learned."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from commands import Command
from line_harness import until
from serve_harness import Server, said, served, wait_until
from servers.process import free_ports

from streamer.learner import OnlineLearner
from streamer.lockstep.learner import OF_USERS
from streamer.snapshot import SnapshotDirectory

PATIENCE_S = 60.0
TINY = [
    *("--dim", "8", "--batch-size", "128", "--cache-size", "64", "--set", "hash_slots=64", "--set", "ranker_events=16"),
    *("--set", "evaluation_share=0", "--max-age", "0", "--until-end", "--json", "--log-format", "plain"),
]


class Ranks:
    """The processes of one start of a group; `preludes` is code that some of them run before."""

    def __init__(
        self,
        source: Path | list[str],
        checkpoints: Path,
        size: int,
        *more: str,
        name: str = "",
        preludes: Mapping[int, str] | None = None,
    ) -> None:
        output = checkpoints.parent / f"{checkpoints.name}{name}.out"
        (port,) = free_ports(1)
        where = ["--data-dir", str(source)] if isinstance(source, Path) else source
        arguments = ["run", *where, "--checkpoint-dir", str(checkpoints), *TINY, *more]
        self.all: list[Command] = []
        for rank in range(size):
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            place = {"RANK": str(rank), "WORLD_SIZE": str(size)}
            prelude = (preludes or {}).get(rank, "")
            self.all.append(Command(arguments, Path(f"{output}.{rank}"), prelude, **address, **place))

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self.all]

    def wait(self, rank: int, seconds: float = PATIENCE_S) -> int | None:
        """Its return code; None if it still runs after so long."""
        deadline = time.monotonic() + seconds
        while self.all[rank].code is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.all[rank].code

    def wait_all(self) -> list[int | None]:
        return [self.wait(rank) for rank in range(len(self.all))]

    def errors(self, rank: int) -> str:
        return self.all[rank].said()

    def sleep(self, when: int) -> None:
        """Stop all ranks, when one of them has stopped itself."""
        state = Path(f"/proc/{self.pids[when]}/stat")
        until(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T", what=f"rank {when} stops")
        for rank in self.all:
            rank.signal(signal.SIGSTOP)

    def wake(self) -> None:
        for rank in self.all:
            rank.signal(signal.SIGCONT)

    def kill(self, rank: int) -> None:
        self.all[rank].signal(signal.SIGKILL)


def model(checkpoints: Path) -> dict[str, object]:
    """Everything that was learned, in an order that does not depend on ranks."""
    learner = OnlineLearner.load(checkpoints)
    found: dict[str, object] = {
        n: a.tolist() for n, a in learner.state.dense()[0].items() if not n.startswith(OF_USERS)
    }
    for kind in ("items", "pairs"):
        found |= {f"{kind}/{n}": a.tolist() for n, a in learner.state.take(kind, learner.state.rows(kind)).items()}
    for row in range(len(learner.state.users)):
        recent = learner.state.recent.of(np.array([row]))
        found[learner.state.users.id_of(row)] = (recent.items.tolist(), sorted(learner.state.seen.of(row).tolist()))
    accounting = SnapshotDirectory(checkpoints).load().meta
    return found | {"positions": accounting["positions"], "accounting": accounting["accounting"]}


def assert_same_model(found: Path, expected: Path) -> None:
    """Both checkpoints hold the same, to the last bit; names what does not."""
    one, other = model(found), model(expected)
    different = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
    assert not different, f"{len(different)} of {len(one)} parts differ: {sorted(different)}"


def assert_served(server: Server, checkpoints: Path, generation: int) -> None:
    """What is served is what the checkpoint holds."""
    learner = OnlineLearner.load(checkpoints)
    wait_until(lambda: server.step == (generation, learner.state.trainer.steps), "following")
    for user in [*learner.state.users.ids, "nobody"]:
        assert served(server.service, user) == said(learner, user)
    replica = server.service.replica
    assert replica is not None
    assert sorted(replica.learner.state.users.ids) == sorted(learner.state.users.ids)
    ends = {tuple(p): at for p, at in replica.end.offsets.items()}
    found = SnapshotDirectory(checkpoints).load()
    assert found is not None
    assert ends == {(topic, number): at for topic, number, at, *_ in found.meta["positions"]}
