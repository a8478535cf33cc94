"""Decisions as pure functions: retries, circuit breaker, reopening, assignment. No I/O, no clock."""
