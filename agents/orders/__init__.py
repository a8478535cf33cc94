"""The orders service: keeps each order's status and history, and settles it once."""
