"""What can be seen of a running line: Prometheus metrics, health, and the data of the live page."""
