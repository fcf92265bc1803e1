"""What a learner shares with the other trainers of its model, in a run (`sharing`) and
in a file (`store_file`).

Belongs here: translation between the learner's rows and the store's, and what is sent
when. May import: `learner`, `ingest`, `cache_store` and rooms below; neither learner
nor store knows this room.
"""
