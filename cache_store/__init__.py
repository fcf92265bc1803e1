"""What trainers share: the occurrence vector and the cache."""
