"""Starts `streamer` in forks of a process that has everything loaded, without the seconds that imports take.

Reads one JSON object a line from standard input: `{"start": arguments, "output": path}`, perhaps with `cwd`, `env` and
`prelude` (code that runs before the command), is answered with a process id; `{"ended": pid}` with its return code,
negative for a signal, or null while it runs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
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

WARM_UP = ["--dim", "8", "--batch-size", "64", "--threads", "1", "--until-end", "--json", "--method", "xir"]
MODULES = ["kafka", "redis", "uvicorn", "streamer.lockstep.checkpoint", "streamer.sources.kafka.source"]


def strike(when: str, target: str, nth: int, name: str) -> None:
    """Send ourselves a signal at the n-th call of `module:function` or `module:class:method`.

    Args:
        when: before, during or after the call.
        target: what is called.
        nth: 1 for the first call; polls that return nothing do not count.
        name: of the signal.
    """
    module, *owners, attribute = target.split(":")
    place = importlib.import_module(module)
    for owner in owners:
        place = getattr(place, owner)
    original = getattr(place, attribute)
    number, passed = signal.Signals[name], 0

    def hit(after_s: float = 0.0) -> None:
        nonlocal passed
        passed += 1
        if passed == nth and after_s:  # by another process, so that this call goes on
            victim = os.getpid()
            if os.fork() == 0:
                time.sleep(after_s)
                if os.getppid() == victim:
                    os.kill(victim, number)
                os._exit(0)
        elif passed == nth:
            signal.pthread_kill(threading.get_ident(), number)  # to the process, this thread would run on

    def call(*given: Any, **named: Any) -> Any:
        if when == "before":
            hit()
        if when == "during":
            hit(0.001)
        found = original(*given, **named)
        if when == "after" and (attribute != "poll" or found):
            hit()
        return found

    setattr(place, attribute, call)


def warm_up() -> None:
    """Load and compile what a run needs, by a run. It leaves no threads, so that forks are whole."""
    import click

    from streamer.cli.main import COMMANDS, cli

    for name in MODULES:
        importlib.import_module(name)
    for name in COMMANDS:
        cli.get_command(click.Context(cli), name)
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


def child(job: dict[str, Any]) -> None:
    """Become the command. Never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: we do not outlive the runner
        for name, descriptor in (("out", 1), ("err", 2)):
            os.dup2(os.open(f"{job['output']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may be deaf to it
        for number in (signal.SIGTERM, signal.SIGHUP):  # those of the first run would be caught for that one
            signal.signal(number, signal.SIG_DFL)
        faulthandler.register(signal.SIGUSR1)  # who waits in vain for us can see where we are
        os.chdir(job.get("cwd") or os.curdir)
        os.environ.update(job.get("env", {}))
        sys.argv = ["streamer", *job["start"]]
        exec(job.get("prelude", ""), {})
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
        child(job)
    return pid


if __name__ == "__main__":
    warm_up()
    gc.freeze()  # so that forks share what is loaded, which a collection would write to
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
