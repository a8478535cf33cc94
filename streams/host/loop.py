"""How a worker's process is set up before its event loop starts."""

from __future__ import annotations

import asyncio
import gc
import resource

import structlog
import uvloop

from streams.host.rocksdb.store_options import MAX_OPEN_FILES

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


log = structlog.get_logger(__name__)

#: Of a store beside its tables: write-ahead logs, the manifest, its own log, and what a compaction writes.
_STORE = MAX_OPEN_FILES + 20
#: Connections to each broker: of a lane its reader's and its producer's two, and as many of the one before
#: that are still being closed; of a standby its reader's.
_LANE, _STANDBY = 6, 2
#: What the worker itself has open: its pages, membership, the object store, libraries.
_WORKER = 250


def raise_limit() -> None:
    """Raise this process's soft limit to its hard one, which it may by itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        log.warning("open_files_limit_stays", limit=soft, error=str(error))


def wanted(lanes: int, standbys: int, brokers: int) -> int:
    """How many files lanes and standbys may have open at the same time, at most."""
    return _WORKER + lanes * (_STORE + _LANE * brokers) + standbys * (_STORE + _STANDBY * brokers)


def shortage(lanes: int, standbys: int, brokers: int) -> str:
    """A warning where the limit may be too low for these lanes and standbys; else empty."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted(lanes, standbys, brokers)
    if limit in (resource.RLIM_INFINITY, -1) or most <= limit:
        return ""
    return (
        f"this process may have {limit} files open, and its {lanes} lanes and {standbys} standbys may want"
        f" {most} in the end: raise its limit (ulimit -n; LimitNOFILE= of systemd; --ulimit nofile of a"
        " container), or start more workers"
    )
