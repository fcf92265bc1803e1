"""From a source to micro-batches: the reading thread, the offsets of our partitions, and where reading stops."""
