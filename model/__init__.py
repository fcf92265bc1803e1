"""The retrieval model and how it learns: towers, samplers, popularity, the training step. No I/O happens here."""
