"""Comparisons, each a command: `python -m benchmarks.NAME`."""
