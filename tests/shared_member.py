"""Starts several `streamer run` at once, each a fork of a process that has everything loaded, and with a journal.

Reads one JSON object a line from standard input, and answers each with one line:

- `{"start": {"output": path, "arguments": [...], "journal": path}}`: the process's id;
- `{"ended": id}`: its return code, negative for the signal that killed it; null while it runs.

The journal has a line for each micro-batch that was learned: how many events, whether they were counted, and the
position of each of its partitions, as `topic[0]=90`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from run_zygote import child, warm_up

from streamer.learner import Learner


def keep_journal(path: str) -> None:
    """Have a learner write down what it has learned."""
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    learn = Learner.learn_batch

    def noting_learn(self: Learner, batch: Any, evaluator: Any = None, counted: bool = True) -> Any:
        learned = learn(self, batch, evaluator, counted)
        positions = [f" {partition}={batch.offsets[stop - 1] + 1}" for partition, _, stop in batch.origins]
        os.write(journal, f"{len(batch)} {counted:d}{''.join(positions)}\n".encode())
        return learned

    Learner.learn_batch = noting_learn  # type: ignore[method-assign]


def start(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        keep_journal(job["journal"])
        child(job["output"], job["arguments"])
    return pid


def ended(pid: int, codes: dict[int, int]) -> int | None:
    """A process's return code, once it has ended."""
    if pid not in codes:
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done:
            return None
        codes[pid] = os.waitstatus_to_exitcode(status)
    return codes[pid]


def serve() -> None:
    warm_up()
    from streamer.cache_store.redis import server as _redis  # noqa: F401

    codes: dict[int, int] = {}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(start(job["start"]) if "start" in job else ended(job["ended"], codes)), flush=True)


if __name__ == "__main__":
    serve()
