"""Whether every saga ended once, as its order calls for, and all others agree with it: pure.

How a saga has to go follows from the replies that it took: of those to a command, its participant's first.
The saga's own deadlines only make it ask: once after each that rings before there is a reply. From them alone
its way is told here a second time, command by command and transition by transition, in the words of the
published messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from agents.commands import ReleaseStock
from chaos.consequences import SagaCalls
from chaos.lateness import TIME, explained
from chaos.records import Run
from chaos.saga_records import STEPS, Asked, Replied, Said, Step
from demo.findings import Finding, finding
from demo.purchases import Outcome, Purchase, outcome
from streams.saga.state import SagaRow

#: Replies by which a command is late, and may have been done all the same.
UNCERTAIN = frozenset({"expired", "error"})
#: Those, and that by which it was not begun in time and never will be.
NOT_BEGUN = "cancelled"
LATE = UNCERTAIN | {NOT_BEGUN}
#: Why an order is cancelled for that, in its saga's words.
TIMED_OUT = "timed_out"
#: The saga's own.
_TIMERS = frozenset({"due", "timed_out"})
#: How many steps an order can succeed in.
_SUCCEEDS = {Outcome.OUT_OF_STOCK: 0, Outcome.DECLINED: 1, Outcome.NOWHERE: 2, Outcome.CONFIRMED: 3}
#: Seconds by which times in headers may be off: they are of milliseconds, and a batch of messages has the
#: time at which it was begun.
_ROUNDED = 0.1
_NAMES = {kind.TOPIC: kind.__name__ for step in STEPS for kind in (step.do, step.undo)}


class Went(NamedTuple):
    """How a step went: the reply taken to its command, `""` while there is none, and those to each command
    that undoes it.
    """

    step: Step
    reply: str
    undone: tuple[str, ...]

    @property
    def status(self) -> str:
        """Of the step."""
        if self.undone:
            return "compensated"
        return "completed" if self.reply == "success" else "failed"

    @property
    def participant(self) -> str:
        """The status of its participant's row."""
        if self.undone:
            return "undone"
        return {"success": "done", NOT_BEGUN: "cancelled"}.get(self.reply, "refused")


class Late(NamedTuple):
    """A command that was late: how, when it was decided on, and when its lateness was; in seconds since the
    epoch.
    """

    command_id: str
    what: str
    asked: float
    heard: float


@dataclass(frozen=True)
class Way:
    """A saga's way, as commands and replies tell it.

    Attributes:
        went: the steps that were begun, in order.
        late: commands that were late.
        wrong: what is wrong with it by itself.
    """

    went: tuple[Went, ...]
    late: tuple[Late, ...]
    wrong: tuple[str, ...]

    @property
    def completed(self) -> bool:
        """Whether every step succeeded."""
        return [each.reply for each in self.went] == ["success"] * len(STEPS)

    @property
    def given_up(self) -> str:
        """How the command was late for which the saga went back, as its order is settled; empty: for none."""
        last = self.went[-1].reply if self.went else ""
        return TIMED_OUT if last == NOT_BEGUN else last if last in LATE else ""

    def tells(self) -> list[tuple[str, str]]:
        """What it has to tell: each change of a step's status, and of its own."""
        told = [("", "started")]
        for each in self.went:
            told.append((each.step.name, "in_progress"))
            if each.reply:
                told.append((each.step.name, "completed" if each.reply == "success" else "failed"))
        if self.completed:
            return [*told, ("", "completing"), ("", "completed")]
        told.append(("", "compensating"))
        for each in reversed(self.went):
            if each.undone:
                told += [(each.step.name, "compensating"), (each.step.name, "compensated")]
        return [*told, ("", "compensated")]


def taken(said: Said) -> dict[str, Replied]:
    """The reply to each command that its saga has gone by: its participant's first."""
    first: dict[str, Replied] = {}
    for each in sorted(said.replied, key=lambda each: each.sent.offset):
        if each.outcome not in _TIMERS:
            first.setdefault(each.command_id, each)
    return first


