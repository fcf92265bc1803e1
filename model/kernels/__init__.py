"""The sampled softmax over row blocks: one autograd function, with one backend for CPUs and one for any device."""

from streamer.model.kernels.sampled_softmax import Entries, Outcome, Sampling, sampled_softmax

__all__ = ["Entries", "Outcome", "Sampling", "sampled_softmax"]
