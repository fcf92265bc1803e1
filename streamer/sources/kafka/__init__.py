"""Topics of Kafka as a source."""
