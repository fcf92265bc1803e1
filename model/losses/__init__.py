"""The training methods by name (`methods`) over one formula (`base`), and as plain
functions (`functional`).

Belongs here: which candidates a method has, how they are corrected, and whether they
are resampled. May import: `model.batch`, `model.kernels`, `model.plan`,
`model.settings`; no towers and no optimizer.
"""

from streamer.model.losses.base import LossTerm, Method, Proposals
from streamer.model.losses.methods import METHODS

__all__ = ["METHODS", "LossTerm", "Method", "Proposals"]
