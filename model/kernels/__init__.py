"""The sampled softmax over row blocks: one autograd function, with one backend for CPUs
and one for any device.

Belongs here: what is compiled or cut into blocks for speed; tests compare it with the
plain formula. May import: `model.device`, `model.jit`, `model.resampling`; no tables,
towers or methods.
"""

from streamer.model.kernels.sampled_softmax import sampled_softmax
from streamer.model.kernels.spec import LossOutcome, Sampling

__all__ = ["LossOutcome", "Sampling", "sampled_softmax"]
