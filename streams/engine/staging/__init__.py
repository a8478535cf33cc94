"""Rows and messages that are staged: decided, and not committed yet."""
