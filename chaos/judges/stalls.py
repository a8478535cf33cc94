"""How long lanes committed nothing, and beside which fault: pure, from the commits seen during the load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import msgspec

from chaos.rig.records import KILLED_TWICE, CommitTimes, Happened, RunRecords
from demo.findings import Finding

#: A lane's last commit comes this long before the fault that ended it, at most; in seconds.
BEFORE = 1.0
#: Seconds after a fault has passed in which a stall may still be due to it.
AFTER = 5.0
#: Seconds over the session timeout in which a killed worker's lanes must be open elsewhere, and those that a
#: lane may stand still while workers are restarted one after the other. Both are what workers need of a
#: processor: beside others it lasts longer (`Happened.slowed`). The session timeout is the clock's.
TAKING_OVER = 4.0
ROLLING = 6.0


class CommitGap(msgspec.Struct, frozen=True):
    """The longest time between two commits of one lane that began with a fault.

    Attributes:
        kind: of the fault; empty: there was none.
        alone: whether no other fault was near, so that this one is the reason.
        began: seconds since the epoch.
        limit: what it must not exceed when alone, in seconds; None: it is only reported.
    """

    kind: str
    alone: bool
    lane: int
    began: float
    seconds: float
    limit: float | None = None

    @property
    def too_long(self) -> bool:
        """Whether it is over the limit, for no other reason than its fault."""
        return self.alone and self.limit is not None and self.seconds > self.limit


class Gap(msgspec.Struct, frozen=True):
    """A time in which a lane committed nothing, in seconds since the epoch."""

    lane: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.ended - self.began


def stalls(run: RunRecords, commits: CommitTimes) -> list[CommitGap]:
    """The longest stall of each fault in the load, and the longest of all beside none."""
    all_of_them = gaps(run, commits)
    near = [_near(fault, run) for fault in run.faults]
    found = []
    for number, fault in enumerate(run.faults):
        longest = max(
            (part for gap in all_of_them for part in _part(gap, *near[number])), key=_seconds, default=None
        )
        if longest is not None:
            limit = _limit(fault, run)
            alone = not any(
                _excuses(other, longest, limit, run) for other in run.faults if other is not fault
            )
            found.append(_stall(fault.kind, longest, alone=alone, limit=limit))
    quiet = (gap for gap in all_of_them if not any(_overlap(gap.began, gap.ended, *w) for w in near))
    if (longest := max(quiet, key=_seconds, default=None)) is not None:
        found.append(_stall("", longest, alone=True, limit=None))
    return found


def gaps(run: RunRecords, commits: CommitTimes) -> list[Gap]:
    """All times of the load between two commits of a lane, by the cut that the run began with."""
    return [gap for lane in range(run.lanes) for gap in _gaps(lane, commits.seen.get(lane, []), run.load)]


def judge_stalls(found: Iterable[CommitGap]) -> Finding:
    """Whether each is within its limit; the longest of each kind is reported."""
    by_kind: Mapping[str, list[CommitGap]] = defaultdict(list)
    for stall in found:
        by_kind[stall.kind].append(stall)
    says = (
        "; ".join(_described(kind, those) for kind, those in sorted(by_kind.items()))
        or "no commit in the load"
    )
    return Finding(
        "no stall over its limit",
        bool(by_kind) and not any(stall.too_long for those in by_kind.values() for stall in those),
        says,
    )


def _limit(fault: Happened, run: RunRecords) -> float | None:
    taking_over = run.session_timeout + TAKING_OVER * fault.slowed
    limits = {
        "kill_worker": taking_over,
        "kill_at_point": taking_over,
        KILLED_TWICE: 2 * taking_over,
        "rolling_restart": ROLLING * fault.slowed,
    }
    return limits.get(fault.kind)


def healed_at(fault: Happened, run: RunRecords) -> float:
    """When it was over: what never comes back is taken over by others."""
    return fault.ended if fault.ended is not None else fault.began + run.session_timeout + TAKING_OVER


def _near(fault: Happened, run: RunRecords) -> tuple[float, float]:
    """When a stall may begin that is due to a fault: after the one before, and before the next one."""
    healed = healed_at(fault, run)
    others = [other for other in run.faults if other is not fault]
    before = [over for other in others if (over := healed_at(other, run)) <= fault.began]
    after = [other.began for other in others if other.began >= healed]
    noticed = fault.began + run.session_timeout  # by the group, when it did not come back sooner
    return max([fault.began - BEFORE, *before]), min([max(noticed, healed) + AFTER, *after])


def _part(gap: Gap, begins: float, ends: float) -> Iterator[Gap]:
    """The part of a gap that counts for a fault: of a lane that had stopped before, the part from now on."""
    began = max(gap.began, begins)
    if began <= ends and began < gap.ended:
        yield Gap(gap.lane, began, gap.ended)


def _excuses(other: Happened, gap: Gap, limit: float | None, run: RunRecords) -> bool:
    """Whether another fault may be why a stall is too long: not one that came when it was so already."""
    too_long = gap.began + min(gap.seconds, gap.seconds if limit is None else limit)
    return other.began < too_long and gap.began < healed_at(other, run)


def _gaps(lane: int, times: Iterable[float], load: tuple[float, float]) -> Iterator[Gap]:
    """From the load's begin to its end: a lane that commits no more has a gap until then."""
    begin, end = load
    inside = sorted(time for time in times if begin < time < end)
    for before, after in pairwise([begin, *inside, end]):
        yield Gap(lane, before, after)


def _overlap(begin: float, end: float, other_begin: float, other_end: float) -> bool:
    return begin <= other_end and other_begin <= end


def _seconds(gap: Gap) -> float:
    return gap.seconds


def _stall(kind: str, gap: Gap, *, alone: bool, limit: float | None) -> CommitGap:
    return CommitGap(kind, alone, gap.lane, round(gap.began, 3), round(gap.seconds, 3), limit)


def _described(kind: str, those: list[CommitGap]) -> str:
    """Such as `kill_worker 6.3 s in lane 2 (limit 10 s, 3 of 4 with no other fault near)`."""
    longest = max(those, key=lambda stall: (stall.too_long, stall.alone, stall.seconds))
    alone = sum(stall.alone for stall in those)
    limit = f"limit {longest.limit:g} s, " if longest.limit is not None else ""
    longest_one = f"{kind or 'no fault'} {longest.seconds:.1f} s in lane {longest.lane}"
    return f"{longest_one} ({limit}{alone} of {len(those)} with no other fault near)" if kind else longest_one
