"""The sampled softmax over row blocks: one autograd function, with one backend for CPUs
and one for any device.

Belongs here: what is compiled or cut into blocks for speed; tests compare it with the
plain formula. May import: `model.device`, `model.jit`, `model.resampling`; no tables,
towers or methods.
"""

from streamer.model.kernels.sampled_softmax import (
    LossOutcome,
    Sampling,
    SparseScores,
    sampled_softmax,
)

__all__ = ["LossOutcome", "Sampling", "SparseScores", "sampled_softmax"]
