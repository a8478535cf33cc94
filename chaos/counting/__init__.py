"""The same faults for the lane and for stock Faust: `python -m chaos.counting --var DIR`."""
