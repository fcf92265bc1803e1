"""What `streamer bench` measures."""
