"""Measuring: kernels, engine and loading on the device at hand; what that means for a GB10; whether a run got faster.

Owns the method (docs/performance/README.md) and the form of the JSON that each run leaves. What is measured runs in
a process of its own (`python -m sparkstral.bench.NAME`) that needs no terminal library; cli/ draws the tables.
"""
