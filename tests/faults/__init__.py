"""Faults against real processes: what becomes of every event when a part of the system fails."""
