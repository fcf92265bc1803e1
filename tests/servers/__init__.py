"""Real servers for tests: found, or started, and always taken down again.

Each is looked for in the same order: an address in the environment, a Docker engine, a local process.
"""
