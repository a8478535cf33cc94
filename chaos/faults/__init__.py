"""Performing what the schedule plans, and confirming that it happened."""
