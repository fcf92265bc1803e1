"""Where records come from: Kafka, the embedded log and files, all with the
methods of `base.Source`.

Belongs here: what moves bytes and offsets; what a record means is the business of
`event`. May import: `settings` and `errors`.
"""
