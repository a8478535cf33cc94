"""Traces: where a message's trace stands, spans of what was done, and how they leave the process (ADR 40)."""
