"""Brokers, workers, networks and disks of a run, and the ways to break them."""
