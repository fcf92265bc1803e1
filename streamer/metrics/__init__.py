"""What can be seen of a run: Prometheus metrics, health, and the data of the live page.

Belongs here: the catalogue of all metrics, and the monitor that sets them; HTTP is in
`web`. May import: `learner` and rooms below it; `pipeline` and `prequential` for
annotations only.
"""
