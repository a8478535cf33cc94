"""Whether timers rang when they were due, once, and none was left behind: pure.

The timers of a run are the deadlines of sagas' commands. One that is overdue when a command's reply comes
must have made the saga ask after it; once all sagas have ended there is none any more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from chaos.evidence.decoding import split_key
from chaos.evidence.saga_records import Said
from chaos.evidence.stores import Rows
from chaos.judges.lateness import TIME, faulty
from chaos.judges.saga_ways import DUE, TIMERS, taken
from chaos.rig.records import RunRecords
from demo.findings import Finding, finding

TABLE = "_timers"
_PREFIX = 2  # bytes of a local key that are its partition
#: Seconds in which a timer that is due rings, beside the time in which faults hold up its lane.
RINGS_WITHIN = 20.0


def left_in(tables: Iterable[Mapping[str, Rows]]) -> Iterator[str]:
    """The timers that wait, in the state of every lane: whose, and for which key and step."""
    for lane in tables:
        for key in lane.get(TABLE, {}):
            handler, _, rest = key[_PREFIX:].partition(b"\0")
            yield " ".join((handler.decode(), *split_key(rest)))


def judge_timers(by_order: Mapping[str, Said], left: Iterable[str], run: RunRecords) -> Finding:
    """`left` are the timers that wait when all is handled."""
    wrong: dict[str, list[str]] = defaultdict(list)
    wrong["left behind"] = sorted(left)
    rang = 0
    for said in by_order.values():
        rings = Counter(each.command_id for each in said.replied if each.outcome in TIMERS)
        rang += rings.total()
        known = {each.command_id for each in said.asked}
        wrong["of no command"] += sorted(rings.keys() - known)
        wrong["rang twice"] += _again(said)
        replies = taken(said)
        for each in said.asked:
            reply = replies.get(each.command_id)
            if reply is None or rings[each.command_id]:
                continue
            due = each.decided + TIME
            if reply.decided - due > RINGS_WITHIN + faulty(due, reply.decided, run):
                late = reply.decided - due
                wrong["never rang"].append(f"{each.command_id}, due {late:.0f} s before its reply")
    return finding("every timer rang when it was due, once", wrong, f"{rang:,} rang, none is left")


def _again(said: Said) -> Iterator[str]:
    """A delay rings once for a command; a deadline again, when its question has had its time."""
    last: dict[tuple[str, str], float] = {}
    for each in sorted(said.replied, key=lambda each: each.decided):
        if each.outcome in TIMERS:
            which = each.command_id, each.outcome
            if which in last and (each.outcome == DUE or each.decided - last[which] < TIME / 2):
                yield each.command_id
            last[which] = each.decided
