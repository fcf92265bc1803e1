"""What the trainers of one model share: counts, occurrence vector and cache, as a log
of deltas on a server and a replica in each trainer. Start at `store.CacheStore`;
`server.Server` is what a server does, in memory or in Redis.

Belongs here: rows, counts, offsets and epochs. Tensors and micro-batches do not.
May import: numpy, msgspec and redis-py; nothing else of Streamer.
"""
