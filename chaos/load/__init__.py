"""The orders, messages and producers of a run."""
