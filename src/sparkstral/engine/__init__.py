"""The engine: the step loop, the process around it, and the client through which serving speaks to it."""
