"""Sets up a worker's process before its event loop starts."""

from __future__ import annotations

import asyncio
import gc
import resource

import structlog
import uvloop

from streams.host.rocksdb.store_options import MAX_OPEN_FILES

#: Tens of thousands of records and envelopes are short-lived and not part of reference cycles. With Python's
#: default of 700, the collector would scan them again and again, for a third of the time of a busy lane.
GC_THRESHOLD = (300_000, 20, 100)


def tune_process() -> None:
    """Use uvloop, run the garbage collector less often, and raise the limit of open files.

    Call it once everything is imported, because the collector never scans again what exists by then.
    """
    raise_limit()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


log = structlog.get_logger(__name__)

#: Open files of a store: those of its tables, and write-ahead logs, the manifest, its log and compactions.
_STORE = MAX_OPEN_FILES + 20
#: Connections of a lane, and of a standby, to each broker. For a lane: its reader's and its producer's two,
#: and as many again of its previous opening, which are still closing. For a standby: its reader's.
_LANE, _STANDBY = 6, 2
#: Open files of the worker itself: pages, membership, the object store, libraries.
_WORKER = 250


def raise_limit() -> None:
    """Raise this process's soft limit of open files to its hard limit, which needs no privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        log.warning("open_files_limit_stays", limit=soft, error=str(error))


def wanted(lanes: int, standbys: int, brokers: int) -> int:
    """The maximum number of files that a worker with these lanes and standbys has open at the same time."""
    return _WORKER + lanes * (_STORE + _LANE * brokers) + standbys * (_STORE + _STANDBY * brokers)


def shortage(lanes: int, standbys: int, brokers: int) -> str:
    """A warning if the limit of open files may be too low for these lanes and standbys; else empty."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted(lanes, standbys, brokers)
    if limit in (resource.RLIM_INFINITY, -1) or most <= limit:
        return ""
    return (
        f"this process may have {limit} files open, and its {lanes} lanes and {standbys} standbys may want"
        f" {most} in the end: raise its limit (ulimit -n; LimitNOFILE= of systemd; --ulimit nofile of a"
        " container), or start more workers"
    )
