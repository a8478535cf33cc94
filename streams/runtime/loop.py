"""How a worker's process is set up before its event loop starts."""

from __future__ import annotations

import asyncio
import gc

import uvloop

#: Records and envelopes come by the ten thousand and die young. At Python's default of 700 the collector
#: walks them again and again: about a quarter of the time of a busy lane.
GC_THRESHOLD = (50_000, 20, 50)


def tune_process() -> None:
    """Make uvloop the loop of this process, and let the garbage collector run less often."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    gc.set_threshold(*GC_THRESHOLD)
