"""The programs that do the micro workload, one module or Java file for each peer."""
