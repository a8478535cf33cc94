"""Comparisons, each a command that prints its table."""
