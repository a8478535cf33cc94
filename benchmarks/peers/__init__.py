"""The programs of peers: a module or Java file for each of the micro workload; `flow_...` conduct orders."""
