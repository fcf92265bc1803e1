"""Published changes: what a trainer writes so that servers answer with what it has just
learned.

Belongs here: what a point holds (`points`), the thread that writes them (`publisher`),
and the two places where they can be written to and read from: a directory (`directory`)
and a Kafka topic (`kafka`). May import: `learner` and rooms below it.
"""
