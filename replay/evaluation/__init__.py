"""Methods compared on logs: offline as in the paper, and prequential on the production
line.

Belongs here: protocols, the record of each run, tables and the report. May import:
`replay.datasets`, `replay.events`, `replay.settings` and all of Streamer but its
commands.
"""
