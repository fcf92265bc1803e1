"""Starts `streamer` in forks of a process that has everything loaded, and sends them a signal at a named point.

Of the product only the command line is used, and what `POINTS` names. Reads one JSON object a line from standard
input: `{"start": arguments, "output": path}`, perhaps with `"cwd": path` and `"fault": "point:nth:SIGNAL"`, is answered
with a process id, `{"ended": pid}` with its return code, negative for a signal, or null while it runs.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

POINTS: dict[str, tuple[str, str]] = {
    "after poll": ("after", "kafka:KafkaConsumer:poll"),
    "after decode": ("after", "streamer.event:EventDecoder:decode"),
    "in the step": ("during", "streamer.model.trainer:Trainer:step"),
    "after the step": ("after", "streamer.model.trainer:Trainer:step"),
    "after an exchange": ("after", "redis.client:Pipeline:execute"),
    "writing a checkpoint": ("before", "os:fsync"),
    "before the rename": ("before", "pathlib:Path:rename"),
    "after the rename": ("after", "pathlib:Path:rename"),
    "before the commit": ("before", "kafka:KafkaConsumer:commit_async"),
    "after the commit": ("after", "kafka:KafkaConsumer:commit_async"),
}
"""Points of a micro-batch's way: before, during or after a call. Those of libraries stay when the product changes."""
WARM_UP = ["--dim", "8", "--batch-size", "64", "--threads", "1", "--until-end", "--json", "--method", "xir"]


def install(fault: str) -> None:
    """Send ourselves a signal when a point is passed for the n-th time."""
    point, nth, name = fault.split(":")
    when, target = POINTS[point]
    module, *owners, attribute = target.split(":")
    place = importlib.import_module(module)
    for owner in owners:
        place = getattr(place, owner)
    original = getattr(place, attribute)
    number, passed = signal.Signals[name], 0

    def strike(after_s: float = 0.0) -> None:
        nonlocal passed
        passed += 1
        if passed == int(nth) and after_s:  # by another process, so that this call goes on
            victim = os.getpid()
            if os.fork() == 0:
                time.sleep(after_s)
                if os.getppid() == victim:
                    os.kill(victim, number)
                os._exit(0)
        elif passed == int(nth):
            signal.pthread_kill(threading.get_ident(), number)  # to the process, this thread would run on

    def call(*given: Any, **named: Any) -> Any:
        if when == "before":
            strike()
        if when == "during":
            strike(0.001)
        found = original(*given, **named)
        if when == "after" and (attribute != "poll" or found):
            strike()
        return found

    setattr(place, attribute, call)


def warm_up() -> None:
    """Load and compile what a run needs, by a run. It leaves no threads, so that forks are whole."""
    import kafka  # noqa: F401
    import redis  # noqa: F401
    import uvicorn  # noqa: F401

    from streamer.cli.main import cli

    with tempfile.TemporaryDirectory() as directory:
        events = Path(directory) / "events.jsonl"
        events.write_text("".join(json.dumps({"user_id": f"u{k % 9}", "item_id": f"i{k}"}) + "\n" for k in range(200)))
        where = ["--checkpoint-dir", directory, "--source", str(events), "--dead-letters", f"{directory}/bad.jsonl"]
        sys.argv = ["streamer"]
        descriptor = os.dup(1)
        os.dup2(2, 1)  # standard output is for answers
        for arguments in (["run", *where, *WARM_UP], ["inspect", "--checkpoint-dir", directory, "--json"]):
            cli.main(arguments, standalone_mode=False)
        sys.stdout.flush()
        os.dup2(descriptor, 1)


def child(output: str, arguments: list[str], cwd: str | None, fault: str | None) -> None:
    """Become the command. Never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: we do not outlive the runner
        for name, descriptor in (("out", 1), ("err", 2)):
            os.dup2(os.open(f"{output}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd or os.curdir)
        if fault:
            install(fault)
        sys.argv = ["streamer", *arguments]
        from streamer.cli.main import main

        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def answer(job: dict[str, Any]) -> int | None:
    if "ended" in job:
        pid, status = os.waitpid(job["ended"], os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
    pid = os.fork()
    if pid == 0:
        child(job["output"], job["start"], job.get("cwd"), job.get("fault"))
    return pid


if __name__ == "__main__":
    warm_up()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
