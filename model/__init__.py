"""The retriever and how it learns: towers, methods, resampling, popularity, occurrence,
the training step.

Belongs here: whatever computes with rows and tensors. Ids, files, streams and servers
do not: no I/O happens here. May import: torch, numpy and numba; nothing else of
Streamer.
"""

if __name__ == "model":  # found in the root of a clone: a second copy of every class
    raise ImportError("import streamer.model instead of model")
