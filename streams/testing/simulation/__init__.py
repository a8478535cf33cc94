"""Several workers in one process, over a fake cluster and in simulated time, all decided by one seed."""
