"""A worker of the failures workload: `faust -A benchmarks.failures.worker worker`."""

from __future__ import annotations

from benchmarks.failures.workload import application
from benchmarks.lane_worker import lane_app

app = lane_app(application)
