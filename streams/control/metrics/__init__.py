"""Metrics in the form of Prometheus."""
