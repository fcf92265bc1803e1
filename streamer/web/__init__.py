"""Metrics, health and the live page over HTTP."""
