"""Events written to a topic of Kafka, each exactly once for readers of committed
records.

Belongs here: transactions of the producer.
May import: `replay.events`, `streamer.sources.kafka` and the Kafka client.
"""
