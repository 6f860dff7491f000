"""The engine: the step loop, the process that it lives in, and the client through which serving speaks to it."""
