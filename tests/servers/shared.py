"""A server that the tests of a session share, wherever it runs."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from servers.process import LocalServer

Local = TypeVar("Local", bound=LocalServer)


class SharedServer(Generic[Local]):
    """One server, from the first of these that works:

    1. the address in the environment variable `VARIABLE`,
    2. a container, where a Docker engine answers,
    3. a process on this machine.

    Only the third can be killed and restarted.
    """

    VARIABLE: ClassVar[str]
    LOCAL: ClassVar[type[LocalServer]]

    def __init__(self) -> None:
        self.address = ""
        self._local: Local | None = None
        self._container: Any = None

    def start(self) -> Self:
        """Find or start the server.

        Raises:
            ServerUnavailable: none of the three ways works.
        """
        self.address = os.environ.get(self.VARIABLE) or (self._start_container() if docker_answers() else "")
        if not self.address:
            self._local = cast("Local", self.LOCAL())
            self._local.start()
            self.address = self._local.address
        return self

    def _make_container(self) -> Any:
        """A container that is not started yet."""
        raise NotImplementedError

    def _address_of(self, container: Any) -> str:
        raise NotImplementedError

    def _start_container(self) -> str:
        """The address of a new container; empty, with a warning, where it does not start (no image, ...)."""
        self._container = self._make_container()
        try:
            self._container.start()
            return self._address_of(self._container)
        except Exception as error:
            warnings.warn(f"Docker answers but the container does not start: {error}", stacklevel=2)
            with contextlib.suppress(Exception):
                self._container.stop()
            self._container = None
            return ""

    @property
    def can_restart(self) -> bool:
        return self._local is not None

    @property
    def running(self) -> bool:
        return self._local is None or self._local.running

    @property
    def local(self) -> Local:
        """The process, for what only a process can do."""
        if self._local is None:
            raise RuntimeError("only a server that runs as a local process can be killed and restarted")
        return self._local

    def kill(self) -> None:
        """SIGKILL."""
        self.local.kill()

    def stop(self) -> None:
        """Shut the process down in good order, ready for `restart`."""
        self.local.stop()

    def restart(self) -> None:
        """Start the process again, at the same address."""
        self.local.start()

    def delete(self) -> None:
        """Take down what was started here, with its data. A server that is not ours is left alone."""
        if self._local:
            self._local.delete()
        if self._container:
            self._container.stop()


@functools.cache
def docker_answers() -> bool:
    """True if a Docker engine answers within two seconds."""
    try:
        import docker

        with contextlib.closing(docker.from_env(timeout=2)) as client:
            return bool(client.ping())
    except Exception:  # no engine, or no permission: for the tests it is the same
        return False
