"""The embedded log: topics with partitions and consumer groups in one SQLite file,
until there is a Kafka.

Belongs here: writing the log (`log`), reading it (`source`), and sharing its partitions
among processes (`groups`). May import: `sources.base`, `errors`.
"""
