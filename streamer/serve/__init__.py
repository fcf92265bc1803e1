"""What a server of recommendations knows and answers from.

Belongs here: the learner that follows a trainer (`replica`, `follower`), its item
vectors (`vectors`), events that are not learned yet (`overlay`), how fresh all of this
is (`freshness`, `metrics`), the answers (`service`, `pages`), and from settings to these parts (`settings`,
`build`). May import: `streamer.build`, `metrics`, `recommender` and rooms below them;
HTTP is in `web`.
"""
