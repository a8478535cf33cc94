"""A worker of the growth workload: `faust -A benchmarks.growth.worker worker`."""

from __future__ import annotations

from benchmarks.growth.workload import application
from benchmarks.lane_worker import lane_app

app = lane_app(application)
