"""The processes of a group, and what they have learned."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import numpy as np
from crash_harness import Forker

from streamer.checkpoint import CheckpointStore
from streamer.learner import OF_USERS, Learner

PATIENCE_S = 60.0
TINY = [
    *("--dim", "8", "--batch-size", "128", "--cache-size", "64", "--hash-slots", "64", "--ranker-events", "16"),
    *("--evaluation-share", "0", "--until-end", "--json", "--log-format", "plain"),
]


class Ranks:
    """The processes of one start of a group."""

    def __init__(
        self, forker: Forker, source: Path | list[str], checkpoints: Path, size: int, *more: str, name: str = ""
    ) -> None:
        self._forker, self.output = forker, checkpoints.parent / f"{checkpoints.name}{name}.out"
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            port = listening.getsockname()[1]
        where = ["--data-dir", str(source)] if isinstance(source, Path) else source
        arguments = ["run", *where, "--checkpoint-dir", str(checkpoints), *TINY, *more]
        self.pids, self.codes = [], {}
        for rank in range(size):
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment = {"RANK": str(rank), "WORLD_SIZE": str(size), **address}
            output = f"{self.output}.{rank}"
            self.pids.append(forker.ask({"arguments": arguments, "environment": environment, "output": output}))

    def wait(self, rank: int, seconds: float = PATIENCE_S) -> int | None:
        if self.codes.get(rank) is None:
            self.codes[rank] = self._forker.ask({"wait": self.pids[rank], "seconds": seconds})
        return self.codes[rank]

    def wait_all(self) -> list[int | None]:
        return [self.wait(rank) for rank in range(len(self.pids))]

    def errors(self, rank: int) -> str:
        path = Path(f"{self.output}.{rank}.err")
        return path.read_text() if path.exists() else ""

    def kill(self, rank: int) -> None:
        if self.codes.get(rank) is None:
            os.kill(self.pids[rank], signal.SIGKILL)


def model(checkpoints: Path) -> dict[str, object]:
    """Everything that was learned, in an order that does not depend on ranks."""
    learner = Learner.load(checkpoints)
    found: dict[str, object] = {n: a.tolist() for n, a in learner.dense()[0].items() if not n.startswith(OF_USERS)}
    for kind in ("items", "pairs"):
        found |= {f"{kind}/{n}": a.tolist() for n, a in learner.take(kind, learner.rows(kind)).items()}
    for row in range(len(learner.users)):
        recent = learner.recent.of(np.array([row]))
        found[learner.users.id_of(row)] = (recent.items.tolist(), sorted(learner.seen.of(row).tolist()))
    accounting = CheckpointStore(checkpoints, readonly=True).load().meta
    return found | {"positions": accounting["positions"], "accounting": accounting["accounting"]}
