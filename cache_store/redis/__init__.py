"""The shared state in Redis or Valkey: URLs, keys, scripts, the server that trainers
use, an operator's commands.

Belongs here: everything that knows Redis; `schema` documents every key.
May import: the rest of `cache_store` and redis-py.
"""
