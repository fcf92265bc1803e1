"""Topics of Kafka as a source, read as a member of a consumer group.

Belongs here: everything that knows kafka-python; start at `source.KafkaSource`.
May import: `sources.base`, `settings`, `errors` and the Kafka client.
"""
