"""Whether any message waited for longer than faults explain: pure, by when those behind it were handled.

A backlog holds up all of a partition alike, however long it takes. So a message is late by the time that has
passed since its turn had come: since what one behind it in its partition led to was written. Faults hold up
single messages, which are tried again while others pass; hence a cap, and no wait without end. While a
lane commits nothing, nothing of it passes: that time is not of the message, and is looked at in `stalls`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from chaos.evidence.calls import BY_TOPIC, NOTHING
from chaos.judges.key_order import Effect
from chaos.judges.lateness import BOUND, at_most, faulty
from chaos.judges.stalls import Gap, gaps
from chaos.rig.records import CommitTimes, RunRecords
from demo.findings import Finding, finding

#: A lane that commits nothing for longer than this stands still, in seconds.
STANDS = 5.0


class Wait(NamedTuple):
    """A message that was handled: what it led to first, when its turn had come, and how long it was late."""

    effect: Effect
    came: float
    seconds: float


def judge_waits(effects: Iterable[Effect], run: RunRecords, commits: CommitTimes) -> Finding:
    """Hold each wait against the longest fault beside it, or the time for which faults stopped its lane."""
    longest, late, looked_at = 0.0, [], 0
    stops = defaultdict(list)
    for gap in gaps(run, commits):
        if gap.seconds > STANDS:
            stops[gap.lane].append(gap)
    for each in waits(effects):
        looked_at += 1
        longest = max(longest, each.seconds)
        if each.seconds > BOUND:
            most = _most(each, stops[each.effect.cause.partition % run.lanes], run)
            if each.seconds > most:
                late.append(f"{each.effect.cause}, by {each.seconds:.0f} s, and at most by {most:.0f} s")
    says = f"{looked_at:,} messages, the longest late by {longest:.1f} s"
    return finding("no message late for longer than a fault lasts", {"late for longer": late}, says)


def _most(wait: Wait, stops: Iterable[Gap], run: RunRecords) -> float:
    ends = wait.came + wait.seconds
    stood = sum(faulty(max(gap.began, wait.came), min(gap.ended, ends), run) for gap in stops)
    return at_most(wait.came, ends, run, stood)


def waits(effects: Iterable[Effect]) -> Iterator[Wait]:
    """How late each message was handled, by each of its handlers that led to something."""
    first: dict[tuple[str, int, str], dict[str, Effect]] = defaultdict(dict)
    for each in effects:
        handled = first[each.cause.topic, each.cause.partition, _what(each)]
        known = handled.setdefault(each.cause.message_id, each)
        if each.sent.time < known.sent.time:
            handled[each.cause.message_id] = each
    for handled in first.values():
        yield from _of_one_handler(sorted(handled.values(), key=lambda each: each.cause.offset))


def _of_one_handler(those: Sequence[Effect]) -> Iterator[Wait]:
    """Of one partition, in its order. Nobody can say when the turn of the last had come."""
    behind = list(accumulate((each.sent.time for each in reversed(those)), min))[-2::-1]
    for each, came in zip(those, behind, strict=False):
        turn = max(each.cause.time, came)
        yield Wait(each, turn, max(0.0, each.sent.time - turn))


def _what(effect: Effect) -> str:
    """What a handler leads to, by one name for all that it may choose from."""
    calls = BY_TOPIC.get(effect.cause.topic, NOTHING)
    for kinds in calls.one_of:
        if effect.sent.topic in {kind.TOPIC for kind in kinds}:
            return kinds[0].TOPIC
    return effect.sent.topic
