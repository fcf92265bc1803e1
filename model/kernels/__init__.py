"""The sampled softmax over row blocks: one autograd function, with one backend for CPUs and one for any device."""

from streamer.model.kernels.sampled_softmax import Outcome, Sampling, SparseScores, sampled_softmax

__all__ = ["Outcome", "Sampling", "SparseScores", "sampled_softmax"]
