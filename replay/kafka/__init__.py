"""Events to a topic of Kafka, each exactly once."""
