"""Faults on a seeded schedule, and an independent checker: `python -m chaos`."""
