"""The training methods by name, one file each over one formula (`base`), and as plain
functions (`functional`).

Belongs here: which candidates a method has, how they are corrected, and whether they
are resampled. May import: `model.batch`, `model.kernels`, `model.plan`,
`model.settings`; no towers and no optimizer.
"""

from __future__ import annotations

from streamer.model.losses.base import LossTerm, Method, Proposals
from streamer.model.losses.bir import Bir
from streamer.model.losses.full_softmax import FullSoftmax
from streamer.model.losses.g_tower import GTower
from streamer.model.losses.mns import Mns
from streamer.model.losses.ssl import Ssl
from streamer.model.losses.ssl_pop import SslPop
from streamer.model.losses.xir import Xir

METHODS: dict[str, Method] = {
    method.name: method
    for method in (Ssl(), SslPop(), Mns(), GTower(), Bir(), Xir(), FullSoftmax())
}


def method_named(name: str) -> Method:
    """The method of that name.

    Raises:
        ValueError: there is none; the message lists those that exist.
    """
    if name not in METHODS:
        raise ValueError(f"no method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


__all__ = ["METHODS", "LossTerm", "Method", "Proposals", "method_named"]
