"""What the trainers of one model share: counts, occurrence vector and cache, as a log
of deltas on a server and a replica in each trainer. Start at `store.CacheStore`;
`server.Server` is what a server does, in memory or in Redis.

Belongs here: rows, counts, offsets and epochs. Tensors and micro-batches do not.
May import: numpy, msgspec and redis-py; nothing else of Streamer.
"""

if (
    __name__ == "cache_store"
):  # found in the root of a clone: a second copy of every class
    raise ImportError("import streamer.cache_store instead of cache_store")
