"""Traces: the context of a message, spans, and their export (ADR 40)."""
