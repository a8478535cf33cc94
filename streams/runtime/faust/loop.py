"""How a worker's process is set up before its event loop starts."""

from __future__ import annotations

import asyncio
import gc

import uvloop

from streams.runtime.faust.open_files import raise_limit

#: Records and envelopes come by the ten thousand and die young, and none of them is part of a cycle. At
#: Python's default of 700 the collector walks them again and again: a third of the time of a busy lane.
GC_THRESHOLD = (300_000, 20, 100)


def tune_process() -> None:
    """Make uvloop the loop of this process, let the garbage collector run less often, and let it have as many
    files open as it may.

    Call it when everything is imported: what exists by then is never walked again.
    """
    raise_limit()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
