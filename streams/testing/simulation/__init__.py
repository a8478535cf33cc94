"""Simulates workers in one process with a fake cluster and simulated time, all determined by a seed."""
