"""Negative controls: without a protection the checker goes red. `python -m chaos.controls --var DIR`."""
