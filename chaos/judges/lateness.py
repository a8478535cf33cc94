"""Lateness: which faults explain it, for orders that were cancelled and for messages that waited. Pure.

A backlog holds up all of a partition alike. So a message is late by the time since its turn had come: since
the effect of one behind it in its partition was written. While a lane commits nothing, nothing passes it:
`stalls` judges that time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from agents.gateway.wire import Charged, Refunded
from chaos.evidence.calls import BY_TOPIC, NOTHING
from chaos.judges.key_order import Effect
from chaos.judges.stalls import Gap, gaps, healed_at
from chaos.rig.records import CommitTimes, Happened, RunRecords, of_lanes
from demo import evidence as books
from demo.findings import Finding, finding
from demo.purchases import Purchase, order

#: Seconds after a fault in which it may still be why something is late: retries wait for 10 s at most.
AFTERMATH = 12.0
#: What makes a participant itself fail, or slow. The application's own outages and backlogs are none of them:
#: a step's time runs while its participant works on it, not while its command lies in a topic.
OF_PARTICIPANTS = frozenset(
    {
        "gateway_down",
        "gateway_down_in_low_traffic",
        "gateway_slow",
        "gateway_loses_answers",
        "handlers_fail",
    }
)
#: While all workers are away no step that has failed goes on: the aftermath of a fault comes later.
PUTS_OFF = "outage"
#: Seconds that a participant has for a step, and the share of it that such faults, and what comes after them,
#: must make up to explain that it was late; as long as a retry waits is enough.
TIME, SHARE, RETRY = 30.0, 0.5, 10.0


#: Seconds by which a message may be handled later than its turn came, beside the time that the longest fault
#: meanwhile lasted: all attempts of a message take 23.3 s in a run, and a breaker opens for 10 s at first.
BOUND = 35.0


def explained(decided: float, late_at: float, run: RunRecords) -> bool:
    """Whether faults of participants and their aftermath make up enough of the last of its time."""
    began = max(decided, late_at - TIME)
    covered = _covered(began, late_at, [fault for fault in run.faults if fault.kind in OF_PARTICIPANTS], run)
    return covered > 0 and covered >= min(SHARE * (late_at - began), RETRY)


def faulty(began: float, ended: float, run: RunRecords) -> float:
    """Seconds of a time in which there was any fault of what lanes need, or its aftermath."""
    return _covered(began, ended, of_lanes(run), run)


def at_most(began: float, ended: float, run: RunRecords, stopped: float = 0.0) -> float:
    """By how many seconds a message may be late that waited in this time: as long as the longest fault of it
    lasted itself, and the bound. Faults do not add up: of those that follow each other in a run there is
    always one. But nothing of a lane passes a message while it commits nothing: `stopped` is for how long
    faults made it stand still, all together.
    """
    lasted = [
        healed_at(fault, run) - fault.began
        for fault in of_lanes(run)
        if fault.began < ended and healed_at(fault, run) + AFTERMATH > began
    ]
    return max([*lasted, stopped]) + BOUND


def _covered(began: float, ended: float, faults: Iterable[Happened], run: RunRecords) -> float:
    covered, until = 0.0, began
    for begins, ends in sorted((fault.began, _passed(fault, run)) for fault in faults):
        covered += max(0.0, min(ends, ended) - max(begins, until))
        until = max(until, ends)
    return covered


def _passed(fault: Happened, run: RunRecords) -> float:
    """When what comes after a fault is over, too."""
    ends = healed_at(fault, run) + AFTERMATH
    put_off = [
        healed_at(other, run) + AFTERMATH
        for other in run.faults
        if other.kind == PUTS_OFF and fault.began <= other.began < ends
    ]
    return max([ends, *put_off])


def without(orders: Set[str], found: books.DemoEvidence) -> books.DemoEvidence:
    """What the demo's check looks at, but for some orders."""
    return replace(
        found,
        settlements=[each for each in found.settlements if each.order.order_id not in orders],
        ledger=[each for each in found.ledger if _order_of(each) not in orders],
    )


def judge_given_back(purchases: Sequence[Purchase], late: Set[str], found: books.DemoEvidence) -> Finding:
    """Of orders that were cancelled for lateness all money is back, and there is one settlement; what stock
    they had is looked at with that of the others.
    """
    times = Counter(each.order.order_id for each in found.settlements)
    kept: Counter[str] = Counter()
    moves: Counter[tuple[str, str]] = Counter()
    for row in found.ledger:
        if isinstance(row, Refunded) or row.status == "captured":
            given = isinstance(row, Refunded)
            kept[_order_of(row)] += -row.cents if given else row.cents
            moves[_order_of(row), "refund" if given else "charge"] += 1
    placed = {each.order_id: order(each) for each in purchases}
    wrong = {
        "not settled once": sorted(each for each in late if times[each] != 1),
        "settled with another order": sorted(
            each.order.order_id
            for each in found.settlements
            if each.order.order_id in late and each.order != placed[each.order.order_id]
        ),
        "with money left": [f"{each} with {kept[each]}" for each in sorted(late) if kept[each]],
        "with money moved twice": [
            f"{each}: {what}" for (each, what), n in moves.items() if each in late and n > 1
        ],
    }
    says = f"{len(late):,} orders"
    return finding("all given back of what was cancelled for lateness", wrong, says)


def _order_of(row: Charged | Refunded) -> str:
    operation = row.charge_operation if isinstance(row, Refunded) else row.operation
    return operation.partition(":")[2]


#: A lane that commits nothing for longer than this, in seconds, has stopped.
STOPPED_AFTER = 5.0


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
        if gap.seconds > STOPPED_AFTER:
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
    stopped = sum(faulty(max(gap.began, wait.came), min(gap.ended, ends), run) for gap in stops)
    return at_most(wait.came, ends, run, stopped)


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
    """Of one partition, in its order. The turn of the last message is unknown."""
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
