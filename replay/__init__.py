"""Logs and made-up events as streams, and methods compared on them.

Belongs here: what needs events from before; nothing that `streamer run` needs on a live
stream. May import: all of Streamer. Nothing imports `replay` but the names of its
commands in `streamer.cli.main`.
"""

if __name__ == "replay":  # found in the root of a clone: a second copy of every class
    raise ImportError("import streamer.replay instead of replay")
