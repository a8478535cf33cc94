"""Whether every event was counted once: pure, from the topics alone, the same for every contestant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec


class Produced(NamedTuple):
    """An event as it stands in the input topic."""

    id: int
    key: str
    partition: int
    offset: int


class CountingEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the topics hold when a run has ended, read committed.

    Attributes:
        produced: every event of the input.
        outputs: the id of each output, as often as it is there.
        rows: the count in each key's row, from the table's changelog.
        committed: the group's position in each partition of the input; without one it has committed nothing.
    """

    produced: Sequence[Produced]
    outputs: Sequence[int]
    rows: Mapping[str, int]
    committed: Mapping[int, int]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, in numbers; all zero: every event was counted once.

    Attributes:
        lost: events without output that the group has committed: nobody will count them.
        left: events without output that the group has not committed.
        doubled: ids that came out more than once.
        surplus: outputs beyond the first of their id.
        invented: outputs of ids that were never produced.
        wrong_rows: keys whose row does not say how many events they had, not counting those that are left.
    """

    lost: int
    left: int
    doubled: int
    surplus: int
    invented: int
    wrong_rows: int

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not any(msgspec.structs.astuple(self))


def judge(evidence: CountingEvidence) -> Findings:
    """Hold what came out against what went in. An id that was produced twice is one event."""
    events = {each.id: each for each in evidence.produced}
    times = Counter(evidence.outputs)
    missing = [each for number, each in events.items() if number not in times]
    left = [each for each in missing if each.offset >= evidence.committed.get(each.partition, 0)]
    due = Counter(each.key for each in events.values()) - Counter(each.key for each in left)
    return Findings(
        lost=len(missing) - len(left),
        left=len(left),
        doubled=sum(count > 1 for count in times.values()),
        surplus=sum(count - 1 for count in times.values()),
        invented=len(times.keys() - events.keys()),
        wrong_rows=sum(evidence.rows.get(key, 0) != due[key] for key in due.keys() | evidence.rows.keys()),
    )


class OutputGap(NamedTuple):
    """A time in which a partition under load showed nothing new: when it began, and how long it was."""

    began: float
    seconds: float


def longest_stall(
    arrivals: Mapping[int, Sequence[float]], unfinished: Iterable[int], *, began: float, ended: float
) -> OutputGap:
    """The longest time in which a partition under steady load showed nothing new.

    Args:
        arrivals: when outputs of ids not seen before arrived, by partition.
        unfinished: partitions of which something had not arrived when the run was given up.
        began: when the load began.
        ended: when the run was given up.
    """
    waiting = set(unfinished)
    longest = OutputGap(began, 0.0)
    for partition in arrivals.keys() | waiting:
        seen = [time for time in arrivals.get(partition, ()) if time > began]
        times = [began, *seen, *([ended] if partition in waiting else ())]
        for earlier, later in pairwise(times):
            if later - earlier > longest.seconds:
                longest = OutputGap(earlier, later - earlier)
    return longest
