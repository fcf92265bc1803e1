"""What trainers of one model share: counts, occurrence vector and cache, as a log of packed deltas on a server and a
replica in each trainer. Start at `store.CacheStore`; `server.Server` is what a server does, in memory or in Redis.
Nothing here knows a tensor or a micro-batch: it imports numpy, msgspec and redis-py, and nothing else of Streamer."""
