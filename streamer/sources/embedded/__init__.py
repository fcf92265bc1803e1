"""The embedded log (SQLite) as a source: what stands in for Kafka until there is one."""
