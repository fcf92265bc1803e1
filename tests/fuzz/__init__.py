"""Malformed inputs for everything that reads: nothing but the specified errors, no hang, bounded memory."""
