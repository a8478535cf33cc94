"""Whether every saga ended once, as its order calls for, and its timers rang: pure.

The expected way is stated a second time (`chaos.judges.saga_ways`), command by command and transition by
transition, in the words of the published messages. The timers of a run are the deadlines of sagas' commands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from agents.commands import ReleaseStock
from chaos.evidence.consequences import SagaCalls
from chaos.evidence.saga_records import STEPS, SagaMessages
from chaos.judges.lateness import TIME, explained
from chaos.judges.saga_ways import by_time, heeded, taken, way_of
from chaos.rig.records import RunRecords
from demo.findings import Finding, finding
from demo.purchases import ExpectedOutcome, Purchase, outcome

if TYPE_CHECKING:
    from streams.saga.state import SagaRow
from collections.abc import Iterable

from chaos.evidence.decoding import split_key
from chaos.evidence.stores import Rows
from chaos.judges.lateness import faulty
from chaos.judges.saga_ways import DUE, TIMERS

#: How many steps an order can succeed in.
_SUCCEEDS = {
    ExpectedOutcome.OUT_OF_STOCK: 0,
    ExpectedOutcome.DECLINED: 1,
    ExpectedOutcome.NOWHERE: 2,
    ExpectedOutcome.CONFIRMED: 3,
}
#: Seconds by which times in headers may be off: they are of milliseconds, and a batch of messages has the
#: time at which it was begun.
_ROUNDED = 0.1


def _too_early(saga: SagaMessages) -> Iterator[str]:
    """Commands of which a deadline rang before its time, from when they or a question were decided on."""
    for each in saga.replies:
        if each.outcome == "timed_out":
            counts_from = [
                one.decided
                for one in (*saga.commands, *saga.questions)
                if one.command_id == each.command_id and one.decided < each.decided
            ]
            if each.decided - max(counts_from, default=each.decided) < TIME - _ROUNDED:
                yield each.command_id


def calls(by_order: Mapping[str, SagaMessages]) -> SagaCalls:
    """What is to be known for the consequences of messages."""
    leads_on, unanswered, questions = set[str](), set[str](), set[str]()
    undoing = {step.undo.TOPIC for step in STEPS}
    for saga in by_order.values():
        topics = {each.command_id: each.sent.topic for each in saga.commands}
        leads_on.update(each.sent.message_id for each in saga.replies if each.outcome == "due")
        leads_on.update(each.sent.message_id for those in heeded(saga).values() for each in those)
        questions.update(each.sent.message_id for each in saga.questions)
        for command_id, reply in taken(saga).items():
            if reply.outcome == "success" or topics.get(command_id) not in undoing:
                leads_on.add(reply.sent.message_id)
        unanswered.update(_unanswered(saga))
    return SagaCalls(leads_on, unanswered, questions)


def _unanswered(saga: SagaMessages) -> Iterator[str]:
    """A release that is repeated while it is under way answers the last command."""
    releases = sorted((each for each in saga.commands if each.sent.topic == ReleaseStock.TOPIC), key=by_time)
    yield from (each.sent.message_id for each in releases[:-1])


def judge_transitions(submitted: Collection[str], by_order: Mapping[str, SagaMessages]) -> Finding:
    """Whether each of these orders has a saga, and each saga recorded its transitions once, to one end."""
    wrong: dict[str, list[str]] = defaultdict(list)
    wrong["orders without a saga"] = sorted(
        set(submitted) - {o for o, saga in by_order.items() if saga.transitions}
    )
    wrong["sagas of no such order"] = sorted(by_order.keys() - set(submitted))
    for order_id, saga in by_order.items():
        numbers = [each.number for each in saga.transitions]
        if numbers != list(range(1, len(numbers) + 1)):
            wrong["with a gap, a repetition or out of turn"].append(order_id)
        recorded = [(each.step, each.after) for each in saga.transitions if each.before != each.after]
        if recorded != (tells := way_of(saga).tells()):
            at = next(
                (n for n, pair in enumerate(zip(recorded, tells, strict=False)) if pair[0] != pair[1]), -1
            )
            wrong["with other transitions than their messages"].append(
                f"{order_id}, from {recorded[at] if recorded else 'nothing'}"
            )
    count = sum(len(saga.transitions) for saga in by_order.values())
    says = f"{len(by_order):,} sagas, {count:,} transitions"
    return finding("every saga recorded once, from its start to one end", wrong, says)


def judge_ends(
    purchases: Sequence[Purchase],
    submitted: Set[str],
    by_order: Mapping[str, SagaMessages],
    settled: Mapping[str, str],
    run: RunRecords,
) -> Finding:
    """Whether each saga went as its order calls for, or late by a fault, and `settled` its order so."""
    wrong: dict[str, list[str]] = defaultdict(list)
    ends, late = Counter[str](), Counter[str]()
    for purchase in purchases:
        order_id, calls_for = purchase.order_id, outcome(purchase)
        if order_id not in submitted or order_id not in by_order:
            continue
        way = way_of(by_order[order_id])
        wrong["wrong by themselves"] += [f"{order_id}: {what}" for what in way.wrong]
        successes = sum(each.reply == "success" for each in way.went)
        if way.given_up:
            end, fits = way.given_up, successes <= min(_SUCCEEDS[calls_for], len(STEPS) - 1)
        else:
            end, fits = calls_for.value, successes == _SUCCEEDS[calls_for]
        ends[end] += 1
        late.update(each.what for each in way.late)
        if not fits:
            wrong["another way than the order calls for"].append(f"{order_id}, {calls_for.value}")
        if settled.get(order_id) != end:
            wrong["settled otherwise"].append(f"{order_id} is {settled.get(order_id, 'not')}, not {end}")
        wrong["timed out before their time"] += _too_early(by_order[order_id])
        wrong["late without a fault"] += [
            f"{each.command_id} at {each.decided - run.load[0]:.0f} s,"
            f" after {each.late_at - each.decided:.1f} s"
            for each in way.late
            if not explained(each.decided, each.late_at, run)
        ]
    says = ", ".join(f"{count:,} {end}" for end, count in ends.most_common()) or "none"
    if late:
        says += f"; late: {', '.join(f'{count:,} {what}' for what, count in late.most_common())}"
    return finding("every saga ended as its order calls for, late only by a fault", wrong, says)


def judge_participants(
    by_order: Mapping[str, SagaMessages],
    sagas: Mapping[str, SagaRow],
    participants: Collection[tuple[str, str, str]],
) -> Finding:
    """Whether sagas' rows and participants' are what each saga's way has made of them."""
    wanted: dict[tuple[str, str], str] = {}
    wrong: dict[str, list[str]] = defaultdict(list)
    for order_id, saga in by_order.items():
        way = way_of(saga)
        wanted |= {(order_id, each.step.name): each.participant for each in way.went}
        end = "completed" if way.completed else "compensated"
        steps = {step.name: "pending" for step in STEPS} | {each.step.name: each.status for each in way.went}
        row = sagas.get(order_id)
        found_row = None if row is None else (row.status, {each.name: each.status for each in row.steps})
        if found_row != (end, steps):
            wrong["other rows of sagas"].append(f"{order_id}: {found_row}")
    found = {(order_id, step): status for order_id, step, status in participants}
    wrong["other rows of participants"] = [
        f"{step} of {order_id} is {found.get((order_id, step), 'not there')}"
        for order_id, step in sorted(wanted.keys() | found.keys())
        if found.get((order_id, step)) != wanted.get((order_id, step))
    ]
    wrong["rows of no saga"] = sorted(sagas.keys() - by_order.keys())
    says = f"{len(sagas):,} sagas, {len(found):,} parts in them"
    return finding("every participant as its saga ended", wrong, says)


