"""Streamer: online learning of recommender retrievers from event streams.

This package is the composition root, the only one that knows all the others: it reads events from a source, forms
micro-batches, hands them to the model, shares what was resampled through the cache store, and keeps checkpoints.
"""
