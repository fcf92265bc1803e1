"""Records that could not be used: why, and where they are kept."""
