"""Ranking: what is counted of the stream, the candidates that it brings up for a user,
and a small learned ranker.

It may import `streamer.model.batch`, `growing` and `jit`; of the towers it knows one
number a candidate.
"""
