"""The shared state in Redis or Valkey: URLs, keys and scripts, the server that trainers use, and what an operator does.
`schema` documents every key. It imports the rest of `cache_store` and redis-py."""
