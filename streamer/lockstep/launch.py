"""`streamer run --trainers N`: torch starts N processes and ends all of them when one
dies; then all start again from the last checkpoint.

torch restarts a number of times that is fixed for the life of a run, whatever the
reason. A trainer runs for months, and wrong settings stay wrong: so each start is one
launch of torch's, and the few lines of `launch_ranks` decide whether there is another.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

SETTINGS_ARE_WRONG = 2
QUICK_S = 30.0
MAX_QUICK_FAILURES = 3
"""Trainers that fail of themselves this soon and this often in a row are not started
again.
"""
MONITOR_S = 0.05
_PR_SET_PDEATHSIG = 1


def launch_ranks(
    trainers: int, entry: Callable[..., None], *args: Any, restart: bool = True
) -> int:
    """Run a function in N processes until all end well, or fail of themselves again and
    again; returns the exit code.

    SIGTERM, SIGHUP and Ctrl-C are passed on to the ranks, which end after their step.

    Args:
        trainers: N.
        entry: what each rank runs, which finds its rank in the environment as under
            torchrun; a function of a module, as it is pickled.
        args: of the function.
        restart: whether all start again when one fails.
    """
    is_stopping = False

    def pass_on(number: int, _: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        for process in multiprocessing.active_children():
            if process.pid is not None:
                os.kill(process.pid, number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, pass_on)

    failures = 0
    while True:
        started = time.monotonic()
        code = _run_all(trainers, entry, *args)
        if code in (0, SETTINGS_ARE_WRONG) or is_stopping:
            return max(code, 0)
        if not restart:
            return abs(code)

        was_killed = code < 0
        was_quick = time.monotonic() - started < QUICK_S
        failures += 1
        if was_killed or not was_quick:
            failures = 0
        if failures >= MAX_QUICK_FAILURES:
            return code
        what = f"failed ({code})"
        if was_killed:
            what = f"was killed by signal {-code}"
        logger.warning(
            "A trainer %s: all %d start again from the last checkpoint",
            what,
            trainers,
        )


def _run_all(trainers: int, entry: Callable[..., None], *args: Any) -> int:
    """One start of all ranks; returns 0 if all ended well, else how one of them ended."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from streamer.lockstep import rendezvous

    # ranks say themselves what went wrong
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="streamer-launch-") as directory:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=trainers,
            run_id="streamer",
            rdzv_backend=rendezvous.register(),
            local_addr=rendezvous.LOOPBACK,
            max_restarts=0,
            monitor_interval=MONITOR_S,
            signals_to_handle="SIGQUIT",  # the others are passed on by `launch_ranks`
            logs_specs=DefaultLogsSpecs(log_dir=directory),
        )
        try:
            elastic_launch(config, _rank)(os.getpid(), entry, *args)
        except ChildFailedError as error:
            return min(failure.exitcode for failure in error.failures.values())
    return 0


def _rank(launcher: int, entry: Callable[..., None], *args: Any) -> None:
    """What each process runs: it is killed as soon as the launcher is gone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before we asked
        os._exit(1)
    os.setsid()  # or the terminal would send Ctrl-C to us, and the launcher once more
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    try:
        entry(*args)
    except SystemExit as ended:
        if ended.code:  # torch waits for those that end well to return
            raise