def way_of(said: Said) -> Way:
    """How a saga went."""
    replies = taken(said)
    asked: dict[str, list[Asked]] = defaultdict(list)
    for each in sorted(said.asked, key=_time):
        asked[each.sent.topic].append(each)
    went, wrong = [], list(_unasked(said))
    late: list[Late] = []
    going = True

    def heard(each: Asked) -> str:
        reply = replies.get(each.command_id)
        if reply is not None and reply.outcome in LATE:
            name = _NAMES[each.sent.topic]
            late.append(Late(each.command_id, f"{reply.outcome} of {name}", each.decided, reply.decided))
        return reply.outcome if reply is not None else ""

    for step in STEPS:
        commands = asked[step.do.TOPIC]
        outcomes = [heard(each) for each in commands]
        undone = tuple(heard(each) for each in asked[step.undo.TOPIC])
        if not (going and outcomes):
            going = False
            wrong += [f"{step.name} was asked for" for _ in outcomes]
            wrong += [f"{step.name} was undone" for _ in undone]
            continue
        if len(outcomes) > 1:
            wrong.append(f"{step.name} was asked for {len(outcomes)} times")
        going = outcomes[0] == "success"
        went.append(Went(step, outcomes[0], undone))
    return Way(tuple(went), tuple(late), (*wrong, *_not_undone(went)))


def _unasked(said: Said) -> Iterator[str]:
    known = Counter(each.command_id for each in said.asked)
    questions = Counter(each.command_id for each in said.questions)
    answers = Counter(each.command_id for each in said.replied if each.outcome not in _TIMERS)
    yield from (
        f"{command_id} was answered {count} times"
        for command_id, count in answers.items()
        if count > 1 + questions[command_id]
    )
    done = Counter(each.command_id for each in said.replied if each.outcome == "success")
    yield from (f"{command_id} was done {count} times" for command_id, count in done.items() if count > 1)
    yield from (f"{command_id} was asked {count} times" for command_id, count in known.items() if count > 1)
    replied = {each.command_id for each in said.replied}
    yield from (f"{command_id} was answered and never asked" for command_id in sorted(replied - known.keys()))
    heeded = {command_id: len(those) for command_id, those in _heeded(said).items()}
    yield from (
        f"{command_id} was asked after {questions[command_id]} times"
        for command_id in sorted(questions.keys() | heeded.keys())
        if questions[command_id] != heeded.get(command_id, 0)
    )


def _heeded(said: Said) -> dict[str, list[Replied]]:
    """The deadlines of each command that came before a reply to it."""
    replies = taken(said)
    found: dict[str, list[Replied]] = defaultdict(list)
    for each in said.replied:
        reply = replies.get(each.command_id)
        if each.outcome == "timed_out" and (reply is None or each.sent.offset < reply.sent.offset):
            found[each.command_id].append(each)
    return found


def _too_early(said: Said) -> Iterator[str]:
    """Commands of which a deadline rang before its time, from when they or a question were decided on."""
    for each in said.replied:
        if each.outcome == "timed_out":
            counts_from = [
                one.decided
                for one in (*said.asked, *said.questions)
                if one.command_id == each.command_id and one.decided < each.decided
            ]
            if each.decided - max(counts_from, default=each.decided) < TIME - _ROUNDED:
                yield each.command_id


def _not_undone(went: Sequence[Went]) -> Iterator[str]:
    """What was done, or may have been, of a saga that did not complete is undone, and nothing else."""
    completed = len(went) == len(STEPS) and went[-1].reply == "success"
    for each in went:
        name = each.step.name
        if not each.reply:
            yield f"{name} has no reply"
        elif completed or not (each.reply == "success" or each.reply in UNCERTAIN):
            if each.undone:
                yield f"{name} was undone and had not to be"
        elif not each.undone:
            yield f"{name} was not undone"
        elif each.undone[-1] != "success":
            yield f"{name} is not undone: {each.undone[-1] or 'no reply'}"
        elif early := [reply for reply in each.undone[:-1] if reply not in LATE]:
            yield f"{name} was undone again after {early[0]}"
    if len(went) < len(STEPS) and (not went or went[-1].reply == "success"):
        yield "it has not ended"


