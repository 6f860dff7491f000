"""The command line: the only room that prints for people, reads flags and chooses exit codes."""
