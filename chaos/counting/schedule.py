"""When which worker is hit: drawn from a seed, the same for every contestant."""

from __future__ import annotations

import random
from enum import StrEnum

import msgspec

WORKERS = 2
#: How long a worker is frozen: past its session timeout.
FROZEN = 11.0
SESSION_TIMEOUT = 6.0
_LEAD = 4.0
_LEAST_GAP = 2.0


class WorkerFault(StrEnum):
    """What is done to a worker. Whatever ended is started again at once, in its place."""

    KILL = "SIGKILL"
    FREEZE = "SIGSTOP"
    END = "SIGTERM"


MIX = (WorkerFault.KILL,) * 3 + (WorkerFault.FREEZE,) * 2 + (WorkerFault.END,)
#: The shortest load that has room for all of them, in seconds.
SHORTEST = _LEAD + FROZEN * MIX.count(WorkerFault.FREEZE) + _LEAST_GAP * len(MIX)


class ScheduledFault(msgspec.Struct, frozen=True):
    """A fault, the worker it hits, and when: seconds after the load began."""

    at: float
    fault: WorkerFault
    worker: int


def schedule(seed: int, seconds: float) -> list[ScheduledFault]:
    """All of MIX within so many seconds, in the order in which they are due; none while a worker is frozen.

    Raises ValueError when that is not long enough.
    """
    if seconds < SHORTEST:
        raise ValueError(f"{seconds:g} s have no room for the faults: {SHORTEST:g} s at least")
    rng = random.Random(seed)
    faults = rng.sample(MIX, len(MIX))
    spare = seconds - SHORTEST
    cuts = sorted(rng.uniform(0, spare) for _ in faults)
    due, busy = [], _LEAD
    for fault, cut in zip(faults, cuts, strict=True):
        due.append(ScheduledFault(round(busy + cut, 2), fault, rng.randrange(WORKERS)))
        busy += _LEAST_GAP + (FROZEN if fault is WorkerFault.FREEZE else 0.0)
    return due
