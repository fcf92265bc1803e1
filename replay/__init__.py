"""Offline logs as streams."""
