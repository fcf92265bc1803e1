"""The commands `replay`, `evaluate`, `compare`, `sweep` and `demo`."""
