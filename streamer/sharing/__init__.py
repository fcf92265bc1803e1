"""What a learner shares with the other trainers of its model.

Belongs here: translation between the learner's rows and the store's, and what is sent
when. May import: `learner`, `ingest`, `cache_store` and rooms below; neither learner
nor store knows this room.
"""
