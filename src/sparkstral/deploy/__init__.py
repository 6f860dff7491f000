"""Ways to run it that survive this terminal: files and commands, shown first, applied when asked."""
