"""What `streamer bench` measures, always against a named alternative in the same run.

Belongs here: one module for each bench, `catalogue` with their names and settings, and
`base` with what they share. May import: everything but `cli`, `web` and `replay`.
"""