TIMERS_TABLE = "_timers"
_PREFIX = 2  # bytes of a local key that are its partition
#: Seconds in which a timer that is due rings, beside the time in which faults hold up its lane.
RINGS_WITHIN = 20.0


def left_in(tables: Iterable[Mapping[str, Rows]]) -> Iterator[str]:
    """The timers that wait, in the state of every lane: whose, and for which key and step."""
    for lane in tables:
        for key in lane.get(TIMERS_TABLE, {}):
            handler, _, rest = key[_PREFIX:].partition(b"\0")
            yield " ".join((handler.decode(), *split_key(rest)))


def judge_timers(by_order: Mapping[str, SagaMessages], left: Iterable[str], run: RunRecords) -> Finding:
    """`left` are the timers that wait when all is handled."""
    wrong: dict[str, list[str]] = defaultdict(list)
    wrong["left behind"] = sorted(left)
    rang = 0
    for saga in by_order.values():
        rings = Counter(each.command_id for each in saga.replies if each.outcome in TIMERS)
        rang += rings.total()
        known = {each.command_id for each in saga.commands}
        wrong["of no command"] += sorted(rings.keys() - known)
        wrong["rang twice"] += _again(saga)
        replies = taken(saga)
        for each in saga.commands:
            reply = replies.get(each.command_id)
            if reply is None or rings[each.command_id]:
                continue
            due = each.decided + TIME
            if reply.decided - due > RINGS_WITHIN + faulty(due, reply.decided, run):
                late = reply.decided - due
                wrong["never rang"].append(f"{each.command_id}, due {late:.0f} s before its reply")
    return finding("every timer rang when it was due, once", wrong, f"{rang:,} rang, none is left")


def _again(saga: SagaMessages) -> Iterator[str]:
    """A delay rings once for a command; a deadline again, when its question has had its time."""
    last: dict[tuple[str, str], float] = {}
    for each in sorted(saga.replies, key=lambda each: each.decided):
        if each.outcome in TIMERS:
            which = each.command_id, each.outcome
            if which in last and (each.outcome == DUE or each.decided - last[which] < TIME / 2):
                yield each.command_id
            last[which] = each.decided
