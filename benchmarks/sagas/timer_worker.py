"""A worker whose timers are measured: `faust -A benchmarks.sagas.timer_worker worker`."""

from __future__ import annotations

from benchmarks.lane_worker import lane_app
from benchmarks.sagas.timer_workload import application

app = lane_app(application)
