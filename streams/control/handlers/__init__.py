"""Handlers: gates, breakers, pauses, awaited schemas."""
