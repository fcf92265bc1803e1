"""What the trainers of one model share: counts, draws and the cache, as entries that a
server keeps and every trainer has a copy of. Start at `change.Change`, then
`table.Table` and `store.CacheStore`; `server.StoreServer` is what a server does, in
memory or in Redis.

Belongs here: names, versions, rows and numbers. Tensors and micro-batches do not.
May import: numpy, numba and redis-py; nothing else of Streamer.
"""

if (
    __name__ == "cache_store"
):  # found in the root of a clone: a second copy of every class
    raise ImportError("import streamer.cache_store instead of cache_store")
