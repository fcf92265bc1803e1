"""One module for each command. Nothing heavy is imported at module level."""
