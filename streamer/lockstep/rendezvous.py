"""Where the ranks of one machine find each other: a store that listens on 127.0.0.1.

torch's own launchers listen on every address of the machine, without a password, and
`c10d` unpickles what it finds in its store.
"""

from __future__ import annotations

import socket

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import (
    StaticTCPRendezvous,
)

LOOPBACK = "127.0.0.1"
JOIN_TIMEOUT_S = 60


class LoopbackRendezvous(StaticTCPRendezvous):
    """A rendezvous of one launcher, at any free port."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        listening = socket.create_server((LOOPBACK, 0))
        port = listening.getsockname()[1]
        super().__init__(LOOPBACK, port, 0, 1, parameters.run_id, JOIN_TIMEOUT_S)
        self._store = TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            timeout=self.timeout,
            master_listen_fd=listening.detach(),
        )

    def get_backend(self) -> str:
        """The name by which a `LaunchConfig` asks for it."""
        return "loopback"


def register() -> str:
    """Make it known to torch; returns its name."""
    rendezvous_handler_registry.register("loopback", LoopbackRendezvous)
    return "loopback"
