"""Starts `streamer run` without the seconds that imports take: everything is loaded once, then each run is a fork.

Reads one JSON object a line from standard input: `arguments` of the command, `output` (a path; `.out` and `.err` are
appended) and `kill_after_s` (null: let it run). Answers each with one line: the run's return code, negative for the
signal that killed it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback


def warm_up() -> None:
    """Load and compile all that a run needs. One thread only: a fork has none of the others."""
    import torch

    torch.set_num_threads(1)
    from line_harness import events, learn_all, small

    from streamer.cli import run as _run  # noqa: F401
    from streamer.evaluation import Prequential  # noqa: F401
    from streamer.learner import Learner
    from streamer.sources.embedded import source as _embedded  # noqa: F401
    from streamer.sources.kafka import source as _kafka  # noqa: F401

    learner = Learner(small())
    changed = learner.state.changes.reader()
    learn_all(learner, events(64))
    changed.take("items")
    Learner(small()).state.restore(learner.state.chunks(), *learner.state.dense())


def child(output: str, arguments: list[str]) -> None:
    """Become the command. Never returns."""
    from streamer.cli.main import main

    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{output}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.argv = ["streamer", *arguments]
    code = 1
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int, kill_after_s: float | None) -> int:
    """Wait for a run, and kill it if it takes too long. It is ours until we have asked for its status."""
    deadline = None if kill_after_s is None else time.monotonic() + kill_after_s
    while deadline is not None and time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    if deadline is not None:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve() -> None:
    warm_up()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(job["output"], job["arguments"])
        print(ended(pid, job["kill_after_s"]), flush=True)


if __name__ == "__main__":
    serve()
