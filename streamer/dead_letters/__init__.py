"""Records that could not be used: the reason, and the file or topic that keeps them.

Belongs here: a `DeadLetter` and its sinks; `streamer.event` decides what becomes one.
May import: `sources`, `settings`, `errors`.
"""
