"""Starts ranks of a group without the seconds that imports take: everything is loaded once, each rank is a fork.

Reads one JSON object a line from standard input and answers each with one line: `start` a rank with `arguments` and
`environment`, output to the path `output` (`.out` and `.err` are appended), which runs the code `prelude` before, gives
its process id; `wait` for a process id gives its return code, null if it still runs after `seconds`.
"""

from __future__ import annotations

import json
import os
import sys
import time

from run_zygote import child, warm_up


def start(job: dict) -> int:
    pid = os.fork()
    if pid == 0:
        os.environ.update(job["environment"])
        exec(job["prelude"], {})
        child(job["output"], job["arguments"])
    return pid


def wait(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def serve() -> None:
    warm_up()
    import torch.distributed  # noqa: F401

    from streamer.lockstep import checkpoint as rank  # noqa: F401

    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        found = start(job) if "arguments" in job else wait(job["wait"], job["seconds"])
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    serve()
