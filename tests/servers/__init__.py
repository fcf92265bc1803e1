"""Real servers for tests: found, or started, and always taken down again."""
