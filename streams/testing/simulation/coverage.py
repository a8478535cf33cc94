"""Counts which faults struck in which states of a lane, and finds pairs that never occurred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from streams.engine.life.lane import Lane
from streams.engine.life.state import LaneState
from streams.testing.simulation.workers import SimulatedWorker

#: Faults that strike one machine. The first value of their step is the machine's number.
OF_A_MACHINE = frozenset(
    (
        "clock",
        "clock_wrong",
        "cut_off",
        "damage_disk",
        "deaf",
        "deaf_then_opening",
        "disk_full",
        "disk_full_long",
        "freeze",
        "kill",
        "kill_in_recovery",
        "lose_disk",
        "moved_and_back",
        "restart",
        "slow",
        "swap_disks",
        "twin",
    )
)
#: Faults that strike at a later occasion, not at the time of their step.
LATER = frozenset(
    (
        "copy_disk",
        "freeze_at",
        "freeze_opening",
        "frozen_then_opening",
        "kill_at",
        "kill_opening",
        "lost_answer",
        "unanswered",
    )
)
#: States of a lane or of its worker, in the order of the table.
STATES = (
    "down",
    "frozen",
    "standby",
    "opening",
    "recovering",
    "idle",
    "working",
    "in commit",
    "retry waits",
    "reopening",
    "waits",
)

#: In a range of some thousand seeds, each of these faults must strike in each of the states in MET.
OFTEN = ("compact", "cut_off", "disk_full", "freeze", "kill", "rebalance", "refusal", "restart")
MET = ("standby", "opening", "idle", "in commit", "retry waits", "waits")


class Strike(NamedTuple):
    """A kind of fault, and the state of a lane in which it struck."""

    kind: str
    state: str


def states(worker: SimulatedWorker | None) -> Iterator[str]:
    """The states of a worker's lanes; "down" or "frozen" if the worker does not run."""
    if worker is None:
        yield "down"
    elif worker.machine.is_frozen:
        yield "frozen"
    else:
        yield from map(_state, list(worker.host.lanes.values()))
        if worker.host.standbys:
            yield "standby"


def _state(lane: Lane) -> str:
    if lane.state is LaneState.BACKING_OFF:
        return "waits" if lane.trouble else "reopening"
    if lane.state is LaneState.OPENING:
        return "recovering" if lane.measures.to_recover else "opening"
    if lane.state is not LaneState.OPEN:
        return lane.state.value
    if lane.measures.in_transaction:
        return "in commit"
    if lane.backlog:
        return "working"
    return "retry waits" if any(gate.queues for gate in lane.gates.values()) else "idle"


def unmet(counts: Mapping[Strike, int]) -> list[Strike]:
    """The pairs of OFTEN and MET that never occurred."""
    return [each for kind in OFTEN for state in MET if not counts.get(each := Strike(kind, state))]


def table(counts: Mapping[Strike, int], kinds: Iterable[str]) -> list[str]:
    """Lines of a table with the number of runs in which each fault struck in each state; `.` means never."""
    points = sorted({state for _, state in counts} - set(STATES))
    width = max(len(kind) for kind in kinds)
    lines = []
    for some in (STATES, points):
        met = Counter({strike.kind: n for strike, n in counts.items() if strike.state in some})
        lines.append(" " * width + "".join(f"{state:>13}" for state in some))
        lines += [
            f"{kind:{width}}" + "".join(f"{counts.get(Strike(kind, state), 0) or '.':>13}" for state in some)
            for kind in sorted(kinds)
            if some is STATES or met[kind]
        ]
    return lines
