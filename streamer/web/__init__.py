"""Metrics, health and the live page over HTTP.

Belongs here: the server, its routes, and the page with all it needs (`static`); it
loads nothing from elsewhere. May import: `pipeline`, `metrics` and rooms below them.
"""
