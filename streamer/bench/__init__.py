"""What `streamer bench` measures: `catalogue` names every bench with its settings, a module of its own measures it, and
`base` has what they share. They import anything but `streamer.cli`."""