def calls(by_order: Mapping[str, Said]) -> SagaCalls:
    """What is to be known for the consequences of messages."""
    leads_on, unheard, questions = set[str](), set[str](), set[str]()
    undoing = {step.undo.TOPIC for step in STEPS}
    for said in by_order.values():
        topics = {each.command_id: each.sent.topic for each in said.asked}
        leads_on.update(each.sent.message_id for each in said.replied if each.outcome == "due")
        leads_on.update(each.sent.message_id for those in _heeded(said).values() for each in those)
        questions.update(each.sent.message_id for each in said.questions)
        for command_id, reply in taken(said).items():
            if reply.outcome == "success" or topics.get(command_id) not in undoing:
                leads_on.add(reply.sent.message_id)
        unheard.update(_unheard(said))
    return SagaCalls(leads_on, unheard, questions)


def _unheard(said: Said) -> Iterator[str]:
    """A release that is asked for again while it is under way answers the last who asked."""
    releases = sorted((each for each in said.asked if each.sent.topic == ReleaseStock.TOPIC), key=_time)
    yield from (each.sent.message_id for each in releases[:-1])


def _time(asked: Asked) -> float:
    return asked.time


def given_up(by_order: Mapping[str, Said]) -> set[str]:
    """Orders that were cancelled because a step was late."""
    return {order_id for order_id, said in by_order.items() if way_of(said).given_up}


def judge_told(submitted: Collection[str], by_order: Mapping[str, Said]) -> Finding:
    """Whether each of these orders has a saga, and each saga told its way once, from its start to one end."""
    wrong: dict[str, list[str]] = defaultdict(list)
    wrong["orders without a saga"] = sorted(set(submitted) - {o for o, said in by_order.items() if said.told})
    wrong["sagas of no such order"] = sorted(by_order.keys() - set(submitted))
    for order_id, said in by_order.items():
        numbers = [each.number for each in said.told]
        if numbers != list(range(1, len(numbers) + 1)):
            wrong["with a gap, a repetition or out of turn"].append(order_id)
        told = [(each.step, each.after) for each in said.told if each.before != each.after]
        if told != (tells := way_of(said).tells()):
            at = next((n for n, pair in enumerate(zip(told, tells, strict=False)) if pair[0] != pair[1]), -1)
            wrong["told otherwise than they went"].append(
                f"{order_id}, from {told[at] if told else 'nothing'}"
            )
    count = sum(len(said.told) for said in by_order.values())
    says = f"{len(by_order):,} sagas, {count:,} transitions"
    return finding("every saga told once, from its start to one end", wrong, says)


def judge_ends(
    purchases: Sequence[Purchase],
    submitted: Set[str],
    by_order: Mapping[str, Said],
    settled: Mapping[str, str],
    run: Run,
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
            f"{each.command_id} at {each.asked - run.load[0]:.0f} s, after {each.heard - each.asked:.1f} s"
            for each in way.late
            if not explained(each.asked, each.heard, run)
        ]
    says = ", ".join(f"{count:,} {end}" for end, count in ends.most_common()) or "none"
    if late:
        says += f"; late: {', '.join(f'{count:,} {what}' for what, count in late.most_common())}"
    return finding("every saga ended as its order calls for, late only by a fault", wrong, says)


def judge_participants(
    by_order: Mapping[str, Said], sagas: Mapping[str, SagaRow], participants: Collection[tuple[str, str, str]]
) -> Finding:
    """Whether sagas' rows and participants' are what each saga's way has made of them."""
    wanted: dict[tuple[str, str], str] = {}
    wrong: dict[str, list[str]] = defaultdict(list)
    for order_id, said in by_order.items():
        way = way_of(said)
        wanted |= {(order_id, each.step.name): each.participant for each in way.went}
        end = "completed" if way.completed else "compensated"
        steps = {step.name: "pending" for step in STEPS} | {each.step.name: each.status for each in way.went}
        row = sagas.get(order_id)
        stands = None if row is None else (row.status, {each.name: each.status for each in row.steps})
        if stands != (end, steps):
            wrong["sagas' rows that stand otherwise"].append(f"{order_id}: {stands}")
    found = {(order_id, step): status for order_id, step, status in participants}
    wrong["participants' rows that stand otherwise"] = [
        f"{step} of {order_id} is {found.get((order_id, step), 'not there')}"
        for order_id, step in sorted(wanted.keys() | found.keys())
        if found.get((order_id, step)) != wanted.get((order_id, step))
    ]
    wrong["rows of no saga"] = sorted(sagas.keys() - by_order.keys())
    says = f"{len(sagas):,} sagas, {len(found):,} parts in them"
    return finding("every participant as its saga ended", wrong, says)
