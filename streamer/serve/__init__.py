"""Recommendations over HTTP, from what a trainer publishes and from the events
themselves.

Belongs here: the learner that follows a trainer (`replica`, `follower`), its item
vectors (`vectors`), events that are not learned yet (`overlay`, `tail`), the answers
(`service`), and HTTP with its page (`app`, `static`). May import: `publish`, `web`,
`metrics`, `recommender` and rooms below them.
"""
