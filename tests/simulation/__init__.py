"""Whole groups of trainers in one process, on simulated threads and a simulated clock: one seed, one history."""
