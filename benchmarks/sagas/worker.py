"""A worker that conducts orders: `faust -A benchmarks.sagas.worker worker`."""

from __future__ import annotations

import os
from functools import partial

from benchmarks.lane_worker import lane_app
from benchmarks.sagas.workload import TIMEOUT, application

app = lane_app(partial(application, timeout=float(os.environ[TIMEOUT])))
